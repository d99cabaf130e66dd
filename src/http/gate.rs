//! The gate to the administrators' paths. It determines the role of each client from its token, counts the requests,
//! logs those that are refused, and slows clients that try tokens.
//!
//! A valid token is never delayed, whoever else tries tokens from the same address. So all wrong tokens share one
//! allowance: it needs no memory for each address, further addresses (an IPv6 network has many) do not enlarge it, and
//! a proxy in front makes no difference. The delay slows scripts that try one token after the other. What protects a
//! token is its length.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
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

    /// Refuses a client without a valid token, slowly if many try tokens.
    async fn refuse_unknown(&self, headers: &HeaderMap) -> Refusal {
        if headers.contains_key(header::AUTHORIZATION) && self.wrong_tokens.delay().await.is_err() {
            return refuse(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens at once: send the ADMIN_TOKEN");
        }
        refuse(StatusCode::UNAUTHORIZED, "send Authorization: Bearer and the ADMIN_TOKEN, or ADMIN_READ_TOKEN")
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
    let answer = match role {
        Some(role) => {
            request.extensions_mut().insert(role);
            next.run(request).await
        }
        None => gate.refuse_unknown(request.headers()).await.into_response(),
    };
    gate.record(role, answer.status(), about);
    answer
}

/// The allowance that all wrong tokens share.
struct WrongTokens {
    /// When the allowance is full again.
    full: Mutex<Instant>,
    delayed: Semaphore,
}

/// Too many answers are delayed.
struct TooMany;

impl WrongTokens {
    fn new() -> WrongTokens {
        WrongTokens { full: Mutex::new(Instant::now()), delayed: Semaphore::new(MOST_DELAYED) }
    }

    /// Waits before a wrong token is answered, if the allowance is used up.
    async fn delay(&self) -> Result<(), TooMany> {
        if self.take() {
            return Ok(());
        }
        let _permit = self.delayed.try_acquire().map_err(|_| TooMany)?;
        sleep(DELAY).await;
        Ok(())
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_are_slowed_and_their_number_in_progress_is_bounded() {
        let tokens = Arc::new(WrongTokens::new());
        let start = Instant::now();
        for _ in 0..BURST {
            assert!(tokens.delay().await.is_ok());
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "a slip of the hand costs no time");
        for _ in 0..5 {
            assert!(tokens.delay().await.is_ok());
        }
        // One in two finds the second that has passed meanwhile.
        assert!(start.elapsed() >= 2 * DELAY, "{:?}", start.elapsed());

        *tokens.full.lock() = Instant::now() + DELAY * BURST;
        let many = (0..10 * MOST_DELAYED).map(|_| {
            let tokens = Arc::clone(&tokens);
            tokio::spawn(async move { tokens.delay().await.is_ok() })
        });
        let mut answered = 0;
        for one in many.collect::<Vec<_>>() {
            answered += usize::from(one.await.unwrap());
        }
        assert_eq!(answered, MOST_DELAYED);
    }
}
