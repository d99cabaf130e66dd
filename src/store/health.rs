//! Whether the shared store is available.

/// The state of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Redis is available.
    Up,
    /// Redis is unavailable, with the cause in one word.
    Down(&'static str),
    /// Some slots of a cluster are available and others are not, or one of two Redises is, each counting for half.
    Partly {
        /// Number of available slots, out of [`Health::SLOTS`].
        slots: u16,
        /// The cause for one of the unavailable slots, in one word.
        cause: &'static str,
    },
}

impl Health {
    /// Number of slots of a cluster.
    pub const SLOTS: u16 = 16_384;

    /// All causes, each in one word.
    pub const CAUSES: [&str; 33] = [
        "unknown_host",
        "nobody_listens",
        "socket_forbidden",
        "unreachable",
        "timeout",
        "connection",
        "mute",
        "no_password",
        "wrong_password",
        "needless_password",
        "protected_mode",
        "no_permission",
        "tls",
        "not_redis",
        "full",
        "replica",
        "loading",
        "busy",
        "cannot_save",
        "few_replicas",
        "too_many_clients",
        "no_database",
        "cluster",
        "no_cluster",
        "cluster_down",
        "sentinel",
        "no_sentinel",
        "unknown_master",
        "too_old",
        "no_command",
        "no_script",
        "answer",
        "other",
    ];
}

/// Called whenever Redis becomes available or unavailable, the first time included, and whenever the cause changes.
pub type OnChange = Box<dyn Fn(Health) + Send + Sync>;
