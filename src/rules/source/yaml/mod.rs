//! Rules in YAML.

pub(in crate::rules) mod document;
pub(in crate::rules) mod fields;
pub(in crate::rules) mod scalar;
