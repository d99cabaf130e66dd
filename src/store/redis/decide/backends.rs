//! One Redis, or two: limits of seconds can have a separate one, because their counters are created and expire most
//! often.
//!
//! A request with limits in both is decided like one with counters on several nodes; see [`scatter`].

use std::borrow::Borrow;
use std::sync::Arc;

use futures_util::future::Either;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::router::{self, Router};
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::spans::Current;
use crate::store::health::{Health, OnChange};
use crate::store::redis::doctor::StartError;
use crate::store::redis::script::slot::SLOTS;
use crate::store::redis::topology::Route;
use crate::store::scatter;

/// Limits with shorter periods than this count as limits of seconds.
const MINUTE_MS: u64 = 60_000;

/// The Redis backends, as one worker uses them.
#[derive(Clone)]
pub(crate) struct Backends {
    main: Router,
    per_second: Option<Router>,
}

/// A request to both.
struct SplitRequest {
    backends: Backends,
    /// The span of the request, if it is sampled.
    span: Option<Current>,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Main,
    PerSecond,
}

impl Backends {
    /// Connects from each of these runtimes, and keeps trying in the background if that fails. Returns the backends of
    /// each worker.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold there.
    pub(crate) async fn start(
        route: &Route,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Vec<Backends>, StartError> {
        let Some(per_second) = &route.per_second else {
            let main = Router::start(route, on_change, runtimes).await?;
            return Ok(main.into_iter().map(|main| Backends { main, per_second: None }).collect());
        };
        let both = Arc::new(Both::new(on_change));
        let main = Router::start(route, both.of(Which::Main), runtimes);
        let per_second = Router::start(per_second, both.of(Which::PerSecond), runtimes);
        let (main, per_second) = tokio::try_join!(main, per_second)?;
        let of_worker = |(main, per_second)| Backends { main, per_second: Some(per_second) };
        Ok(main.into_iter().zip(per_second).map(of_worker).collect())
    }

    /// Decides `checks` as one group, whichever Redis holds their counters.
    ///
    /// # Errors
    /// As [`Store::check`](crate::store::Store::check).
    pub(crate) fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: Instant,
        span: Option<Current>,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send {
        if self.per_second.is_none() {
            return Either::Left(router::check(&self.main, checks, deadline, span));
        }
        // Boxed to keep the future of a request to one Redis small.
        let request = Arc::new(SplitRequest { backends: self.clone(), span });
        Either::Right(Box::pin(async move { scatter::decide(&request, checks, deadline).await }))
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        self.main.flush_log();
        self.per_second.iter().for_each(Router::flush_log);
    }
}

impl scatter::Nodes for SplitRequest {
    type Node = Which;

    fn holder(&self, check: &Check) -> Which {
        if is_of_seconds(check) { Which::PerSecond } else { Which::Main }
    }

    async fn ask<C: Borrow<Check> + Sync>(
        &self,
        which: &Which,
        checks: &[C],
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        let Backends { main, per_second } = &self.backends;
        let nodes = if *which == Which::PerSecond { per_second.as_ref().unwrap_or(main) } else { main };
        router::check(nodes, checks, deadline, self.span.clone()).await
    }
}

/// The period of a concurrency limit is the longest time that a slot is held, not a period that counts hits.
pub(crate) fn is_of_seconds(check: &Check) -> bool {
    check.limit.period_ms() < MINUTE_MS && !check.limit.algorithm().has_holders()
}

/// The state of both backends, and the callback that gets it as a single state.
struct Both {
    on_change: OnChange,
    state: Mutex<[Option<Health>; 2]>,
}

impl Both {
    fn new(on_change: OnChange) -> Both {
        Both { on_change, state: Mutex::default() }
    }

    fn of(self: &Arc<Self>, which: Which) -> OnChange {
        let both = Arc::clone(self);
        Box::new(move |health| {
            // Under the lock, to report changes in their order.
            let mut state = both.state.lock();
            let before = together(*state);
            state[which as usize] = Some(health);
            if let Some(now) = together(*state).filter(|now| Some(*now) != before) {
                (both.on_change)(now);
            }
        })
    }
}

/// Returns `None` until both have been tried.
fn together(state: [Option<Health>; 2]) -> Option<Health> {
    let decided = |health| match health {
        Health::Up => (SLOTS, None),
        Health::Down(cause) => (0, Some(cause)),
        Health::Partly { slots, cause } => (slots, Some(cause)),
    };
    let [(one, cause), (other, other_cause)] = [decided(state[0]?), decided(state[1]?)];
    Some(match cause.or(other_cause) {
        None => Health::Up,
        Some(cause) if one == 0 && other == 0 => Health::Down(cause),
        Some(cause) => Health::Partly { slots: one.midpoint(other), cause },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Limit, Options};
    use crate::engine::check::{Key, Origin};

    #[test]
    fn limits_of_seconds_are_apart() {
        let of = |algorithm, seconds| {
            let limit = Limit::new(algorithm, 5, Duration::from_secs(seconds), Options::default()).unwrap();
            let key = Key::new("", "shop", &[], |_| None, &limit, Origin::Rule);
            is_of_seconds(&Check::new(key, limit, Ask::Take(1)))
        };
        assert!(of(Algorithm::FixedWindow, 1) && of(Algorithm::TokenBucket, 59));
        assert!(!of(Algorithm::FixedWindow, 60) && !of(Algorithm::Concurrency, 30));
    }

    #[test]
    fn two_are_as_well_as_both_are() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let both = Arc::new(Both::new(Box::new(move |health| heard.lock().push(health))));
        let [main, per_second] = [Which::Main, Which::PerSecond].map(|which| both.of(which));
        main(Health::Up);
        assert!(told.lock().is_empty(), "the other has not been tried yet");
        per_second(Health::Down("timeout"));
        main(Health::Down("full"));
        per_second(Health::Up);
        main(Health::Up);
        let half = |cause| Health::Partly { slots: 8_192, cause };
        assert_eq!(*told.lock(), [half("timeout"), Health::Down("full"), half("full"), Health::Up]);
    }
}
