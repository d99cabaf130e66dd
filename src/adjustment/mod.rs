//! Adjustments: what people change about limits for a while, for all replicas, without an edit of the rules. Each says
//! who made it and why, and ends by itself.
//!
//! An adjustment says what it is for ([`Target`]) and what it does ([`Effect`]). Of several whose effects are of one
//! [`Kind`], the one for the narrowest target counts; of those for the same target, the latest. So "everything to a
//! tenth" and "this one key always passes" hold side by side.
//!
//! A scale or a number changes what a counter is asked, and not its name: it goes on with what it has counted. This
//! module is pure: `store::adjustments` keeps them, and `steering` reads them and puts them in force.

mod in_force;
mod written;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Limit, scaled};
use crate::descriptor::{Entry, printable};

pub use in_force::{Applied, InForce, LimitName};
pub use written::{Mistakes, Shown, Written, check_words};

/// How long an adjustment may last: what shall stay longer belongs into the rules.
pub const LASTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(7 * 24 * 60 * 60));

/// How many there may be at once.
pub const MOST: usize = 1_000;

/// What an adjustment is called, by whoever made it or by the first replica that heard of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<str>);

impl Id {
    const LONGEST: usize = 64;

    /// Letters, digits, dots, dashes and underscores, 64 at most.
    pub fn parse(text: &str) -> Option<Id> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
        let fits = !text.is_empty() && text.len() <= Id::LONGEST;
        (fits && text.chars().all(is_plain)).then(|| Id(text.into()))
    }

    /// One of this number, of which two seldom are the same.
    pub fn of_number(number: u64) -> Id {
        Id(format!("{:010x}", number & 0xff_ffff_ffff).into())
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an adjustment is for, from the widest to the narrowest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Every limit.
    All,
    /// Every limit that requests of this domain meet.
    Domain(String),
    /// The limits of a rule, by its path, or one limit, by what it is called everywhere.
    Rule {
        /// The domain of the rule.
        domain: String,
        /// The path, or the label.
        rule: String,
    },
    /// The limits that one descriptor meets: just these entries, in this order.
    Descriptor {
        /// What requests call the domain.
        domain: String,
        /// At least one.
        entries: Vec<Entry>,
    },
}

impl Target {
    /// The domain, where it is of one.
    pub fn domain(&self) -> Option<&str> {
        match self {
            Target::All => None,
            Target::Domain(domain) | Target::Rule { domain, .. } | Target::Descriptor { domain, .. } => Some(domain),
        }
    }

    /// In words that hold no value of a descriptor.
    pub fn without_values(&self) -> String {
        match self {
            Target::All => "everything".to_owned(),
            Target::Domain(domain) => format!("domain {domain}"),
            Target::Rule { domain, rule } => format!("rule {domain}/{rule}"),
            Target::Descriptor { domain, entries } => {
                let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
                format!("one descriptor {domain}/{}", keys.join("|"))
            }
        }
    }
}

/// For a terminal: see [`printable`].
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Target::Descriptor { domain, entries } => {
                let entries = entries.iter().map(|Entry { key, value }| format!(" {key}={value}"));
                format!("{domain}:{}", entries.collect::<String>())
            }
            target => target.without_values(),
        };
        f.write_str(&printable(&words))
    }
}

/// What an adjustment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The number and the burst are this share of what the rules say, rounded down, and at least 1.
    Scale(Share),
    /// The number is this, and the burst is changed in proportion.
    Number(u32),
    /// Requests pass the limit, which is not asked and counts nothing.
    Pass,
    /// Requests are denied, whatever mode the rule is in; nothing is counted.
    Block,
    /// A denial denies the request, whatever mode the rule is in.
    Enforce,
    /// A denial denies no request.
    Shadow,
}

/// Effects of one kind exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How much passes.
    Number,
    /// Whether anything is asked.
    Passage,
    /// What a denial means.
    Role,
}

impl Effect {
    /// The names of all, as JSON, logs and metrics have them.
    pub const NAMES: [&'static str; 6] = ["scale", "number", "pass", "block", "enforce", "shadow"];

    /// One of [`Effect::NAMES`].
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

    /// What it excludes others of.
    pub const fn kind(self) -> Kind {
        match self {
            Effect::Scale(_) | Effect::Number(_) => Kind::Number,
            Effect::Pass | Effect::Block => Kind::Passage,
            Effect::Enforce | Effect::Shadow => Kind::Role,
        }
    }

    /// The number that it asks for in place of a limit's own.
    pub fn number(self, own: u32) -> u32 {
        match self {
            Effect::Scale(Share(share)) => scaled(own, share, Share::WHOLE),
            Effect::Number(number) => number,
            Effect::Pass | Effect::Block | Effect::Enforce | Effect::Shadow => own,
        }
    }

    /// What it makes of a limit. One that cannot have such a number keeps its own.
    pub fn limit(self, limit: &Limit) -> Limit {
        match self {
            Effect::Scale(Share(share)) => limit.scaled_by(share, Share::WHOLE),
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

    /// Of what people write: `10%`, `2.5%`.
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

/// What an adjustment says beside its name and its time. Made by [`Written`], which checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What it is for.
    pub target: Target,
    /// What it does.
    pub effect: Effect,
    /// Who made it, as they say themselves.
    pub who: String,
    /// Why.
    pub why: String,
}

/// An adjustment that shall begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// What it is called. To propose the same once more changes nothing.
    pub id: Id,
    /// What it says.
    pub content: Content,
    /// How long it holds, in whole milliseconds within [`LASTS`].
    pub lasts: Duration,
}

/// An adjustment that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// What it is called.
    pub id: Id,
    /// What it says.
    pub content: Content,
    /// When it began, on the store's clock, in milliseconds since the epoch.
    pub since_ms: u64,
    /// When it ends, on the same clock.
    pub until_ms: u64,
}

impl Adjustment {
    /// How long it holds from beginning to end.
    pub fn lasts(&self) -> Duration {
        Duration::from_millis(self.until_ms.saturating_sub(self.since_ms))
    }
}

/// In one line, for people.
impl fmt::Display for Adjustment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { target, effect, who, why } = &self.content;
        let until = written::timestamp(self.until_ms);
        write!(f, "{}  {effect}  {target}  until {until}, by {who}: {why}", self.id)
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

    /// A limit of any algorithm, with a burst where it has one.
    fn limits() -> impl Strategy<Value = Limit> {
        let algorithms = prop::sample::select(Algorithm::ALL);
        (algorithms, 0..2_000_u32, 1..100_000_u64, prop::option::of(1..5_000_u32)).prop_map(
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
            limit in limits(), share in 1..20_000_u32, number in 1..3_000_u32,
        ) {
            let scaled = Effect::Scale(Share(share)).limit(&limit);
            let exact = u64::from(limit.number()) * u64::from(share) / 10_000;
            prop_assert_eq!(u64::from(scaled.number()), exact.max(limit.number().min(1).into()));
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
    fn a_target_moves_no_cursor() {
        let (domain, text) = ("a\n".to_owned(), "\u{1b}[2J".to_owned());
        let entries = vec![Entry { key: text.clone(), value: text.clone() }];
        for target in [
            Target::Domain(domain.clone()),
            Target::Rule { domain: domain.clone(), rule: text },
            Target::Descriptor { domain, entries },
        ] {
            let words = target.to_string();
            assert!(words.contains("a\\n") && !words.contains(char::is_control), "{words}");
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
        assert_eq!(Effect::Number(u32::MAX).limit(&limit), limit);
    }
}
