//! Made-up traffic: some hundred clients, of which a few ask most, and a flood that comes and goes. The same seed makes
//! the same requests.

use std::time::Duration;

use crate::wire::rate_limit_descriptor::Entry;
use crate::wire::{RateLimitDescriptor, RateLimitRequest};

const SEED: u64 = 7;

/// Number of users and customers.
const USERS: usize = 300;

/// Names of the users that ask most. Commands to try use others.
const HOT: [&str; 16] = [
    "mia", "leo", "noor", "ivan", "sofia", "kofi", "elif", "hugo", "yuki", "lena", "omar", "ines", "rafa", "tess",
    "amir", "zoe",
];

/// The flood begins once in this time.
const FLOOD_EVERY: Duration = Duration::from_secs(60);
/// Its beginning and end within that time.
const FLOOD: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(45)];
/// Its size, as a share of the usual traffic.
const FLOOD_SHARE: f64 = 0.5;
/// The address that it comes from.
const FLOOD_ADDRESS: &str = "198.51.100.23";

/// Kinds of requests with their weights: some 1000 in all.
const USUAL: [(Kind, u32); 15] = [
    (Kind::Static, 260),
    (Kind::Paid, 230),
    (Kind::Acme, 100),
    (Kind::Free, 110),
    (Kind::Trial, 70),
    (Kind::Monthly, 30),
    (Kind::Address, 90),
    (Kind::Search, 34),
    (Kind::User, 24),
    (Kind::Tokens, 20),
    (Kind::Partner, 12),
    (Kind::Health, 10),
    (Kind::Legacy, 6),
    (Kind::Abuser, 3),
    (Kind::Rare, 8),
];

/// The kinds of the flood with their weights.
const FLOODING: [(Kind, u32); 4] =
    [(Kind::FloodAddress, 50), (Kind::FloodLogin, 20), (Kind::FloodFailed, 10), (Kind::Search, 20)];

#[derive(Clone, Copy)]
enum Kind {
    Static,
    Paid,
    Acme,
    Free,
    Trial,
    Monthly,
    Address,
    Search,
    User,
    Tokens,
    Partner,
    Health,
    Legacy,
    Abuser,
    /// One of the requests that come seldom.
    Rare,
    FloodAddress,
    FloodLogin,
    FloodFailed,
}

pub(super) struct Traffic {
    random: fastrand::Rng,
    rate: f64,
    /// Requests due, as a fraction.
    due: f64,
    /// Sums of the popularity of the users, up to each.
    popularity: Vec<f64>,
}

impl Traffic {
    /// Creates traffic of `rate` requests per second, apart from the flood.
    pub(super) fn new(rate: u32) -> Traffic {
        let popularity = (1..=USERS).scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-1.1);
            Some(*sum)
        });
        let popularity = popularity.collect();
        Traffic { random: fastrand::Rng::with_seed(SEED), rate: f64::from(rate), due: 0.0, popularity }
    }

    /// Returns the requests of the last `time`, at this time since the beginning.
    pub(super) fn next(&mut self, now: Duration, time: Duration) -> Vec<RateLimitRequest> {
        let within = now.as_secs_f64() % FLOOD_EVERY.as_secs_f64();
        let floods = (FLOOD[0].as_secs_f64()..FLOOD[1].as_secs_f64()).contains(&within);
        // The traffic rises and falls a little, over half a minute.
        let wave = 1.0 + 0.15 * (now.as_secs_f64() / 5.0).sin();
        let flood = if floods { FLOOD_SHARE } else { 0.0 };
        self.due += self.rate * (wave + flood) * time.as_secs_f64();
        let count = self.due.floor();
        self.due -= count;
        (0..count as usize)
            .map(|_| {
                let is_of_flood = self.random.f64() < flood / (wave + flood);
                let kind = if is_of_flood { self.any(&FLOODING) } else { self.any(&USUAL) };
                self.request(kind)
            })
            .collect()
    }

    /// Draws a kind by the weights.
    fn any(&mut self, kinds: &[(Kind, u32)]) -> Kind {
        let all: u32 = kinds.iter().map(|(_, weight)| weight).sum();
        let mut rest = self.random.u32(..all);
        for &(kind, weight) in kinds {
            match rest.checked_sub(weight) {
                None => return kind,
                Some(less) => rest = less,
            }
        }
        Kind::Health
    }

    /// Draws the rank of a client, from 0 for the one that asks most, among the first `most`.
    fn rank(&mut self, most: usize) -> usize {
        let some = &self.popularity[..most.min(USERS)];
        let drawn = self.random.f64() * some.last().copied().unwrap_or_default();
        some.partition_point(|sum| *sum <= drawn)
    }

    fn user(&mut self, most: usize) -> String {
        let rank = self.rank(most);
        HOT.get(rank).map_or_else(|| format!("user-{rank:03}"), |name| (*name).to_owned())
    }

    fn address(&mut self, most: usize) -> String {
        let rank = self.rank(most);
        format!("192.0.2.{}", 1 + (rank * 37) % 250)
    }

    fn request(&mut self, kind: Kind) -> RateLimitRequest {
        match kind {
            Kind::Static => {
                let rank = self.rank(40);
                one("shop", &[("path", &format!("/static/{rank}.js"))])
            }
            Kind::Paid => {
                let customer = self.user(60);
                match self.random.u32(..100) {
                    0..3 => one("api", &[("plan", "paid"), ("customer", &customer), ("operation", "export")]),
                    _ => one("api", &[("plan", "paid"), ("customer", &customer)]),
                }
            }
            Kind::Acme => one("api", &[("plan", "paid"), ("customer", "acme")]),
            Kind::Free => one("api", &[("plan", "free"), ("customer", &self.user(USERS))]),
            Kind::Trial => one("api", &[("plan", "trial")]),
            Kind::Monthly => one("api", &[("plan", "monthly"), ("customer", &self.user(30))]),
            Kind::Address => one("plain", &[("remote_address", &self.address(250))]),
            Kind::Search => one("shop", &[("path", "/search")]),
            Kind::User => one("shop", &[("user", &self.user(USERS))]),
            Kind::Tokens => {
                let tokens = self.random.u64(50..500);
                hits("shop", &[("model-tokens", &self.user(40))], tokens)
            }
            Kind::Partner => one("plain", &[("partner", &format!("partner-{}", self.rank(6)))]),
            Kind::Health => one("shop", &[("path", "/health")]),
            Kind::Legacy => one("shop", &[("upstream", "legacy")]),
            Kind::Abuser => one("plain", &[("remote_address", "203.0.113.9")]),
            Kind::Rare => match self.random.u32(..5) {
                0 => one("shop", &[("phone", &format!("+1555010{}", self.rank(40)))]),
                1 => one("shop", &[("api", "export")]),
                2 => one("shop", &[("route", "login"), ("remote_address", &self.address(120))]),
                3 => one("shop", &[("failed", "login"), ("remote_address", &self.address(60))]),
                _ => one("shop", &[("user", "batch")]),
            },
            Kind::FloodAddress => one("plain", &[("remote_address", FLOOD_ADDRESS)]),
            Kind::FloodLogin => one("shop", &[("route", "login"), ("remote_address", FLOOD_ADDRESS)]),
            Kind::FloodFailed => one("shop", &[("failed", "login"), ("remote_address", FLOOD_ADDRESS)]),
        }
    }
}

fn one(domain: &str, entries: &[(&str, &str)]) -> RateLimitRequest {
    hits(domain, entries, 1)
}

fn hits(domain: &str, entries: &[(&str, &str)], hits: u64) -> RateLimitRequest {
    let entries = entries.iter().map(|&(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    let descriptor = RateLimitDescriptor { entries, hits_addend: Some(hits), ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor], hits_addend: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_the_same_each_time_and_has_a_flood() {
        let minute = || {
            let mut traffic = Traffic::new(250);
            (0..60).map(|second| traffic.next(SECOND * second, SECOND)).collect::<Vec<_>>()
        };
        let requests = minute();
        assert_eq!(requests, minute());
        let most = |range: std::ops::Range<usize>| requests[range].iter().map(Vec::len).max().unwrap();
        let least = |range: std::ops::Range<usize>| requests[range].iter().map(Vec::len).min().unwrap();
        assert!(least(0..20) > 200 && most(0..20) < 300, "{} to {}", least(0..20), most(0..20));
        assert!(least(20..45) > most(0..20), "the flood");
        let named = |name: &str| {
            let is_it = |entry: &Entry| *entry.value == *name;
            requests.iter().flatten().filter(|request| request.descriptors[0].entries.iter().any(is_it)).count()
        };
        assert!(named("mia") > named("leo") && named("leo") > named("user-200"));
        assert_eq!(named("ann"), 0, "commands to try use this name");
    }
}
