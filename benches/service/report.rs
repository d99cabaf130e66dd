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
    let held = match row.target {
        Target::AtMost(most, _) => measured.value <= most,
        Target::AtLeast(least, _) => measured.value >= least,
    };
    let (bound, number, unit) = match row.target {
        Target::AtMost(most, unit) => ("at most", most, unit),
        Target::AtLeast(least, unit) => ("at least", least, unit),
    };
    let held = match held {
        _ if measured.disturbed => "cannot tell: others were on the cores",
        true => "yes",
        false => "**no**",
    };
    let value = rounded(measured.value);
    format!("| {} | {bound} {number} {unit} | {value} ({}) | {held} | {} |", row.figure, measured.detail, measured.busy)
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
