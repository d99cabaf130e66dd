//! Descriptors of files, which connections are made of: the process takes as many as the system lets it have, and each
//! port a share of them, so that clients of one leave some for the other, for Redis and for the files of rules.

/// Standard streams, the listeners, the files of rules while they are read, and a margin.
const PROCESS: usize = 32;
/// A runtime has its poll, what wakes it, and what signals wake.
const WORKER: usize = 4;
/// A connection to Redis is replaced before it goes.
const REDIS: usize = 2;

/// How many connections each port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of gRPC.
    pub grpc: usize,
    /// Of HTTP.
    pub http: usize,
}

/// Raises the soft limit on descriptors to the hard one, and returns it; `None` where the system does not say.
#[cfg(unix)]
pub fn raise_limit() -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // Some systems refuse the hard limit that they name.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    usize::try_from(if raised { hard } else { soft }).ok()
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub fn raise_limit() -> Option<usize> {
    None
}

impl Shares {
    /// As many as are wanted, or what so many descriptors leave: to HTTP up to a quarter of them, and the rest to gRPC.
    pub fn of(limit: Option<usize>, wanted: Shares, workers: usize, to_redis: usize) -> Shares {
        let Some(limit) = limit else { return wanted };
        let kept = PROCESS + WORKER * workers + REDIS * to_redis.max(workers);
        let left = limit.saturating_sub(kept);
        let http = wanted.http.min(left / 4).max(1);
        Shares { grpc: wanted.grpc.min(left - left.min(http)).max(1), http }
    }

    /// Warns where the system gives fewer than the settings ask for.
    pub fn report(self, wanted: Shares, limit: Option<usize>) {
        if self != wanted {
            let Shares { grpc, http } = self;
            tracing::warn!(
                grpc,
                http,
                descriptors = limit,
                "fewer connections than the settings allow: raise ulimit -n"
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
