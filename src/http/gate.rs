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

use super::admin::{AdminRole, AdminTokens, Refusal, refuse};
use crate::metrics::AdminMetrics;
use crate::telemetry::Throttle;

/// Number of wrong tokens that are answered at once.
const BURST: u32 = 10;
/// Time after which one more wrong token is answered at once, and the delay of the answer to the others.
const DELAY: Duration = Duration::from_secs(1);
/// Most answers that are delayed at once. Wrong tokens beyond are answered by 429.
const MOST_DELAYED: usize = 32;
/// Longest path that is logged in bytes. An unauthorized client may send any ID in it.
const PATH_BYTES: usize = 64;

/// Address of the client at the other end of the connection, an extension of each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Checks the tokens of requests to the administrators' paths.
pub(super) struct Gate {
    /// Hashes of the valid values of the header `Authorization`.
    tokens: Vec<(AdminRole, blake3::Hash)>,
    metrics: AdminMetrics,
    /// Lines about refused requests, by result.
    refused: Throttle<&'static str>,
    wrong_tokens: WrongTokens,
}

impl Gate {
    pub(super) fn new(tokens: &AdminTokens, metrics: AdminMetrics) -> Gate {
        let AdminTokens { admin, reader } = tokens;
        let hash = |token: &String| blake3::hash(format!("Bearer {token}").as_bytes());
        let admin = admin.as_ref().map(|token| (AdminRole::Admin, hash(token)));
        let reader = reader.as_ref().map(|token| (AdminRole::Reader, hash(token)));
        let tokens = admin.into_iter().chain(reader).collect();
        Gate { tokens, metrics, refused: Throttle::default(), wrong_tokens: WrongTokens::new() }
    }

    /// Returns the role of a client; `None` without a valid token. Compares hashes: the response time then reveals
    /// nothing about a token.
    fn role(&self, headers: &HeaderMap) -> Option<AdminRole> {
        let given = headers.get(header::AUTHORIZATION)?;
        let given = blake3::hash(given.as_bytes());
        self.tokens.iter().find(|(_, token)| *token == given).map(|(role, _)| *role)
    }

    /// Refuses a client without a valid token, slowly if many try tokens. Everything but the delay is done by the first
    /// poll, because the future is dropped when the client hangs up.
    async fn refuse_unknown(&self, has_token: bool, about: About) -> Refusal {
        let answer = if has_token { self.wrong_tokens.next() } else { Answer::AtOnce };
        let status = match answer {
            Answer::AtOnce | Answer::Delayed(_) => StatusCode::UNAUTHORIZED,
            Answer::TooMany => StatusCode::TOO_MANY_REQUESTS,
        };
        self.record(None, status, about);
        match answer {
            Answer::AtOnce => {}
            Answer::Delayed(permit) => delay(permit).await,
            Answer::TooMany => return refuse(status, "too many wrong tokens at once: send the ADMIN_TOKEN"),
        }
        refuse(status, "send Authorization: Bearer and the ADMIN_TOKEN, or ADMIN_READ_TOKEN")
    }

    /// Counts a request, and logs it if the client had no right to make it.
    fn record(&self, role: Option<AdminRole>, status: StatusCode, about: About) {
        let (role, result) = match role {
            None if status == StatusCode::TOO_MANY_REQUESTS => ("none", "throttled"),
            None => ("none", "unauthorized"),
            Some(role) if status == StatusCode::FORBIDDEN => (role.name(), "forbidden"),
            Some(role) if status.is_server_error() => (role.name(), "failed"),
            Some(role) if status.is_client_error() => (role.name(), "invalid"),
            Some(role) => (role.name(), "ok"),
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

/// Passes a request with the role of its client on to its path. Refuses clients without a valid token.
pub(super) async fn pass(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let (role, about) = (gate.role(request.headers()), About::new(&request));
    let Some(role) = role else {
        let has_token = request.headers().contains_key(header::AUTHORIZATION);
        return gate.refuse_unknown(has_token, about).await.into_response();
    };
    request.extensions_mut().insert(role);
    let answer = next.run(request).await;
    gate.record(Some(role), answer.status(), about);
    answer
}

/// The allowance that all wrong tokens share.
struct WrongTokens {
    /// When the allowance is full again.
    full: Mutex<Instant>,
    delayed: Arc<Semaphore>,
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
        WrongTokens { full: Mutex::new(Instant::now()), delayed: Arc::new(Semaphore::new(MOST_DELAYED)) }
    }

    /// Decides how the next wrong token is answered.
    fn next(&self) -> Answer {
        if self.take() {
            return Answer::AtOnce;
        }
        Arc::clone(&self.delayed).try_acquire_owned().map_or(Answer::TooMany, Answer::Delayed)
    }

    /// Takes one from the allowance, if there is one.
    fn take(&self) -> bool {
        let now = Instant::now();
        let mut full = self.full.lock();
        let next = (*full).max(now) + DELAY;
        let is_allowed = next <= now + DELAY * BURST;
        if is_allowed {
            *full = next;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::metrics::Metrics;

    fn gate(metrics: &Metrics) -> Arc<Gate> {
        let tokens = AdminTokens { admin: Some("a token of some length".into()), reader: None };
        Arc::new(Gate::new(&tokens, metrics.admin().unwrap()))
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

        *gate.wrong_tokens.full.lock() = Instant::now() + DELAY * BURST;
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
        *gate.wrong_tokens.full.lock() = Instant::now() + DELAY * BURST;
        for _ in 0..MOST_DELAYED {
            assert!(guess(&gate).now_or_never().is_none(), "the answer is delayed, and dropped");
        }
        assert_eq!((counted(&metrics, "unauthorized"), counted(&metrics, "throttled")), (MOST_DELAYED, 0));
        assert_eq!(guess(&gate).now_or_never(), Some(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(counted(&metrics, "throttled"), 1);
        sleep(2 * DELAY).await;
        *gate.wrong_tokens.full.lock() = Instant::now() + DELAY * BURST;
        assert_eq!(guess(&gate).await, StatusCode::UNAUTHORIZED, "the places are free again");
    }
}
