//! The interface of observers.

use std::fmt::Display;
use std::sync::Arc;

use crate::engine::adjustment::InForce;
use crate::engine::asked::Asked;
use crate::engine::decision::{DecidedBy, Decision};
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;

/// An observer of the decisions of a process.
pub trait Observer: Send + Sync + 'static {
    /// Returns the watch over decisions by these rules, which are put in force now. The previous watch may still
    /// receive a decision by the previous rules.
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch>;
}

/// A watch over the decisions by one set of rules.
pub trait Watch: Send + Sync + 'static {
    /// Receives a decision. The request waits for this call, so it must be fast and must not block.
    fn decided(&self, observed: &Observed<'_, '_>);

    /// Receives a call that failed for one of these causes although its limits were known. It must be as fast as
    /// [`Watch::decided`].
    fn failed(&self, _failed: &Failed<'_, '_>) {}
}

/// A call that failed without a decision.
pub struct Failed<'d, 'a> {
    /// The request.
    pub request: &'d Request,
    /// The limits for which it failed.
    pub asked: &'d [Asked<'a>],
    /// Why it failed.
    pub cause: FailedBy,
    /// The caller's ID for the request, if it sent one.
    pub request_id: Option<&'d dyn Display>,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBy {
    /// The store was unavailable, and a limit has the failure mode `error`.
    FailureModeError,
    /// The store had no room for further requests.
    Overloaded,
    /// The caller's deadline was over before the limits were asked.
    DeadlineExceeded,
}

impl FailedBy {
    /// All causes.
    pub const ALL: [FailedBy; 3] = [FailedBy::FailureModeError, FailedBy::Overloaded, FailedBy::DeadlineExceeded];

    /// Returns the name in the decision log.
    pub const fn name(self) -> &'static str {
        match self {
            FailedBy::FailureModeError => DecidedBy::FailureModeError.name(),
            FailedBy::Overloaded => "overloaded",
            FailedBy::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

/// A decision with its request.
pub struct Observed<'d, 'a> {
    /// The decided request.
    pub request: &'d Request,
    /// The decision.
    pub decision: &'d Decision<'a>,
    /// The adjustments that it was made with, if any.
    pub adjustments: Option<&'d Arc<InForce>>,
    /// The caller's ID for the request, if it sent one.
    pub request_id: Option<&'d dyn Display>,
}
