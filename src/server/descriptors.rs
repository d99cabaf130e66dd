//! File descriptors, which connections need: the process raises its limit as far as the system allows, and gives each
//! port a share, to keep some for the other port, for Redis and for rule files.

/// Descriptors for standard streams, listeners, rule files while they are read, and a margin.
const PROCESS: usize = 32;
/// Descriptors of a runtime: its poll, its waker, and its signal handling.
const WORKER: usize = 4;
/// Descriptors for each connection to Redis, as a new one opens before the old one closes.
const REDIS: usize = 2;

/// The largest number of connections of each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Connections of gRPC.
    pub grpc: usize,
    /// Connections of HTTP.
    pub http: usize,
}

/// Raises the soft limit on file descriptors to the hard limit, and returns it, or `None` if the system does not report
/// it.
#[cfg(unix)]
pub fn raise_limit() -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // Some systems reject the hard limit that they report.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    usize::try_from(if raised { hard } else { soft }).ok()
}

/// Returns `None`, as this system has no such limit.
#[cfg(not(unix))]
pub fn raise_limit() -> Option<usize> {
    None
}

impl Shares {
    /// Grants the wanted numbers, or divides the descriptors left within `limit`: up to a quarter to HTTP, and the rest
    /// to gRPC.
    pub fn of(limit: Option<usize>, wanted: Shares, workers: usize, to_redis: usize) -> Shares {
        let Some(limit) = limit else { return wanted };
        let kept = PROCESS + WORKER * workers + REDIS * to_redis.max(workers);
        let left = limit.saturating_sub(kept);
        let http = wanted.http.min(left / 4).max(1);
        Shares { grpc: wanted.grpc.min(left - left.min(http)).max(1), http }
    }

    /// Warns if the system allows fewer connections than the settings ask for.
    pub fn report(self, wanted: Shares, limit: Option<usize>) {
        if self != wanted {
            let Shares { grpc, http } = self;
            tracing::warn!(
                grpc,
                http,
                descriptors = limit,
                "the limit on file descriptors allows fewer connections than the settings: raise ulimit -n"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_descriptors_are_shared_and_many_are_not() {
        let wanted = Shares { grpc: 10_000, http: 256 };
        assert_eq!(Shares::of(None, wanted, 2, 2), wanted);
        assert_eq!(Shares::of(Some(1 << 20), wanted, 8, 8), wanted);
        assert_eq!(Shares::of(Some(128), wanted, 2, 2), Shares { grpc: 63, http: 21 });
    }

    proptest! {
        #[test]
        fn what_is_kept_back_is_never_given(
            limit in 0..100_000_usize, grpc in 1..20_000_usize, http in 1..20_000_usize, workers in 1..64_usize,
            redis in 0..100_usize
        ) {
            let shares = Shares::of(Some(limit), Shares { grpc, http }, workers, redis);
            prop_assert!(shares.grpc >= 1 && shares.http >= 1, "each port can be used");
            prop_assert!(shares.grpc <= grpc && shares.http <= http);
            let kept = PROCESS + WORKER * workers + REDIS * redis;
            let together = shares.grpc + shares.http + kept;
            let least = shares == Shares { grpc: 1, http: 1 };
            prop_assert!(least || together <= limit, "{together}");
        }
    }
}
