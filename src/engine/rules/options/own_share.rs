//! `own_share: 5%`: instances admit a part of the limit by themselves, without asking the store.
//! [`share`](crate::share) has the promise and its proof.

use super::enforce::Share;
use super::{RuleOptions, Validation};
use crate::algorithm::{Algorithm, Limit};
use crate::rules::complaints::Complaints;
use crate::rules::config::FieldPath;
use crate::rules::section::{Key, Takes, key};
use crate::rules::{Allowance, LimitConfig};

/// Why the windows of a time zone have no shares.
const WITH_TIME_ZONE: &str = "a limit with a time_zone cannot have own_share, because its windows differ in length, \
     and an instance's share does not know when they begin: remove one of the two";

/// The key in rules.
pub const KEY_NAME: &str = "own_share";

pub(in crate::rules) const KEY: Key = key(
    KEY_NAME,
    Takes::Text,
    "Part of the limit, from 0.01% to 100%, that instances divide among them and admit by themselves, without asking \
     the store. The limit stays exact. 0% is none. Default: the file's defaults, then none.",
)
.example("5%")
.conflicts(&[
    ("unlimited", "an unlimited rule has nothing to share: remove one of the two"),
    (
        "penalty",
        "a limit with a penalty cannot have own_share, because every instance must see a ban at once: remove one of \
         the two",
    ),
    (
        "durable",
        "a durable limit cannot have own_share, because no Redis replica has confirmed the hits that an instance \
         admits by itself: remove one of the two",
    ),
    (
        "usage",
        "a limit with usage cannot have own_share, because the record of what an instance admits by itself would be \
         lost with the instance: write lease instead, or remove one of the two",
    ),
    (
        "count_denied",
        "a limit that counts denied requests cannot have own_share, because an instance's share would not count those \
         of the others: write count_denied: false",
    ),
    (
        "max_delay",
        "a limit with max_delay cannot have own_share, because instances would let requests pass at the same times: \
         remove one of the two",
    ),
    ("time_zone", WITH_TIME_ZONE),
    (
        "starts_on",
        "a limit with starts_on follows the calendar, so it cannot have own_share: remove one of the two",
    ),
    (
        "leaky_bucket",
        "leaky_bucket cannot have own_share, because instances would let requests pass at the same times: choose \
         token_bucket, or remove it",
    ),
    (
        "concurrency",
        "concurrency cannot have own_share, because a stream may end at another instance than it began: remove it, or \
         choose another algorithm",
    ),
    (
        "budget",
        "a budget cannot have own_share, because a stream may settle at another instance than it began: remove it, or \
         choose another algorithm",
    ),
]);

/// The part of the limit that instances admit by themselves; `None` if they ask for all of it.
pub type Value = Option<Share>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let Some(share) = read(validation.raw.text(KEY.name).get()?, validation.complaints, path)? else {
        return Some(None);
    };
    let limit = validation.limit_for(&KEY)?;
    // A setting may give it one.
    if limit.options().time_zone.is_some() {
        validation.complaints.error(path, WITH_TIME_ZONE);
        return None;
    }
    Some(Some(share))
}

/// Reads a part. Returns `None` if it has reported a mistake.
pub(in crate::rules) fn read(text: &str, complaints: &mut Complaints<'_>, path: FieldPath<'_>) -> Option<Value> {
    if text == super::NO_PART {
        return Some(None);
    }
    let share = Share::parse(text);
    if share.is_none() {
        let message = "write a percentage with its sign, from 0.01% to 100%, such as 5%; with 0%, instances ask for \
                       each hit";
        complaints.error(path, message);
    }
    share.map(Some)
}

/// Returns whether a limit can have shares, as far as its other options go.
pub fn fits(config: &LimitConfig) -> bool {
    match &config.allowance {
        Allowance::Limited(limit) => fits_limit(limit, &config.options),
        Allowance::Unlimited => false,
    }
}

/// The same for a limit with these options.
pub(in crate::rules) fn fits_limit(limit: &Limit, options: &RuleOptions) -> bool {
    let RuleOptions { penalty, durable, usage, .. } = options;
    let has_shares = !limit.algorithm().has_holders() && limit.algorithm() != Algorithm::LeakyBucket;
    let (max_delay, time_zone) = (limit.options().max_delay, limit.options().time_zone);
    let limit_fits = !limit.count_denied() && max_delay.is_none() && time_zone.is_none();
    has_shares && limit_fits && penalty.is_none() && !durable && usage.is_none()
}

pub(super) fn written(share: &Value) -> String {
    super::given(share)
}

pub(super) fn explained(share: &Value) -> String {
    match share {
        Some(share) => format!("{share}, divided among the instances, each of which admits its share by itself"),
        None => super::given(share),
    }
}
