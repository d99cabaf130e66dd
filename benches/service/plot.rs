//! Draws goodput and latency over the load that is offered, as an SVG that can be read on light and on dark.

use std::fmt::Write as _;
use std::time::Duration;

/// The results of a scenario.
pub struct Curve {
    pub name: &'static str,
    pub points: Vec<Point>,
}

pub struct Point {
    /// The offered load and its goodput, both as shares of the capacity.
    pub offered: f64,
    pub goodput: f64,
    /// The 99th percentile, in milliseconds; none where nothing was good.
    pub p99_ms: Option<f64>,
}

/// Readable on white and on black.
const COLOURS: [&str; 6] = ["#2f81f7", "#e8590c", "#2b9348", "#9c6ade", "#888", "#b08800"];
const WIDTH: f64 = 760.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const MOST_OFFERED: f64 = 3.0;

/// A diagram, one above the other.
struct Panel {
    title: String,
    top: f64,
    height: f64,
    most: f64,
    step: f64,
}

impl Panel {
    fn place(&self, offered: f64, value: f64) -> (f64, f64) {
        let x = LEFT + offered / MOST_OFFERED * (WIDTH - LEFT - RIGHT);
        (x, self.top + self.height * (1.0 - (value / self.most).min(1.0)))
    }

    fn frame(&self, svg: &mut String) -> std::fmt::Result {
        writeln!(svg, r#"<text x="{LEFT}" y="{}" class="title">{}</text>"#, self.top - 12.0, self.title)?;
        let lines = (self.most / self.step).round() as u32;
        for line in 0..=lines {
            let value = f64::from(line) * self.step;
            let ((x1, y), (x2, _)) = (self.place(0.0, value), self.place(MOST_OFFERED, value));
            writeln!(svg, r#"<path d="M{x1:.1} {y:.1}H{x2:.1}" class="grid"/>"#)?;
            writeln!(svg, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{value}</text>"#, x1 - 8.0, y + 4.0)?;
        }
        for offered in [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0] {
            let (x, y) = self.place(offered, 0.0);
            writeln!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{offered}</text>"#, y + 18.0)?;
        }
        Ok(())
    }

    fn line(&self, svg: &mut String, colour: &str, points: &[(f64, f64)], dashed: bool) -> std::fmt::Result {
        let places: Vec<_> = points.iter().map(|(offered, value)| self.place(*offered, *value)).collect();
        let path = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect::<Vec<_>>().join("L");
        let dashes = if dashed { r#" stroke-dasharray="6 4""# } else { "" };
        writeln!(svg, r#"<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#)?;
        for (x, y) in places {
            writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#)?;
        }
        Ok(())
    }
}

/// Draws both diagrams with their legend. Scenarios without a promise, named in `dashed`, have dashed lines.
pub fn picture(curves: &[Curve], deadline: Duration, dashed: &[&str]) -> String {
    let mut svg = String::new();
    draw(&mut svg, curves, deadline, dashed).expect("a string takes everything");
    svg
}

fn draw(svg: &mut String, curves: &[Curve], deadline: Duration, dashed: &[&str]) -> std::fmt::Result {
    let deadline_ms = deadline.as_secs_f64() * 1e3;
    let top = 60.0 + 20.0 * curves.len() as f64;
    let goodput = Panel {
        title: format!("goodput: decided within {deadline_ms} ms, as a part of what can be served"),
        top,
        height: 240.0,
        most: 1.25,
        step: 0.25,
    };
    let latency = Panel {
        title: "p99 of what was decided in time, in ms".into(),
        top: top + 320.0,
        height: 140.0,
        most: deadline_ms,
        step: deadline_ms / 4.0,
    };
    let height = latency.top + latency.height + 50.0;
    writeln!(svg, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">"#)?;
    writeln!(svg, "<title>Goodput and latency over the load that is offered</title>")?;
    writeln!(
        svg,
        "<style>text{{font:13px sans-serif;fill:#24292f}}.title{{font-weight:bold}}\
         .grid{{stroke:#8886;stroke-width:1}}rect{{fill:#fff}}\
         @media(prefers-color-scheme:dark){{text{{fill:#d0d7de}}rect{{fill:#0d1117}}}}</style>"
    )?;
    writeln!(svg, r#"<rect width="100%" height="100%"/>"#)?;
    for (place, curve) in curves.iter().enumerate() {
        let (y, colour) = (24.0 + 20.0 * place as f64, COLOURS[place % COLOURS.len()]);
        let is_dashed = dashed.contains(&curve.name);
        let dashes = if is_dashed { r#" stroke-dasharray="6 4""# } else { "" };
        writeln!(svg, r#"<path d="M{LEFT} {y}h28" stroke="{colour}" stroke-width="2"{dashes}/>"#)?;
        writeln!(svg, r#"<text x="{}" y="{}">{}</text>"#, LEFT + 36.0, y + 4.0, curve.name)?;
    }
    for panel in [&goodput, &latency] {
        panel.frame(svg)?;
    }
    for (place, curve) in curves.iter().enumerate() {
        let (colour, is_dashed) = (COLOURS[place % COLOURS.len()], dashed.contains(&curve.name));
        let good: Vec<_> = curve.points.iter().map(|point| (point.offered, point.goodput)).collect();
        let late: Vec<_> = curve.points.iter().filter_map(|point| Some((point.offered, point.p99_ms?))).collect();
        goodput.line(svg, colour, &good, is_dashed)?;
        latency.line(svg, colour, &late, is_dashed)?;
    }
    writeln!(
        svg,
        r#"<text x="{}" y="{}" text-anchor="end">load offered, as a part of what can be served</text>"#,
        WIDTH - RIGHT,
        height - 12.0
    )?;
    writeln!(svg, "</svg>")
}
