//! The bounds of connections and calls, which both HTTP/2 servers keep, and the statuses of calls that exceed them.

use std::time::Duration;

use tonic::Status;

use super::options::ConnectionOptions;

/// Silence after which a client is asked whether it is there.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// Time limit for the client's answer.
pub(super) const PONG: Duration = Duration::from_secs(20);

/// Longest time from a call's headers to the end of its message.
pub(super) const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// Longest time to wait for the rest of a message once the process drains.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(1);
/// A client answers a GOAWAY at once. After this time the connection waits for it only while its requests are decided.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// Bytes of a call that its client may send before they are read: HTTP/2's default.
pub(super) const STREAM_WINDOW: u32 = 65_535;
/// The same for all calls of a connection together. Reading makes room for more.
pub(super) const CONNECTION_WINDOW: u32 = 256 * 1024;

/// Memory of a header beyond its name and its value: its entry in a map.
pub(super) const HEADER_OVERHEAD: usize = 128;

/// Bytes of a connection's half-received messages together, unless a single message may be larger.
const HALF_RECEIVED: usize = 1024 * 1024;
/// Room for the headers of the call with the largest message, and for its last frame, which may exceed the message.
const BESIDE_THE_LARGEST: usize = 64 * 1024;

/// Maximum bytes of answers that the client has not read. A proxy may be too busy to read for a moment: all of its
/// 1,024 calls (the default maximum) can then have answers of 2 KB, which is some forty descriptors.
pub(super) const MAX_UNREAD: usize = 2 * 1024 * 1024;
/// Maximum bytes of one answer that wait for a slow client. The next message is produced once the client reads them.
pub(super) const MAX_UNREAD_ANSWER: usize = 64 * 1024;

/// Length of a turn. An answer belongs to the turn in which it was made, and must have been sent when the second turn
/// after it ends: after 10 to 15 seconds. Turns need no list of answers in their order.
pub(super) const TURN: Duration = Duration::from_secs(5);
/// Number of turns after which an unsent answer is overdue.
pub(super) const TURNS: usize = 3;

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

/// Returns the status of a call whose message is larger than allowed.
pub(super) fn too_large(length: usize, most: usize) -> Status {
    Status::resource_exhausted(format!(
        "the request has {length} bytes, more than the {most} that MAX_MESSAGE_BYTES allows"
    ))
}

/// Returns the status of a call whose message is incomplete after [`MESSAGE_TIME`].
pub(super) fn late() -> Status {
    Status::deadline_exceeded(format!("the request did not arrive completely within {MESSAGE_TIME:?}"))
}

/// Returns the status of a call that ends because the process does.
pub(super) fn draining() -> Status {
    Status::unavailable("the service is shutting down")
}

/// Returns the status of a call beyond the budget of half-received messages.
pub(super) fn too_much_half_received() -> Status {
    Status::resource_exhausted("this connection has too many bytes of incomplete requests")
}

/// Returns the status of a call with an answer beyond the budget of those that are unread.
pub(super) fn too_much_unread() -> Status {
    Status::resource_exhausted("the client does not read the responses of this connection")
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
