//! Settings of `envoyproxy/ratelimit` that have no counterpart here. A process that came with them must not silently
//! run without.

/// A variable that is set and that means something this process does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The variable and its value.
    pub setting: String,
    /// What to do about it.
    pub advice: &'static str,
    /// Whether answers would be other than expected, or less protected: then the process does not start.
    pub fatal: bool,
}

/// A variable, the values that ask for nothing, whether it is fatal, and what to do about it.
type Row = (&'static str, &'static [&'static str], bool, &'static str);

const OFF: &[&str] = &["", "0", "f", "F", "false", "False", "FALSE"];

const ROWS: &[Row] = &[
    ("CONFIG_TYPE", &["", "FILE"], true, "rules come from files: unset it and name them with RULES"),
    ("GRPC_SERVER_USE_TLS", OFF, true, "TLS is not supported: unset it, and put a TLS proxy in front"),
    ("GRPC_UDS", &[""], true, "gRPC listens on TCP: unset it and use GRPC_HOST and GRPC_PORT"),
    ("QUOTA_MODE", OFF, true, "set quota_mode on the rules instead"),
    ("REDIS_PERSECOND", OFF, true, "one Redis holds all counters: unset it"),
    ("REDIS_TLS", OFF, true, "TLS to Redis is not supported: unset it"),
    ("REDIS_TYPE", &["", "SINGLE", "Single", "single"], true, "a single Redis is supported: use SINGLE"),
    ("RESPONSE_DYNAMIC_METADATA", OFF, false, "dynamic metadata is not sent"),
    ("TRACING_ENABLED", OFF, false, "traces are not exported"),
    ("USE_DOG_STATSD", OFF, false, "metrics are at /metrics of the HTTP port, for Prometheus"),
    ("USE_STATSD", OFF, false, "metrics are at /metrics of the HTTP port, for Prometheus"),
];

/// What of the environment asks for something that is not here.
pub fn unsupported(variable: impl Fn(&str) -> Option<String>) -> Vec<Unsupported> {
    ROWS.iter()
        .filter_map(|(name, harmless, fatal, advice)| {
            let value = variable(name).filter(|value| !harmless.contains(&value.as_str()))?;
            Some(Unsupported { setting: format!("{name}={value}"), advice, fatal: *fatal })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_nothing_is_no_problem() {
        assert_eq!(unsupported(|_| None), []);
        for (name, harmless, ..) in ROWS {
            for value in *harmless {
                assert_eq!(unsupported(|asked| (asked == *name).then(|| (*value).to_owned())), []);
            }
        }
    }

    #[test]
    fn a_cluster_is_refused_and_statsd_is_only_reported() {
        let found = unsupported(|name| match name {
            "REDIS_TYPE" => Some("CLUSTER".into()),
            "USE_STATSD" => Some("true".into()),
            _ => None,
        });
        let found: Vec<_> = found.iter().map(|unsupported| (unsupported.setting.as_str(), unsupported.fatal)).collect();
        assert_eq!(found, [("REDIS_TYPE=CLUSTER", true), ("USE_STATSD=true", false)]);
    }
}
