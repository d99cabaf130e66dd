//! The gate to the administrators' paths. It determines the role of each client from its token, counts the requests,
//! logs those that are refused, and slows clients that try tokens.
//!
//! A valid token is never delayed, whoever else tries tokens from the same address. So all wrong tokens share one
//! allowance: it needs no memory for each address, further addresses (an IPv6 network has many) do not enlarge it, and
//! a proxy in front makes no difference.
//!
//! Ten wrong tokens are answered at once, further ones after a second each. At most [`MOST_DELAYED`] answers are
//! delayed at the same time. Wrong tokens beyond are answered at once by 429, with the result `throttled`: attempts in
//! parallel are refused rather than slowed. So the delay slows only scripts that try one token after the other, and
//! what protects a token is its length.
//!
//! A refused request is counted and logged before its delay, and its place among the delayed ones stays taken for a
//! second, even if the client hangs up meanwhile.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::admin::{Reason, Refusal, refuse};
use super::client::{Client, KnownClients, Standing};
use crate::metrics::AdminMetrics;
use crate::shared::adjustment::audit::{Action, Audit, Note};
use crate::sources::files::tokens::Role;
use crate::telemetry::Throttle;

/// Number of wrong tokens that are answered at once.
const BURST: u32 = 10;
/// Time after which one more wrong token is answered at once, and the delay of the answer to the others.
const DELAY: Duration = Duration::from_secs(1);
/// Most answers that are delayed at once. Wrong tokens beyond are answered by 429.
const MOST_DELAYED: usize = 32;
/// Longest path that is logged in bytes. An unauthorized client may send any ID in it.
const PATH_BYTES: usize = 64;

/// Refused tries of one holder that are recorded at once, and the time after which one more is. So a client that tries
/// again and again does not displace the tries of others from the audit trail.
const RECORDED: u32 = 5;
const RECORD_EVERY: Duration = Duration::from_secs(60);
/// Time after which tries with unknown tokens are recorded again, as one record with their number. Anybody may make
/// such tries, so they must not displace what is known of the holders of tokens.
const RECORD_UNKNOWN_EVERY: Duration = Duration::from_secs(6 * 60 * 60);
/// Name of those who send unknown tokens, in the audit trail.
const UNKNOWN: &str = "unknown token";

/// Most holders whose refused tries are told apart.
const MOST_HOLDERS: usize = 1_000;

/// Address of the client at the other end of the connection, an extension of each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Checks the tokens of requests to the administrators' paths.
pub(super) struct Gate {
    clients: KnownClients,
    metrics: AdminMetrics,
    /// Lines about refused requests, by result.
    refused: Throttle<&'static str>,
    wrong_tokens: WrongTokens,
    audit: Arc<Audit>,
    /// Name of this instance in the audit trail.
    instance: Option<String>,
    /// For each holder of a token, its allowance of recorded tries.
    tries: Mutex<HashMap<String, Tries>>,
}

/// Refused tries of a holder.
struct Tries {
    allowance: Allowance,
    /// Tries since the last record.
    more: u64,
}

impl Gate {
    pub(super) fn new(clients: KnownClients, metrics: AdminMetrics, audit: Arc<Audit>) -> Gate {
        Gate {
            clients,
            metrics,
            refused: Throttle::default(),
            wrong_tokens: WrongTokens::new(),
            audit,
            instance: None,
            tries: Mutex::default(),
        }
    }

    /// Names this instance in the audit trail.
    pub(super) fn of_instance(self, instance: Option<&str>) -> Gate {
        Gate { instance: instance.map(str::to_owned), ..self }
    }

    /// Returns the client, with the right to notice when its token changes; `None` without a valid token.
    fn client(&self, headers: &HeaderMap) -> Option<Standing> {
        self.clients.of(headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")?)
    }

    /// Records in the audit trail that a client was refused what its token does not permit.
    fn record_refusal(&self, client: &Client, about: &About, reason: &str) {
        let allowance = || Allowance::new(RECORDED, RECORD_EVERY);
        self.record_try((client.holder(), Some(client.role())), allowance, about, reason);
    }

    /// Records in the audit trail that somebody sent a token that is not known, now and then.
    fn record_unknown(&self, about: &About) {
        let reason = match &about.peer {
            Some(peer) => format!("the token is not known, from {}", peer.ip()),
            None => "the token is not known".to_owned(),
        };
        self.record_try((UNKNOWN, None), || Allowance::new(1, RECORD_UNKNOWN_EVERY), about, &reason);
    }

    fn record_try(
        &self,
        (who, role): (&str, Option<Role>),
        allowance: impl FnOnce() -> Allowance,
        about: &About,
        reason: &str,
    ) {
        let more = {
            let mut tries = self.tries.lock();
            if tries.len() >= MOST_HOLDERS {
                // Those that are full again are as new ones.
                tries.retain(|_, tries| !tries.allowance.is_full());
            }
            let own = tries.entry(who.to_owned()).or_insert_with(|| Tries { allowance: allowance(), more: 0 });
            if !own.allowance.take() {
                own.more += 1;
                return;
            }
            std::mem::take(&mut own.more)
        };
        let more = if more == 0 { String::new() } else { format!(" (and {more} tries since the last record)") };
        self.audit.record(
            Action::Refused,
            Note {
                who: Some(who.to_owned()),
                role: role.map(|role| role.name().to_owned()),
                instance: self.instance.clone(),
                target: Some(about.path.clone()),
                effect: Some(about.method.to_string()),
                reason: Some(format!("{reason}{more}")),
                ..Note::default()
            },
        );
    }

    /// Refuses a client without a valid token, slowly if many try tokens. Everything but the delay is done by the first
    /// poll, because the future is dropped when the client hangs up.
    async fn refuse_unknown(&self, has_token: bool, about: About) -> Refusal {
        let answer = if has_token { self.wrong_tokens.next() } else { Answer::AtOnce };
        let status = match answer {
            Answer::AtOnce | Answer::Delayed(_) => StatusCode::UNAUTHORIZED,
            Answer::TooMany => StatusCode::TOO_MANY_REQUESTS,
        };
        if has_token {
            self.record_unknown(&about);
        }
        self.record(None, status, about);
        match answer {
            Answer::AtOnce => {}
            Answer::Delayed(permit) => delay(permit).await,
            Answer::TooMany => return refuse(status, "too many wrong tokens at once: send the ADMIN_TOKEN"),
        }
        refuse(status, "send Authorization: Bearer and the ADMIN_TOKEN, or ADMIN_READ_TOKEN")
    }

    /// Counts a request, and logs it if the client had no right to make it.
    fn record(&self, role: Option<Role>, status: StatusCode, about: About) {
        let (role, result) = match role {
            None if status == StatusCode::TOO_MANY_REQUESTS => ("none", "throttled"),
            None => ("none", "unauthorized"),
            Some(role) if status == StatusCode::FORBIDDEN => (label(role), "forbidden"),
            Some(role) if status.is_server_error() => (label(role), "failed"),
            Some(role) if status.is_client_error() => (label(role), "invalid"),
            Some(role) => (label(role), "ok"),
        };
        self.metrics.record(role, result);
        if matches!(result, "unauthorized" | "throttled" | "forbidden") {
            self.refused.log(result, move || {
                move |times| {
                    let About { peer, method, path } = about;
                    let peer = peer.map(tracing::field::display);
                    tracing::warn!(peer, %method, path, role, result, times, "a request to the admin API was refused");
                }
            });
        }
    }
}

/// Returns the name of a role in metrics and in the log, which are older than the roles of a file.
const fn label(role: Role) -> &'static str {
    match role {
        Role::Read => "reader",
        role => role.name(),
    }
}

/// The parts of a request that are logged.
struct About {
    peer: Option<SocketAddr>,
    method: Method,
    path: String,
}

impl About {
    fn new(request: &Request) -> About {
        let peer = request.extensions().get().map(|Peer(address)| *address);
        let path = request.uri().path();
        // A path has ASCII characters only.
        let path = path.get(..path.len().min(PATH_BYTES)).unwrap_or_default().to_owned();
        About { peer, method: request.method().clone(), path }
    }
}

/// Passes a request with its client on to its path. Refuses clients without a valid token.
pub(super) async fn pass(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let (standing, about) = (gate.client(request.headers()), About::new(&request));
    let Some(standing) = standing else {
        let has_token = request.headers().contains_key(header::AUTHORIZATION);
        return gate.refuse_unknown(has_token, about).await.into_response();
    };
    let client = standing.client().clone();
    request.extensions_mut().insert(client.clone());
    request.extensions_mut().insert(Arc::new(standing));
    let answer = next.run(request).await;
    if answer.status() == StatusCode::FORBIDDEN {
        let reason = answer.extensions().get().map_or("", |Reason(reason)| reason);
        gate.record_refusal(&client, &about, reason);
    }
    gate.record(Some(client.role()), answer.status(), about);
    answer
}

/// The allowance that all wrong tokens share.
struct WrongTokens {
    allowance: Mutex<Allowance>,
    delayed: Arc<Semaphore>,
}

/// A number of events that may happen at once, and one more after each period.
struct Allowance {
    /// When it is full again.
    full: Instant,
    burst: u32,
    every: Duration,
}

impl Allowance {
    fn new(burst: u32, every: Duration) -> Allowance {
        Allowance { full: Instant::now(), burst, every }
    }

    /// Takes one, if there is one.
    fn take(&mut self) -> bool {
        let now = Instant::now();
        let next = self.full.max(now) + self.every;
        let is_allowed = next <= now + self.every * self.burst;
        if is_allowed {
            self.full = next;
        }
        is_allowed
    }

    fn is_full(&self) -> bool {
        self.full <= Instant::now()
    }
}

/// How a wrong token is answered.
enum Answer {
    AtOnce,
    /// After the delay, which holds this permit.
    Delayed(OwnedSemaphorePermit),
    /// By 429, because too many answers are delayed.
    TooMany,
}

/// Delays the answer to a wrong token. The permit is held for as long even if the future is dropped: a client that
/// hangs up and tries the next token is no faster.
async fn delay(permit: OwnedSemaphorePermit) {
    let delayed = tokio::spawn(async move {
        sleep(DELAY).await;
        drop(permit);
    });
    // Fails only if the process is ending.
    let _ = delayed.await;
}

impl WrongTokens {
    fn new() -> WrongTokens {
        let allowance = Mutex::new(Allowance::new(BURST, DELAY));
        WrongTokens { allowance, delayed: Arc::new(Semaphore::new(MOST_DELAYED)) }
    }

    /// Decides how the next wrong token is answered.
    fn next(&self) -> Answer {
        if self.allowance.lock().take() {
            return Answer::AtOnce;
        }
        Arc::clone(&self.delayed).try_acquire_owned().map_or(Answer::TooMany, Answer::Delayed)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::http::client::AdminTokens;
    use crate::metrics::Metrics;
    use crate::shared::adjustment::AdjustmentStore;
    use crate::shared::adjustment::audit::KEPT;
    use crate::shared::adjustment::board::MemoryAdjustments;

    fn gate(metrics: &Metrics) -> Arc<Gate> {
        let tokens = AdminTokens { admin: Some("a token of some length".into()), ..AdminTokens::default() };
        let store = Arc::new(AdjustmentStore::Memory(MemoryAdjustments::default()));
        let audit = Arc::new(Audit::new(store, Arc::new(Metrics::new(0.8).unwrap())));
        Arc::new(Gate::new(KnownClients::new(&tokens), metrics.admin().unwrap(), audit))
    }

    fn about() -> About {
        About { peer: None, method: Method::GET, path: "/top".into() }
    }

    async fn guess(gate: &Gate) -> StatusCode {
        gate.refuse_unknown(true, about()).await.into_response().status()
    }

    fn counted(metrics: &Metrics, result: &str) -> usize {
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        let name = format!("tollgate_admin_requests_total{{result=\"{result}\",role=\"none\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_are_slowed_and_their_number_in_progress_is_bounded() {
        let gate = gate(&Metrics::new(0.8).unwrap());
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(guess(&gate).await, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "a slip of the hand costs no time");
        for _ in 0..5 {
            assert_eq!(guess(&gate).await, StatusCode::UNAUTHORIZED);
        }
        // One in two finds the second that has passed meanwhile.
        assert!(start.elapsed() >= 2 * DELAY, "{:?}", start.elapsed());

        gate.wrong_tokens.allowance.lock().full = Instant::now() + DELAY * BURST;
        let many = (0..10 * MOST_DELAYED).map(|_| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { guess(&gate).await == StatusCode::UNAUTHORIZED })
        });
        let mut answered = 0;
        for one in many.collect::<Vec<_>>() {
            answered += usize::from(one.await.unwrap());
        }
        assert_eq!(answered, MOST_DELAYED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_hangs_up_during_the_delay_is_counted_and_its_place_stays_taken() {
        let metrics = Metrics::new(0.8).unwrap();
        let gate = gate(&metrics);
        gate.wrong_tokens.allowance.lock().full = Instant::now() + DELAY * BURST;
        for _ in 0..MOST_DELAYED {
            assert!(guess(&gate).now_or_never().is_none(), "the answer is delayed, and dropped");
        }
        assert_eq!((counted(&metrics, "unauthorized"), counted(&metrics, "throttled")), (MOST_DELAYED, 0));
        assert_eq!(guess(&gate).now_or_never(), Some(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(counted(&metrics, "throttled"), 1);
        sleep(2 * DELAY).await;
        gate.wrong_tokens.allowance.lock().full = Instant::now() + DELAY * BURST;
        assert_eq!(guess(&gate).await, StatusCode::UNAUTHORIZED, "the places are free again");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_tries_of_one_token_are_recorded_now_and_then_and_all_are_counted() {
        let gate = gate(&Metrics::new(0.8).unwrap());
        let standing = gate.clients.of(b"a token of some length").unwrap();
        let recorded = async || {
            // Writes what waits.
            tokio::select! {
                never = gate.audit.keep() => match never {},
                () = gate.audit.finish(DELAY) => {}
            }
            gate.audit.read(KEPT, 100).await.unwrap()
        };
        for _ in 0..100 {
            gate.record_refusal(standing.client(), &about(), "no");
        }
        assert_eq!(recorded().await.len(), RECORDED as usize);
        sleep(RECORD_EVERY).await;
        gate.record_refusal(standing.client(), &about(), "no");
        let all = recorded().await;
        assert_eq!(all.len(), RECORDED as usize + 1);
        let reason = "no (and 95 tries since the last record)";
        assert!(all.iter().any(|record| record.note.reason.as_deref() == Some(reason)), "{all:?}");

        // Anybody may send unknown tokens: they leave one record in hours.
        for _ in 0..100 {
            gate.record_unknown(&about());
        }
        sleep(RECORD_UNKNOWN_EVERY).await;
        gate.record_unknown(&about());
        let all = recorded().await;
        let unknown = all.iter().filter(|record| record.note.who.as_deref() == Some(UNKNOWN));
        let reasons: Vec<_> = unknown.filter_map(|record| record.note.reason.as_deref()).collect();
        let more = "the token is not known (and 99 tries since the last record)";
        assert!(reasons.len() == 2 && reasons.contains(&more), "{reasons:?}");
    }
}
