//! Tollgate, a rate-limit service for Envoy.

pub mod algorithm;
pub mod descriptor;
pub mod rules;
