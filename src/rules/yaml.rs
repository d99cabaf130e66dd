//! The shape of a rules file.
