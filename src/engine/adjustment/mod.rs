//! Adjustments: temporary changes to limits that operators make for the whole fleet, without editing the rules. Each
//! records who made it and why, and ends automatically.
//!
//! An adjustment has a [`Target`] and an [`Effect`]. Of several effects of one [`Kind`], the one with the narrowest
//! target applies; for equal targets, the latest. So "scale everything to a tenth" and "always let this key pass" can
//! be in force together.
//!
//! Changing a limit's number does not rename its counter, so the counter continues with its present count. This module
//! is pure: `shared` stores adjustments, reads them and puts them in force.

mod hours;
mod in_force;
mod target;
mod written;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Limit, scaled};
use crate::clock::timestamp;
use crate::descriptor::Entry;
use crate::printable::printable;

pub use hours::Hours;
pub use in_force::{Applied, InForce, LimitName};
pub use target::{DescriptorPattern, EntryPattern, Target, ValuePattern};
pub use written::{Mistakes, OnlyHere, Shown, Written, WrittenEntry, check_words};

/// The shortest and longest duration of an adjustment. Lasting changes belong in the rules.
pub const LASTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(7 * 24 * 60 * 60));

/// The most adjustments in force at once.
pub const MOST: usize = 1_000;

/// The ID of an adjustment, chosen by its author or by the first instance that received it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<str>);

impl Id {
    const LONGEST: usize = 64;

    /// Parses an ID: at most 64 letters, digits, dots, dashes and underscores.
    pub fn parse(text: &str) -> Option<Id> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
        let fits = !text.is_empty() && text.len() <= Id::LONGEST;
        (fits && text.chars().all(is_plain)).then(|| Id(text.into()))
    }

    /// Creates an ID from a random number; two rarely collide.
    pub fn of_number(number: u64) -> Id {
        Id(format!("{:010x}", number & 0xff_ffff_ffff).into())
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The effect of an adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Multiplies the number and the burst by this share, rounded down, but at least 1.
    Scale(Share),
    /// Sets the number, and changes the burst in proportion.
    Number(u64),
    /// Lets requests pass. The limit is not asked and counts nothing.
    Pass,
    /// Denies requests, whatever the rule's mode. Nothing is counted.
    Block,
    /// Makes a denial by the limit deny the request, whatever the rule's mode.
    Enforce,
    /// Makes a denial by the limit have no effect on the request.
    Shadow,
}

/// The kind of an effect. Only one effect of each kind applies to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes the number.
    Number,
    /// Decides without asking the limit.
    Passage,
    /// Changes the effect of a denial.
    Role,
}

impl Effect {
    /// Names of all effects in JSON, logs and metrics.
    pub const NAMES: [&'static str; 6] = ["scale", "number", "pass", "block", "enforce", "shadow"];

    /// Returns the name, one of [`Effect::NAMES`].
    pub const fn name(self) -> &'static str {
        match self {
            Effect::Scale(_) => "scale",
            Effect::Number(_) => "number",
            Effect::Pass => "pass",
            Effect::Block => "block",
            Effect::Enforce => "enforce",
            Effect::Shadow => "shadow",
        }
    }

    /// Returns the kind.
    pub const fn kind(self) -> Kind {
        match self {
            Effect::Scale(_) | Effect::Number(_) => Kind::Number,
            Effect::Pass | Effect::Block => Kind::Passage,
            Effect::Enforce | Effect::Shadow => Kind::Role,
        }
    }

    /// Returns the number that replaces a limit's number `own`.
    pub fn number(self, own: u64) -> u64 {
        match self {
            Effect::Scale(Share(share)) => scaled(own, share.into(), Share::WHOLE.into()),
            Effect::Number(number) => number,
            Effect::Pass | Effect::Block | Effect::Enforce | Effect::Shadow => own,
        }
    }

    /// Returns the changed limit, or the limit unchanged if it cannot have the number.
    pub fn limit(self, limit: &Limit) -> Limit {
        match self {
            Effect::Scale(Share(share)) => limit.scaled_by(share.into(), Share::WHOLE.into()),
            Effect::Number(number) => limit.with_number(number),
            Effect::Pass | Effect::Block | Effect::Enforce | Effect::Shadow => *limit,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Scale(share) => write!(f, "scale {share}"),
            Effect::Number(number) => write!(f, "number {number}"),
            effect => f.write_str(effect.name()),
        }
    }
}

/// A share in hundredths of a percent, from 0.01% to 10000%.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 10_000;
    const MOST: u32 = 100 * Share::WHOLE;

    /// Parses a percentage: `10%`, `2.5%`.
    pub fn parse(text: &str) -> Option<Share> {
        let (whole, part) =
            text.strip_suffix('%')?.trim_end().split_once('.').unwrap_or((text.strip_suffix('%')?, "0"));
        let is_number = |text: &str| !text.is_empty() && text.chars().all(|char| char.is_ascii_digit());
        if !is_number(whole.trim_end()) || !is_number(part) || part.len() > 2 {
            return None;
        }
        let hundredths = part.parse::<u32>().ok()? * if part.len() == 1 { 10 } else { 1 };
        let share = whole.trim_end().parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths)?;
        (1..=Share::MOST).contains(&share).then_some(Share(share))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

/// The content of an adjustment, without its ID and times. [`Written`] creates it and checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The limits it changes.
    pub target: Target,
    /// Its effect.
    pub effect: Effect,
    /// The hours of the day in which it takes effect; `None` for all.
    pub hours: Option<Hours>,
    /// Its author's name, as the author gave it.
    pub who: String,
    /// The reason for it.
    pub why: String,
}

/// A new adjustment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its ID. Repeating a proposal with the same ID has no effect.
    pub id: Id,
    /// Its content.
    pub content: Content,
    /// Its duration, in whole milliseconds within [`LASTS`].
    pub lasts: Duration,
}

/// An adjustment that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// Its ID.
    pub id: Id,
    /// Its content.
    pub content: Content,
    /// Its start on the store's clock, in milliseconds since the epoch.
    pub since_ms: u64,
    /// Its end on the same clock.
    pub until_ms: u64,
}

impl Adjustment {
    /// Returns whether it takes effect at this time of the day.
    pub fn is_within_hours(&self, now_ms: u64) -> bool {
        self.content.hours.is_none_or(|hours| hours.contain(now_ms))
    }

    /// Formats the adjustment for people, in one line. Of several descriptors, the line has only the one by which it
    /// applies to a descriptor with these entries: the others are of no concern to who asks about that one.
    pub fn about(&self, entries: &[Entry]) -> String {
        let Target::Descriptors { domain, descriptors } = &self.content.target else { return self.to_string() };
        let is_it = |descriptor: &&DescriptorPattern| descriptor.matches(entries);
        let exact = || descriptors.iter().filter(is_it).find(|descriptor| descriptor.exact().is_some());
        let Some(one) = exact().or_else(|| descriptors.iter().rfind(is_it)) else { return self.to_string() };
        let target = Target::Descriptors { domain: domain.clone(), descriptors: vec![one.clone()] };
        let others = match descriptors.len() {
            1 => String::new(),
            count => format!(" (one of {count})"),
        };
        self.words(&format!("{target}{others}"))
    }

    fn words(&self, target: &str) -> String {
        let Content { effect, hours, who, why, .. } = &self.content;
        let hours = hours.map(|hours| format!("daily {hours}, ")).unwrap_or_default();
        let (until, who, why) = (timestamp(self.until_ms), printable(who), printable(why));
        format!("{}  {effect}  {target}  {hours}until {until}, by {who}: {why}", self.id)
    }

    /// Returns the duration from start to end.
    pub fn lasts(&self) -> Duration {
        Duration::from_millis(self.until_ms.saturating_sub(self.since_ms))
    }
}

/// Formats the adjustment for people, in one line.
impl fmt::Display for Adjustment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(&self.content.target.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Options};

    #[test]
    fn shares_are_read_as_people_write_them() {
        for (text, share) in [("10%", 1_000), ("2.5%", 250), ("0.01%", 1), ("10000%", 1_000_000), ("33.05%", 3_305)] {
            assert_eq!(Share::parse(text), Some(Share(share)), "{text}");
            assert_eq!(Share(share).to_string(), text);
        }
        for text in ["10", "0%", "0.00%", "0.001%", "10001%", "-1%", "+1%", "1.%", ".5%", "%", "1e1%", "99999999999%"] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ids_have_no_room_for_what_separates_them() {
        let longest = "x".repeat(64);
        for text in ["a", "INC-42.b_c", &longest] {
            assert_eq!(Id::parse(text).map(|id| id.to_string()).as_deref(), Some(text));
        }
        for text in ["", "a b", "a\n", "a/b", "ä", &"x".repeat(65)] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        assert_eq!(Id::parse(Id::of_number(u64::MAX).as_str()), Some(Id::of_number(u64::MAX)));
    }

    /// Generates limits of any algorithm, with a burst for algorithms that have one.
    fn limits() -> impl Strategy<Value = Limit> {
        let algorithms = prop::sample::select(Algorithm::ALL);
        (algorithms, 0..2_000_u64, 1..100_000_u64, prop::option::of(1..5_000_u32)).prop_map(
            |(algorithm, number, period_ms, burst)| {
                let burst = burst.filter(|_| algorithm.options().contains(&"burst"));
                let options = Options { burst, ..Options::default() };
                let limit = Limit::new(algorithm, number, Duration::from_millis(period_ms), options);
                limit.unwrap()
            },
        )
    }

    fn identity(limit: &Limit) -> String {
        let mut name = String::new();
        limit.identity(&mut name);
        name
    }

    proptest! {
        #[test]
        fn a_changed_number_is_in_proportion_never_zero_and_of_the_same_counter(
            limit in limits(), share in 1..20_000_u32, number in 1..3_000_u64,
        ) {
            let scaled = Effect::Scale(Share(share)).limit(&limit);
            let exact = limit.number() * u64::from(share) / 10_000;
            prop_assert_eq!(scaled.number(), exact.max(limit.number().min(1)));
            prop_assert_eq!(scaled.capacity() == 0, limit.capacity() == 0);
            let numbered = Effect::Number(number).limit(&limit);
            prop_assert_eq!(numbered.number(), number);
            prop_assert!(numbered.capacity() > 0);
            for changed in [scaled, numbered] {
                prop_assert_eq!(identity(&changed), identity(&limit));
                prop_assert_eq!(
                    Options { burst: None, ..changed.options() }, Options { burst: None, ..limit.options() }
                );
            }
        }
    }

    #[test]
    fn a_burst_is_scaled_with_its_number() {
        let minute = Duration::from_secs(60);
        let options = Options { burst: Some(50), ..Options::default() };
        let limit = Limit::new(Algorithm::TokenBucket, 100, minute, options).unwrap();
        let scaled = Effect::Scale(Share(1_000)).limit(&limit);
        assert_eq!((scaled.number(), scaled.options().burst), (10, Some(5)));
        let numbered = Effect::Number(300).limit(&limit);
        assert_eq!((numbered.number(), numbered.options().burst), (300, Some(150)));
    }

    #[test]
    fn a_number_that_the_algorithm_cannot_have_leaves_the_rules_own() {
        let limit = Limit::new(Algorithm::SlidingLog, 100, Duration::from_secs(60), Options::default()).unwrap();
        assert_eq!(Effect::Number(u32::MAX.into()).limit(&limit), limit);
        let limit = Limit::new(Algorithm::FixedWindow, 100, Duration::from_secs(60), Options::default()).unwrap();
        assert_eq!(Effect::Number(1 << 32).limit(&limit), limit);
        let budget = Limit::new(Algorithm::Budget, 100, Duration::from_secs(60), Options::default()).unwrap();
        assert_eq!(Effect::Number(1 << 32).limit(&budget).number(), 1 << 32);
    }
}
