//! Limits on requests.

use clap::Args;

use super::whole;

/// Limits on requests.
#[derive(Args, Clone, Debug)]
pub struct RequestSettings {
    /// Largest request in bytes. Half-received requests of a connection may together take this size, or one megabyte if
    /// that is more.
    #[arg(long, env = "MAX_MESSAGE_BYTES", value_name = "BYTES", default_value = "4194304", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_message_bytes: u32,

    /// Most descriptors in a request. Envoy Gateway sends one for each rule, up to 256.
    #[arg(long, env = "MAX_DESCRIPTORS", value_name = "NUMBER", default_value = "256", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_descriptors: u32,

    /// Most entries in a descriptor. Envoy Gateway sends one for each header, up to 128, and some more.
    #[arg(long, env = "MAX_ENTRIES", value_name = "NUMBER", default_value = "160", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_entries: u32,

    /// Longest key or domain in bytes.
    #[arg(long, env = "MAX_KEY_BYTES", value_name = "BYTES", default_value = "4096", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_key_bytes: u32,

    /// Longest value in bytes.
    #[arg(long, env = "MAX_VALUE_BYTES", value_name = "BYTES", default_value = "65536", help_heading = "Requests",
        value_parser = whole(1..=u32::MAX))]
    pub max_value_bytes: u32,

    /// Most bytes for counters in the memory of this process, without Redis or in failure mode `local`. Unset: half of
    /// the memory that the process may use. At the bound, existing counters continue, and a limit that needs a new one
    /// answers by its failure mode.
    #[arg(long, env = "MEMORY_STORE_SIZE_IN_BYTES", value_name = "BYTES", help_heading = "Requests",
        value_parser = whole(1..=u64::MAX))]
    pub memory_store_size_in_bytes: Option<u64>,

    /// Most requests delayed at once (`leaky_bucket` with `max_delay`). A further one is denied.
    #[arg(long, env = "MAX_DELAYED_REQUESTS", value_name = "NUMBER", default_value = "10000", help_heading = "Requests",
        value_parser = whole(0..=u32::MAX))]
    pub max_delayed_requests: u32,
}
