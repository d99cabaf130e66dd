//! The interface of observers.

use std::fmt::Display;
use std::sync::Arc;

use crate::engine::adjustment::InForce;
use crate::engine::decision::Decision;
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
