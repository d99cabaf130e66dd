//! Judges rate limiters: is a recorded history one that the limiter's promises allow?
//!
//! ```text
//! record ─▶ history ─▶ check     drives a system and writes down what it told; judges it, whoever wrote it
//!   clock                        one for all processes
//! ```

pub mod check;
mod clock;
pub mod history;
pub mod record;
