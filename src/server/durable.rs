//! Warns of limits with `durable: true` on a Redis without replicas. Nobody can confirm their charges, so their failure
//! mode answers every request that takes hits, although Redis is up.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// What is known of the rules and of the servers of Redis.
#[derive(Debug, Default)]
pub(super) struct Durable(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Whether a rule in force has `durable: true`.
    is_wanted: bool,
    /// Masters that had no replica when they were asked last.
    alone: BTreeSet<String>,
}

impl Durable {
    /// Takes whether a rule in force is durable. Warns if that is new and a server has no replica.
    pub(super) fn take_rules(&self, is_wanted: bool) {
        let mut known = self.0.lock();
        let is_new = is_wanted && !known.is_wanted;
        known.is_wanted = is_wanted;
        if is_new {
            known.alone.iter().for_each(|server| warn(server));
        }
    }

    /// Takes the number of a master's replicas. Warns if it has none any more and a rule is durable.
    pub(super) fn take_server(&self, server: &str, replicas: Option<u64>) {
        let mut known = self.0.lock();
        if replicas != Some(0) {
            known.alone.remove(server);
        } else if known.alone.insert(server.to_owned()) && known.is_wanted {
            warn(server);
        }
    }
}

fn warn(server: &str) {
    tracing::warn!(
        redis = server,
        "redis has no replica to confirm the charges of limits with durable: true, so failure_mode answers their \
         requests: add a replica, or remove durable: true"
    );
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::Events;

    #[test]
    fn durable_rules_and_a_master_without_replicas_make_one_warning_whichever_comes_first() {
        let events = Events::default();
        let warnings = || events.after(0).len();
        with_default(tracing_subscriber::registry().with(events.clone()), || {
            let durable = Durable::default();
            durable.take_rules(true);
            durable.take_server("a:1", Some(1));
            durable.take_server("b:1", None);
            assert_eq!(warnings(), 0);
            (0..3).for_each(|_| durable.take_server("a:1", Some(0)));
            (0..3).for_each(|_| durable.take_rules(true));
            assert_eq!(warnings(), 1);
            durable.take_rules(false);
            durable.take_rules(true);
            assert_eq!(warnings(), 2, "the rules have it again");
            durable.take_server("a:1", Some(2));
            durable.take_server("a:1", Some(0));
            assert_eq!(warnings(), 3, "the replica is lost again");
        });
    }
}
