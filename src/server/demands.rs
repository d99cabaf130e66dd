//! Warns of servers of Redis that lack something that rules in force need: a replica for limits with `durable: true`,
//! and a file for balances.
//!
//! Without a replica nobody can confirm the charges of a durable limit, so its failure mode answers every request that
//! takes hits, although Redis is up. Without a file a restart deletes balances, which customers have paid for.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::engine::rules::{LimitConfig, Rules};
use crate::store::redis::doctor::{Persistence, Vitals};

/// Everything that rules may need of a server.
#[derive(Debug)]
pub(super) struct Demands {
    replicas: Demand,
    persistence: Demand,
}

/// Something that rules may need of a server.
#[derive(Debug)]
struct Demand {
    /// Warns of this server.
    warn: fn(&str),
    known: Mutex<Known>,
}

/// What is known of the rules and of the servers of Redis.
#[derive(Debug, Default)]
struct Known {
    /// Whether a rule in force needs it.
    is_wanted: bool,
    /// Servers that lacked it when they were asked last.
    lacking: BTreeSet<String>,
}

/// The needs that rules have and the rules before them did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct New {
    pub(super) durable: bool,
    pub(super) balances: bool,
}

impl Default for Demands {
    fn default() -> Demands {
        let demand = |warn| Demand { warn, known: Mutex::default() };
        Demands { replicas: demand(warn_without_replica), persistence: demand(warn_without_persistence) }
    }
}

impl Demands {
    /// Takes the rules in force. Warns of the servers that lack what they need and the previous ones did not.
    pub(super) fn take_rules(&self, rules: &Rules) -> New {
        let has = |needs: fn(&LimitConfig) -> bool| rules.limits().any(|(_, limit)| needs(&limit.config));
        New {
            durable: self.replicas.take_rules(has(|config| config.options.durable)),
            balances: self.persistence.take_rules(has(LimitConfig::is_balance)),
        }
    }

    /// Takes what a master tells of itself. Warns if it no longer has something that a rule in force needs.
    pub(super) fn take_server(&self, server: &str, vitals: &Vitals) {
        self.replicas.take_server(server, vitals.replicas == Some(0));
        self.persistence.take_server(server, vitals.persistence == Some(Persistence::None));
    }
}

impl Demand {
    /// Takes whether a rule in force needs it. Returns whether that is new.
    fn take_rules(&self, is_wanted: bool) -> bool {
        let mut known = self.known.lock();
        let is_new = is_wanted && !known.is_wanted;
        known.is_wanted = is_wanted;
        if is_new {
            known.lacking.iter().for_each(|server| (self.warn)(server));
        }
        is_new
    }

    fn take_server(&self, server: &str, is_lacking: bool) {
        let mut known = self.known.lock();
        if !is_lacking {
            known.lacking.remove(server);
        } else if known.lacking.insert(server.to_owned()) && known.is_wanted {
            (self.warn)(server);
        }
    }
}

fn warn_without_replica(server: &str) {
    tracing::warn!(
        redis = server,
        "redis has no replica to confirm the charges of limits with durable: true, so failure_mode answers their \
         requests: add a replica, or remove durable: true"
    );
}

fn warn_without_persistence(server: &str) {
    tracing::warn!(
        redis = server,
        "redis writes no file, so its restart deletes the balances of the rules (unit: never): set appendonly yes"
    );
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::Events;

    #[test]
    fn a_rule_that_needs_something_and_a_server_without_it_make_one_warning_whichever_comes_first() {
        let events = Events::default();
        let warnings = || events.after(0).len();
        with_default(tracing_subscriber::registry().with(events.clone()), || {
            let demand = Demands::default().replicas;
            assert!(demand.take_rules(true));
            demand.take_server("a:1", false);
            assert_eq!(warnings(), 0);
            (0..3).for_each(|_| demand.take_server("a:1", true));
            (0..3).for_each(|_| assert!(!demand.take_rules(true)));
            assert_eq!(warnings(), 1);
            demand.take_rules(false);
            assert!(demand.take_rules(true));
            assert_eq!(warnings(), 2, "the rules have it again");
            demand.take_server("a:1", false);
            demand.take_server("a:1", true);
            assert_eq!(warnings(), 3, "the replica is lost again");
        });
    }

    #[test]
    fn what_a_server_does_not_tell_is_not_lacking() {
        let (demands, events) = (Demands::default(), Events::default());
        with_default(tracing_subscriber::registry().with(events.clone()), || {
            demands.persistence.take_rules(true);
            demands.take_server("a:1", &Vitals::default());
            for persistence in [Persistence::AppendOnly, Persistence::Snapshots] {
                demands.take_server(
                    "a:1",
                    &Vitals { persistence: Some(persistence), replicas: Some(0), ..Vitals::default() },
                );
            }
            assert_eq!(events.after(0), []);
            demands.take_server("a:1", &Vitals { persistence: Some(Persistence::None), ..Vitals::default() });
            let told = events.after(0);
            assert!(told.len() == 1 && told[0].text.contains("deletes the balances"), "{told:?}");
        });
    }
}
