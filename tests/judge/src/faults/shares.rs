//! Limits with shares, and the instances that have seats.
//!
//! Three limits of a second: a window, a bucket, and a window with leases. All have the same part in shares, because
//! an instance whose rules differ from another's leaves room for the largest part that the other's rules have.
//!
//! The floor: a request is denied only if the store denies it, by the number less all shares. So a limit of that
//! number, charged with all that passed anywhere, has no room for it either. Leases hold back their part of the rest.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

use super::redis_cli::wait_until;
use super::running::Running;
use crate::history::Promise;

/// The number of seats, `EXPECTED_REPLICAS`.
const SEATS: u64 = 2;

/// Whether an instance has a seat.
const SEAT: &str = "tollgate_share_seat";

/// The part of a limit that may be in leases, in percent.
const LEASED: u64 = 20;

const SECOND_US: u64 = 1_000_000;

/// The numbers of the limits. Shares of all of them are whole.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Of the window and of the bucket.
    number: u64,
    burst: u64,
    /// Of the window with leases.
    leased: u64,
    /// The part in shares, in percent.
    part: u64,
}

/// What may pass of a number, and what always can.
type Range = fn(u64, &Numbers) -> u64;

impl Numbers {
    /// At the start.
    pub const BEFORE: Numbers = Numbers { number: 20, burst: 12, leased: 60, part: 50 };
    /// Other ones, which are larger.
    pub const CHANGED: Numbers = Numbers { number: 40, burst: 24, leased: 120, part: 25 };

    /// Returns the rules, followed by these lines.
    pub fn rules(&self, more: &str) -> String {
        let Numbers { number, burst, leased, part } = self;
        let window = format!("period: 1s, algorithm: sliding_window, own_share: {part}%, requests_per_unit");
        let bucket = format!("period: 1s, algorithm: token_bucket, own_share: {part}%, burst: {burst}");
        format!(
            "domain: judge\ndefaults: {{failure_mode: error}}\ndescriptors:\n\
             - {{key: window, rate_limit: {{{window}: {number}}}}}\n\
             - {{key: bucket, rate_limit: {{{bucket}, requests_per_unit: {number}}}}}\n\
             - {{key: leased, rate_limit: {{{window}: {leased}, lease: {{unused: {LEASED}%, ttl: 200ms}}}}}}\n{more}"
        )
    }

    /// Returns what the limits promise.
    pub fn promises(&self) -> BTreeMap<String, Promise> {
        self.promised(|number, _| number, self)
    }

    /// Returns what they promise while two masters decide: each admits the rest, and each seat its share.
    pub fn promises_of_two_masters(&self) -> BTreeMap<String, Promise> {
        self.promised(|number, numbers| number + numbers.rest(number), self)
    }

    /// Returns what they promise while these numbers take the place of smaller ones, or those of these: no more than
    /// these, and no less than the rest of the others.
    pub fn promises_between(&self, smaller: &Numbers) -> BTreeMap<String, Promise> {
        self.promised(|number, _| number, smaller)
    }

    /// Returns a number less all shares.
    fn rest(&self, number: u64) -> u64 {
        number - number * self.part / 100 / SEATS * SEATS
    }

    /// Returns promises by what may pass of these numbers, and what always can of others.
    fn promised(&self, most: Range, least: &Numbers) -> BTreeMap<String, Promise> {
        let most = |number: u64| most(number, self);
        let thousandths = |least: u64, number: u64| least * 1_000 / most(number);
        // Ten segments; a lease counts from its return, which may be late by a quarter of its TTL.
        let window = |number: u64, least: u64, memory_us: u64| Promise::Window {
            number: most(number),
            period_us: SECOND_US,
            memory_us,
            usable_thousandths: thousandths(least, number),
            unrecorded: 0,
        };
        let memory_us = SECOND_US + SECOND_US / 10;
        let bucket = Promise::Bucket {
            burst: most(self.burst),
            number: most(self.number),
            period_us: SECOND_US,
            usable_thousandths: thousandths(least.rest(least.burst), self.burst)
                .min(thousandths(least.rest(least.number), self.number)),
        };
        let of_leased = least.rest(least.leased) - least.leased * LEASED / 100;
        [
            ("window", window(self.number, least.rest(least.number), memory_us)),
            ("bucket", bucket),
            ("leased", window(self.leased, of_leased, memory_us + 300_000)),
        ]
        .map(|(name, promise)| (name.to_owned(), promise))
        .into()
    }
}

/// Waits until all seats are taken, and all instances agree.
pub async fn wait_until_seated(running: &Running) -> anyhow::Result<()> {
    wait_until("all seats are taken, and all instances agree", async || {
        let agreed = metric(running, "tollgate_share_domains{state=\"agreed\"}").await?;
        let seats: f64 = metric(running, SEAT).await?.iter().sum();
        Ok(seats as u64 == SEATS && agreed.iter().all(|agreed| *agreed == 1.0))
    })
    .await
}

/// Returns the first instance that has a seat.
pub async fn seated(running: &Running) -> anyhow::Result<usize> {
    let seats = metric(running, SEAT).await?;
    seats.iter().position(|seat| *seat == 1.0).context("no instance has a seat")
}

/// Waits until other instances than this one have all seats.
pub async fn wait_until_taken(running: &Running, without: usize) -> anyhow::Result<()> {
    wait_until("another instance takes the seat", async || {
        let mut seats = 0.0;
        for index in (0..running.instances.len()).filter(|index| *index != without) {
            seats += of(running, index, SEAT).await?;
        }
        Ok(seats as u64 == SEATS)
    })
    .await
}

/// Makes sure that each instance with a seat has admitted something by its shares.
pub async fn assert_in_use(running: &Running) -> anyhow::Result<()> {
    let (seats, admitted) = (metric(running, SEAT).await?, admitted(running).await);
    let are_in_use = seats.iter().zip(&admitted).all(|(seat, admitted)| *seat == 0.0 || *admitted > 0.0);
    if seats.iter().sum::<f64>() as u64 != SEATS || !are_in_use {
        bail!("shares are not in use: seats {seats:?}, admitted {admitted:?}");
    }
    Ok(())
}

/// Returns how many requests the shares of each instance have admitted; 0 of one that does not answer.
pub async fn admitted(running: &Running) -> Vec<f64> {
    let mut all = Vec::new();
    for index in 0..running.instances.len() {
        all.push(of(running, index, "tollgate_share_decisions_total").await.unwrap_or(0.0));
    }
    all
}

async fn metric(running: &Running, series: &str) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for index in 0..running.instances.len() {
        all.push(of(running, index, series).await?);
    }
    Ok(all)
}

/// Returns a metric of an instance.
async fn of(running: &Running, index: usize, series: &str) -> anyhow::Result<f64> {
    let port = running.instances[index].setting("PORT").context("an instance has a port of HTTP")?;
    let address = format!("http://127.0.0.1:{port}/metrics");
    // On another thread: the load needs this one.
    let text = tokio::task::spawn_blocking(move || ureq::get(&address).call()?.body_mut().read_to_string()).await??;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.map_or(Ok(0.0), str::parse)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(promise: &Promise) -> (u64, u64) {
        match promise {
            Promise::Window { number, usable_thousandths, .. } | Promise::Bucket { number, usable_thousandths, .. } => {
                (*number, number * usable_thousandths / 1_000)
            }
            Promise::Holders { .. } | Promise::Budget { .. } => panic!("{promise:?}"),
        }
    }

    #[test]
    fn what_may_pass_and_what_always_can_are_known_by_the_numbers() {
        let of =
            |promises: BTreeMap<String, Promise>| ["window", "bucket", "leased"].map(|name| numbers(&promises[name]));
        assert_eq!(of(Numbers::BEFORE.promises()), [(20, 10), (20, 10), (60, 18)]);
        assert_eq!(of(Numbers::CHANGED.promises()), [(40, 30), (40, 30), (120, 66)]);
        assert_eq!(of(Numbers::CHANGED.promises_between(&Numbers::BEFORE)), [(40, 10), (40, 10), (120, 18)]);
        assert_eq!(of(Numbers::BEFORE.promises_of_two_masters()), [(30, 9), (30, 9), (90, 18)]);
    }
}
