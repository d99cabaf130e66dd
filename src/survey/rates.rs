//! Decisions a second of each instance.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Ask, Local, Parts, sent_as};
use crate::observe::history::Second;

/// Number of seconds that a rate covers.
const RECENT: usize = 15;

/// A question for the decisions a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RatesQuestion {}

impl Ask for RatesQuestion {
    type Part = f64;

    fn answer(&self, local: &Local) -> Option<f64> {
        Some(rate(&local.history.as_ref()?.last(RECENT)))
    }

    fn shorter(&self) -> Option<RatesQuestion> {
        None
    }

    sent_as!(Rates);
}

fn rate(seconds: &[Second]) -> f64 {
    let decisions: u64 = seconds.iter().map(|second| second.passed + second.denied).sum();
    decisions as f64 / seconds.len().max(1) as f64
}

/// Returns the rate of each instance by its ID.
pub fn merge(parts: Parts<f64>) -> HashMap<String, f64> {
    parts.parts.into_iter().collect()
}
