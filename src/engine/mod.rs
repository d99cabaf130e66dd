//! The pure engine: which limits a request meets, what they decide, and what that means for the request. It does no
//! I/O, and reads no clock: `now` is an argument.

pub mod printable;
pub mod wildcard;
pub mod descriptor;
pub mod algorithm;
pub mod price;
pub mod share;
pub mod usage;
pub mod adjustment;
pub mod denied_body;
pub mod rules;
pub mod clock;
pub mod check;
pub mod asked;
pub mod decision;
pub mod denial;
pub mod plan;
pub mod explain;
