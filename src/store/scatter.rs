//! A request whose counters lie on several nodes.
//!
//! Each node decides its part as one group. All of them are asked at the same time, and each charges what passes there.
//! Where the whole request is denied, what was charged is taken back where it was put. Meanwhile another request may be
//! refused too early; too much is never admitted.
//!
//! - A quota denies together with all other quotas of the request, which no node sees. So each node takes quotas for
//!   limits in shadow mode, and the votes are counted here.
//! - Where a node does not answer, the verdicts of the others stand ([`StoreError::Partly`]). If one of them denies the
//!   request, what the others have charged is taken back; if none does, whoever asks concludes what becomes of it.
//! - A caller that goes away ends nothing: a task brings what it has begun to its end.
//! - What has not been taken back when [`PATIENCE`] is over, or when a node has failed while it was asked to, stays
//!   charged: nobody knows whether it is, and nothing is taken back twice.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::group::{self, Votes};
use super::{Check, CheckVerdict, Key, Partly, StoreError, Verdicts};
use crate::algorithm::Verdict;
use crate::descriptor::Role;

/// How long a node that cannot be asked is waited for, to take back what it has charged.
const PATIENCE: Duration = Duration::from_secs(1);
/// The first pause between two attempts, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Nodes that decide, each what it holds.
pub trait Nodes: Send + Sync + 'static {
    /// One of them.
    type Node: PartialEq + Send + Sync + 'static;

    /// The node that holds this counter.
    fn holder(&self, key: &Key) -> Self::Node;

    /// Asks one node to decide these checks as one group, until `deadline`.
    ///
    /// # Errors
    /// As [`Store::check`](super::Store::check).
    fn ask<C: Borrow<Check> + Sync>(
        &self,
        node: &Self::Node,
        checks: &[C],
        deadline: Instant,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;
}

/// Decides `checks` as one group, wherever their counters lie.
///
/// # Errors
/// As [`Store::check`](super::Store::check), and [`StoreError::Partly`].
pub async fn decide<N: Nodes, C: Borrow<Check> + Sync>(
    nodes: &Arc<N>,
    checks: &[C],
    deadline: Instant,
) -> Result<Verdicts, StoreError> {
    let Some(first) = checks.first() else { return Ok(Verdicts::new()) };
    let node = nodes.holder(&first.borrow().key);
    if checks[1..].iter().all(|check| nodes.holder(&check.borrow().key) == node) {
        return nodes.ask(&node, checks, deadline).await;
    }
    let request = Request::split(&**nodes, checks);
    let (answer, answered) = oneshot::channel();
    tokio::spawn(request.run(Arc::clone(nodes), deadline, answer));
    let ended = || StoreError::Connection("the task that asked several nodes has ended".into());
    answered.await.unwrap_or_else(|_| Err(ended()))
}

/// A request in parts.
struct Request<N> {
    parts: Vec<Part<N>>,
    /// Its checks in their order: in which part each is and at which place there, and what its denial means.
    order: SmallVec<[(usize, usize, Role); 4]>,
}

/// What one node decides.
struct Part<N> {
    node: N,
    checks: Vec<Check>,
}

/// What a node has said to its part.
type Reply = Result<Verdicts, StoreError>;

impl<N: PartialEq + Send + Sync + 'static> Request<N> {
    fn split<C: Borrow<Check>>(nodes: &impl Nodes<Node = N>, checks: &[C]) -> Request<N> {
        let mut parts: Vec<Part<N>> = Vec::with_capacity(2);
        let mut order = SmallVec::with_capacity(checks.len());
        for check in checks.iter().map(Borrow::borrow) {
            let node = nodes.holder(&check.key);
            let part = parts.iter().position(|part| part.node == node).unwrap_or_else(|| {
                parts.push(Part { node, checks: Vec::new() });
                parts.len() - 1
            });
            let checks = &mut parts[part].checks;
            order.push((part, checks.len(), check.role));
            let role = if check.role == Role::Quota { Role::Shadow } else { check.role };
            checks.push(Check { role, ..check.clone() });
        }
        Request { parts, order }
    }

    /// Asks the nodes, answers by `deadline`, and takes back what must be.
    async fn run(
        self,
        nodes: Arc<impl Nodes<Node = N>>,
        deadline: Instant,
        answer: oneshot::Sender<Result<Verdicts, StoreError>>,
    ) {
        let asked = self.parts.iter().map(|part| nodes.ask(&part.node, &part.checks, deadline));
        let mut replies: Vec<Reply> = join_all(asked).await;
        if !self.is_denied(&replies) {
            // Whoever asks may have gone away.
            let _ = answer.send(self.answer(&replies, false));
            return;
        }
        let owed: Vec<Vec<(usize, Check)>> =
            self.parts.iter().zip(&replies).map(|(part, reply)| part.owed(reply)).collect();
        let returns = self.parts.iter().zip(&owed).map(|(part, owed)| part.take_back(&*nodes, owed));
        let mut returns = std::pin::pin!(join_all(returns));
        tokio::select! {
            biased;
            returned = &mut returns => {
                for ((reply, owed), returned) in replies.iter_mut().zip(&owed).zip(returned) {
                    note_returned(reply, owed, returned);
                }
                let _ = answer.send(self.answer(&replies, true));
            }
            () = sleep_until(deadline) => {
                let _ = answer.send(self.answer(&replies, true));
                returns.await;
            }
        }
    }

    /// What has been said to the request, check by check; a check that is undecided has none.
    fn verdicts(&self, replies: &[Reply]) -> Verdicts {
        let of_check = |(part, place, _): &(usize, usize, Role)| said(&replies[*part]).get(*place).copied().flatten();
        self.order.iter().map(of_check).collect()
    }

    /// Whether what has been said denies the request.
    fn is_denied(&self, replies: &[Reply]) -> bool {
        let mut votes = Votes::default();
        for ((part, place, role), verdict) in self.order.iter().zip(self.verdicts(replies)) {
            votes.add(*role, &self.parts[*part].checks[*place], verdict.is_some_and(|verdict| !verdict.allowed()));
        }
        votes.deny()
    }

    fn answer(&self, replies: &[Reply], denied: bool) -> Result<Verdicts, StoreError> {
        let decided = self.verdicts(replies);
        let Some(error) = replies.iter().find_map(|reply| reply.as_ref().err()) else { return Ok(decided) };
        let error = if let StoreError::Partly(partly) = error { &partly.error } else { error }.clone();
        if decided.iter().all(Option::is_none) {
            return Err(error);
        }
        Err(StoreError::Partly(Box::new(Partly { decided, denied, error })))
    }
}

impl<N: Send + Sync> Part<N> {
    /// What is to be taken back where the request is denied: which check, and by what. A part that has denied itself
    /// has charged nothing.
    fn owed(&self, reply: &Reply) -> Vec<(usize, Check)> {
        let decided = || {
            let verdicts = self.checks.iter().zip(said(reply)).enumerate();
            verdicts.filter_map(|(place, (check, verdict))| Some((place, check, verdict.as_ref()?)))
        };
        if decided().any(|(_, check, verdict)| check.role == Role::Enforced && !verdict.allowed()) {
            return Vec::new();
        }
        decided().filter_map(|(place, check, verdict)| Some((place, group::take_back(check, verdict)?))).collect()
    }

    /// Takes that back, once; a node that is known not to have been asked is asked again for a while.
    async fn take_back(&self, nodes: &impl Nodes<Node = N>, owed: &[(usize, Check)]) -> Option<Verdicts> {
        if owed.is_empty() {
            return None;
        }
        let checks: Vec<&Check> = owed.iter().map(|(_, check)| check).collect();
        let (end, mut pause) = (Instant::now() + PATIENCE, PAUSE.0);
        loop {
            match nodes.ask(&self.node, &checks, end).await {
                Ok(verdicts) => return Some(verdicts),
                Err(error) if error.changes_nothing() && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(error) => {
                    tracing::debug!(%error, "what a denied request was charged may stay charged");
                    return None;
                }
            }
        }
    }
}

/// What has been decided.
fn said(reply: &Reply) -> &[Option<CheckVerdict>] {
    match reply {
        Ok(verdicts) => verdicts,
        Err(error) => error.partly().map_or(&[], |partly| &partly.decided),
    }
}

/// What remains is what is there after it has been taken back.
fn note_returned(reply: &mut Reply, owed: &[(usize, Check)], returned: Option<Verdicts>) {
    let (Ok(verdicts), Some(returned)) = (reply, returned) else { return };
    for ((place, _), after) in owed.iter().zip(returned) {
        if let (Some(Some(verdict)), Some(after)) = (verdicts.get_mut(*place), after) {
            let Verdict { remaining, excess, reset_after_ms, .. } = after.own;
            verdict.own = Verdict { remaining, excess, reset_after_ms, ..verdict.own };
        }
    }
}
