//! Options of connections, and what the two servers of HTTP/2 have in common.

use std::time::Duration;

/// A client answers a GOAWAY at once. After this time the connection waits for it only while its requests are decided.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// Bytes of a connection's half-received messages together, unless a single message may be larger.
const HALF_RECEIVED: usize = 1024 * 1024;
/// Room for the headers of the call with the largest message, and for its last frame, which may exceed the message.
const BESIDE_THE_LARGEST: usize = 64 * 1024;

/// Options of all connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// The age at which a client is asked to connect again, give or take a tenth; `Duration::MAX` for never.
    pub max_age: Duration,
    /// The time after that at which the connection is closed, even if calls are unanswered; `Duration::MAX` for never.
    pub max_age_grace: Duration,
    /// Largest request message.
    pub max_message_bytes: usize,
    /// Largest number of concurrent calls. Bounds the cost of a client that calls and does not read the answers.
    pub max_concurrent_streams: u32,
    /// What speaks HTTP/2.
    pub transport: Transport,
}

/// What speaks HTTP/2 on the gRPC port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The server for small calls of this crate.
    #[default]
    Front,
    /// hyper.
    Hyper,
}

impl Transport {
    /// Both variants.
    pub const ALL: [Transport; 2] = [Transport::Front, Transport::Hyper];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Front => "front",
            Transport::Hyper => "hyper",
        }
    }
}

/// Returns the bytes that a connection may hold of messages that are not complete.
pub(super) fn half_received(options: &ConnectionOptions) -> usize {
    HALF_RECEIVED.max(options.max_message_bytes + BESIDE_THE_LARGEST)
}

/// Returns the age, made up to a tenth shorter or longer by `chance`, a number from 0 to 1. It keeps connections that
/// begin together, such as those of a rollout, from ending together.
pub(super) fn spread(age: Duration, chance: f64) -> Duration {
    let spread = age.as_secs_f64() * (0.9 + 0.2 * chance);
    Duration::try_from_secs_f64(spread).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_by_a_tenth_and_never_stays_never() {
        let hour = Duration::from_secs(3600);
        assert_eq!([0.0, 0.5, 1.0].map(|chance| spread(hour, chance).as_secs()), [3240, 3600, 3960]);
        assert!(spread(Duration::MAX, 0.0) > hour * 24 * 366 * 100);
    }
}
