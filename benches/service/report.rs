//! The table.

use crate::rows::{MEASUREMENTS, Measured, Row, Target};
use crate::stage::Stage;

/// Measures figures with `part` in their name, and prints each row as soon as it is measured.
pub fn print(stage: &Stage, part: &str) {
    println!("{stage}\n");
    println!("| figure | target | measured | held | busy meanwhile |\n|---|---|---|---|---|");
    for measurement in MEASUREMENTS {
        if measurement.rows.iter().any(|row| row.figure.contains(part)) {
            let measured = (measurement.measure)(stage);
            assert_eq!(measured.len(), measurement.rows.len());
            for (row, measured) in measurement.rows.iter().zip(measured) {
                println!("{}", line(row, &measured));
            }
        }
    }
}

fn line(row: &Row, measured: &Measured) -> String {
    let (bound, number, unit) = match row.target {
        Target::AtMost(most, unit) => ("at most", most, unit),
        Target::AtLeast(least, unit) => ("at least", least, unit),
    };
    let head = format!("| {} | {bound} {number} {unit}", row.figure);
    let Some(value) = measured.value else { return format!("{head} | not measured: {} | - | |", measured.detail) };
    let held = match row.target {
        _ if measured.disturbed => "unclear: others were on the cores",
        Target::AtMost(most, _) if value <= most => "yes",
        Target::AtLeast(least, _) if value >= least => "yes",
        _ => "**no**",
    };
    format!("{head} | {} ({}) | {held} | {} |", rounded(value), measured.detail, measured.busy)
}

/// Three digits that mean something, where there are so many.
fn rounded(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}
