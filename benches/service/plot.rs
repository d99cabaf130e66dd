//! Draws.

use std::time::Duration;

/// A line.
pub struct Curve {
    pub name: &'static str,
    /// What is offered, what of it is good, both in what can be served, and the 99th percentile in milliseconds.
    pub points: Vec<(f64, f64, f64)>,
}

pub fn picture(curves: &[Curve], deadline: Duration) -> String {
    let _ = (curves, deadline);
    String::new()
}
