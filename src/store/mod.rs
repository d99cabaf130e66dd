//! The stores of counters. A store decides all the checks of a request together, atomically, on its own clock.

pub mod any;
pub mod denied;
pub mod health;
pub mod lease;
pub mod memory;
pub mod redis;
pub mod scatter;
pub mod share;
mod sharded;
pub mod timed;

use std::borrow::Borrow;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};

/// The longest pause between two attempts to reach a store that is unavailable.
pub const RETRY: Duration = Duration::from_millis(500);

/// A store of counters.
pub trait Store: Send + Sync + 'static {
    /// Decides `checks` as one group. If the request passes, charges all of them; if it is denied, charges only
    /// refunds, charges taken back, and limits that count denials. Returns the verdicts in the order of the checks.
    ///
    /// # Errors
    /// If the store does not answer before `deadline`. It is then unknown whether anything was charged; nothing is
    /// charged twice.
    fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: Instant,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;

    /// Returns a known denial of this check that still holds, for use while the store is unavailable.
    fn known_denial(&self, _check: &Check) -> Option<CheckVerdict> {
        None
    }

    /// Refunds the hits that leases hold, until `deadline`. Called once, after the last request.
    fn close(&self, _deadline: Instant) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Logs what the log throttles hold back, before the process ends.
    fn flush_log(&self) {}
}
