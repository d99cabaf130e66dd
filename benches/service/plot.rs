//! Draws lines over one axis, in diagrams one above the other, as an SVG that can be read on light and on dark.

use std::fmt::Write as _;

/// Diagrams with a legend.
pub struct Picture {
    /// What screen readers say.
    pub title: &'static str,
    pub across: Axis,
    pub legend: Vec<Curve>,
    pub panels: Vec<Panel>,
}

/// A line of the legend, and of each diagram.
pub struct Curve {
    pub name: &'static str,
    pub is_dashed: bool,
}

/// An axis from 0 up, with a number at each step.
pub struct Axis {
    pub title: String,
    pub most: f64,
    pub step: f64,
}

/// A diagram.
pub struct Panel {
    pub up: Axis,
    pub height: f64,
    /// The points of each curve of the legend.
    pub lines: Vec<Vec<(f64, f64)>>,
}

/// Readable on white and on black.
const COLOURS: [&str; 6] = ["#2f81f7", "#e8590c", "#2b9348", "#9c6ade", "#888", "#b08800"];
const WIDTH: f64 = 760.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
/// Space between two diagrams, for the numbers of the one and the title of the other.
const BETWEEN: f64 = 80.0;
/// The most points of a line that each have a dot.
const DOTS: usize = 30;

impl Picture {
    /// Draws it.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a string takes everything");
        svg
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        let top = 60.0 + 20.0 * self.legend.len() as f64;
        let panels = self.panels.iter().scan(top, |next, panel| {
            let top = *next;
            *next += panel.height + BETWEEN;
            Some(Placed { across: &self.across, panel, top })
        });
        let panels: Vec<Placed<'_>> = panels.collect();
        let height = panels.last().map_or(top, |last| last.top + last.panel.height) + 50.0;
        writeln!(svg, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">"#)?;
        writeln!(svg, "<title>{}</title>", self.title)?;
        writeln!(
            svg,
            "<style>text{{font:13px sans-serif;fill:#24292f}}.title{{font-weight:bold}}\
             .grid{{stroke:#8886;stroke-width:1}}rect{{fill:#fff}}\
             @media(prefers-color-scheme:dark){{text{{fill:#d0d7de}}rect{{fill:#0d1117}}}}</style>"
        )?;
        writeln!(svg, r#"<rect width="100%" height="100%"/>"#)?;
        for (place, curve) in self.legend.iter().enumerate() {
            let (y, style) = (24.0 + 20.0 * place as f64, curve.style(place));
            writeln!(svg, r#"<path d="M{LEFT} {y}h28" {style}/>"#)?;
            writeln!(svg, r#"<text x="{}" y="{}">{}</text>"#, LEFT + 36.0, y + 4.0, curve.name)?;
        }
        for panel in &panels {
            panel.frame(svg)?;
        }
        for (place, curve) in self.legend.iter().enumerate() {
            for panel in &panels {
                panel.line(svg, place, curve)?;
            }
        }
        writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
            WIDTH - RIGHT,
            height - 12.0,
            self.across.title
        )?;
        writeln!(svg, "</svg>")
    }
}

impl Axis {
    fn steps(&self) -> impl Iterator<Item = f64> {
        (0..=(self.most / self.step).round() as u32).map(|step| f64::from(step) * self.step)
    }
}

impl Curve {
    /// Returns the attributes of its line.
    fn style(&self, place: usize) -> String {
        let dashes = if self.is_dashed { r#" stroke-dasharray="6 4""# } else { "" };
        format!(r#"stroke="{}" stroke-width="2"{dashes}"#, colour(place))
    }
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

/// A diagram at its place.
struct Placed<'p> {
    across: &'p Axis,
    panel: &'p Panel,
    top: f64,
}

impl Placed<'_> {
    fn place(&self, (across, up): (f64, f64)) -> (f64, f64) {
        let x = LEFT + across / self.across.most * (WIDTH - LEFT - RIGHT);
        (x, self.top + self.panel.height * (1.0 - (up / self.panel.up.most).min(1.0)))
    }

    fn frame(&self, svg: &mut String) -> std::fmt::Result {
        writeln!(svg, r#"<text x="{LEFT}" y="{}" class="title">{}</text>"#, self.top - 12.0, self.panel.up.title)?;
        for value in self.panel.up.steps() {
            let ((x1, y), (x2, _)) = (self.place((0.0, value)), self.place((self.across.most, value)));
            writeln!(svg, r#"<path d="M{x1:.1} {y:.1}H{x2:.1}" class="grid"/>"#)?;
            writeln!(svg, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{value}</text>"#, x1 - 8.0, y + 4.0)?;
        }
        for value in self.across.steps() {
            let (x, y) = self.place((value, 0.0));
            writeln!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{value}</text>"#, y + 18.0)?;
        }
        Ok(())
    }

    fn line(&self, svg: &mut String, place: usize, curve: &Curve) -> std::fmt::Result {
        let points: Vec<_> = self.panel.lines[place].iter().map(|point| self.place(*point)).collect();
        let path = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect::<Vec<_>>().join("L");
        writeln!(svg, r#"<path d="M{path}" fill="none" {}/>"#, curve.style(place))?;
        for (x, y) in points.iter().filter(|_| points.len() <= DOTS) {
            writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{}"/>"#, colour(place))?;
        }
        Ok(())
    }
}
