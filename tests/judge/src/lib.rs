//! Judges rate limiters: is a recorded history one that the limiter's promises allow?
//!
//! ```text
//! record ─▶ history ─▶ check     drives a system and writes down what it told; judges it, whoever wrote it
//!   clock                        one for all processes
//! faults                         starts systems, disturbs them, records, checks, and makes a table
//! ```

pub mod check;
mod clock;
pub mod faults;
pub mod history;
pub mod record;
