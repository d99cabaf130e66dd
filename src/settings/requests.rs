//! What a request may be.

use clap::Args;

use super::whole;

/// What a request may be.
#[derive(Args, Clone, Debug)]
pub struct RequestSettings {
    /// The largest request in bytes. What a connection's half-received requests take together is bounded by a megabyte,
    /// or by this.
    #[arg(long, env = "MAX_MESSAGE_BYTES", value_name = "BYTES", default_value = "65536", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_message_bytes: u32,

    /// The most descriptors in a request. Envoy Gateway makes one of each of up to 256 rules.
    #[arg(long, env = "MAX_DESCRIPTORS", value_name = "NUMBER", default_value = "256", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_descriptors: u32,

    /// The most entries in a descriptor. Envoy Gateway makes one of each of up to 128 headers, and some more.
    #[arg(long, env = "MAX_ENTRIES", value_name = "NUMBER", default_value = "160", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_entries: u32,

    /// The longest key or domain in bytes.
    #[arg(long, env = "MAX_KEY_BYTES", value_name = "BYTES", default_value = "4096", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_key_bytes: u32,

    /// The longest value in bytes.
    #[arg(long, env = "MAX_VALUE_BYTES", value_name = "BYTES", default_value = "65536", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_value_bytes: u32,

    /// The most that counters in this process's memory may take, without Redis or in failure mode `local`. Unset: half
    /// of the memory that the process may use. At the bound the counters that are there go on, and a limit that needs a
    /// new one answers by its failure mode.
    #[arg(long, env = "MEMORY_STORE_SIZE_IN_BYTES", value_name = "BYTES", help_heading = "Requests",
        value_parser = whole(1..=u64::MAX))]
    pub memory_store_size_in_bytes: Option<u64>,

    /// The most requests that are delayed at once (`leaky_bucket` with `max_delay`); one more is denied.
    #[arg(long, env = "MAX_DELAYED_REQUESTS", value_name = "NUMBER", default_value = "10000", help_heading = "Requests",
        value_parser = whole(0..=u32::MAX))]
    pub max_delayed_requests: u32,
}
