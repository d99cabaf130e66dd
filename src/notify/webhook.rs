//! Sends notices to a webhook, signed as in Standard Webhooks (<https://www.standardwebhooks.com>): an HMAC-SHA256 of
//! the ID, the time and the body, so that a receiver knows who sent them, and that they are neither changed nor old.

use std::fmt;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{Request, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ring::hmac;
use tokio::time::timeout;

use crate::connect::{Connector, Handshake, causes};
use crate::version::VERSION;

/// Longest time for one attempt, with the connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses before further attempts.
pub(super) const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// Longest time for all attempts.
pub(super) const LONGEST: Duration = Duration::from_secs(5 * 5 + 1 + 2 + 4 + 8);

/// Where notices go.
#[derive(Clone)]
pub struct Webhook {
    client: Client<Connector, Full<Bytes>>,
    url: Uri,
    secret: hmac::Key,
}

/// A secret that signs notices.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// The reason why a webhook has not taken a notice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// A later attempt may succeed.
    Now(String),
    /// The webhook refuses it.
    Ever(String),
}

impl Secret {
    /// Fewest bytes of a secret.
    pub const SHORTEST: usize = 16;
    /// What a secret in base64 begins with.
    pub const PREFIX: &str = "whsec_";

    /// Reads a secret: `whsec_` and base64, as Standard Webhooks has it, or any other text.
    ///
    /// # Errors
    /// If the base64 is invalid, or if the secret is too short.
    pub fn parse(text: &str) -> Result<Secret, String> {
        let bytes = match text.strip_prefix(Secret::PREFIX) {
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| "after whsec_, it must be base64".to_owned())?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.len() < Secret::SHORTEST {
            let least = Secret::SHORTEST;
            return Err(format!("has {} bytes, which is too easy to guess: it needs at least {least}", bytes.len()));
        }
        Ok(Secret(bytes))
    }
}

/// Formats without the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Webhook {
    /// Returns access to the webhook at this URL, without a connection yet.
    pub fn new(url: Uri, secret: &Secret, handshake: Option<Handshake>) -> Webhook {
        let client = Client::builder(TokioExecutor::new()).build(Connector::new(handshake));
        Webhook { client, url, secret: hmac::Key::new(hmac::HMAC_SHA256, &secret.0) }
    }

    /// Sends a notice, and tries again if a later attempt may succeed. At most one attempt is under way.
    ///
    /// # Errors
    /// The reason of the last attempt.
    pub(super) async fn send(&self, id: &str, body: Vec<u8>) -> Result<(), String> {
        let (body, mut pauses) = (Bytes::from(body), PAUSES.iter());
        loop {
            match (self.attempt(id, body.clone()).await, pauses.next()) {
                (Ok(()), _) => return Ok(()),
                (Err(NotTaken::Now(_)), Some(pause)) => tokio::time::sleep(*pause).await,
                (Err(NotTaken::Now(why) | NotTaken::Ever(why)), _) => return Err(why),
            }
        }
    }

    async fn attempt(&self, id: &str, body: Bytes) -> Result<(), NotTaken> {
        let seconds = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
        let request = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, format!("tollgate/{VERSION}"))
            .header("webhook-id", id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", self.signature(id, seconds, &body))
            .body(Full::new(body));
        let request = request.map_err(|error| NotTaken::Ever(error.to_string()))?;
        match timeout(TIMEOUT, self.client.request(request)).await {
            Ok(Ok(response)) => taken(response.status()),
            Ok(Err(error)) => Err(NotTaken::Now(causes(&error))),
            Err(_) => Err(NotTaken::Now(format!("no answer within {TIMEOUT:?}"))),
        }
    }

    fn signature(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut signed = format!("{id}.{seconds}.").into_bytes();
        signed.extend_from_slice(body);
        format!("v1,{}", STANDARD.encode(hmac::sign(&self.secret, &signed)))
    }
}

/// Tells from the status whether the webhook has taken a notice.
fn taken(status: StatusCode) -> Result<(), NotTaken> {
    let why = || format!("it answers {status}");
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(NotTaken::Now(why())),
        _ if status.is_server_error() => Err(NotTaken::Now(why())),
        _ => Err(NotTaken::Ever(why())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification of Standard Webhooks.
    #[test]
    fn a_notice_is_signed_as_the_standard_has_it() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let webhook = Webhook::new(Uri::from_static("http://localhost/"), &secret, None);
        let signature = webhook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn secrets_are_read_as_base64_or_as_a_text_and_are_not_shown() {
        assert!(Secret::parse("whsec_%").unwrap_err().contains("base64"));
        assert!(Secret::parse("whsec_c2hvcnQ=").unwrap_err().contains("has 5 bytes"));
        assert_eq!(Secret::parse("sixteen letters!").unwrap().0, b"sixteen letters!");
        assert_eq!(format!("{:?}", Secret::parse("sixteen letters!").unwrap()), "Secret");
    }

    #[test]
    fn only_what_may_pass_later_is_tried_again() {
        let of = |status| taken(StatusCode::from_u16(status).unwrap());
        for status in [200, 202, 204] {
            assert_eq!(of(status), Ok(()), "{status}");
        }
        for status in [408, 429, 500, 503] {
            assert!(matches!(of(status), Err(NotTaken::Now(_))), "{status}");
        }
        for status in [301, 400, 401, 404, 410] {
            assert!(matches!(of(status), Err(NotTaken::Ever(_))), "{status}");
        }
        let pauses: Duration = PAUSES.iter().sum();
        assert_eq!(LONGEST, pauses + TIMEOUT * (PAUSES.len() as u32 + 1));
    }
}
