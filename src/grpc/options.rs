//! Options of connections.

use std::time::Duration;

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
