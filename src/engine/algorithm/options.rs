//! The options of algorithms: what a limit may say beyond its number and period.
//!
//! Each is declared in `options!` below, once, with the type of its value. How rules are read, shown, explained and
//! compared follows from that, and so does what property tests draw. Which algorithm has which option, the algorithms
//! say themselves ([`Algorithm::options`]).

use std::time::Duration;

use super::{Algorithm, StartsOn, TimeZone};
use super::{budget_terms, concurrency};

/// An option of algorithms, as rules have it.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Its key.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// What it means, for an editor.
    pub about: &'static str,
    /// A value with which it has an effect, as a rules file has it.
    pub example: &'static str,
    /// Keys of a limit, and algorithms, that it does not go with; and why.
    pub conflicts: &'static [(&'static str, &'static str)],
    /// `explain` shows what is in force where the limit does not say it.
    pub is_explained: bool,
}

/// What the value of an option is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number of 32 bits.
    Number,
    /// A whole number below 2^53.
    Wide,
    /// Yes or no.
    Flag,
    /// A length of time.
    Length,
    /// One of these names.
    Choice(fn() -> Vec<&'static str>),
    /// The name of a time zone.
    TimeZone,
    /// A date, such as 2026-01-15.
    Date,
}

/// A value of an option, as its source has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written<'w> {
    /// A whole number.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// A length of time.
    Length(Duration),
    /// A name, or a date.
    Name(&'w str),
}

/// The type of an option's value.
trait Value: Copy {
    const KIND: Kind;

    /// The value; `None` where there is no such value.
    fn of(written: Written<'_>) -> Option<Self>;

    /// As rules write it.
    fn written(&self) -> String;
}

macro_rules! options {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident: $value:ty {
            about: $about:expr, example: $example:literal, conflicts: $conflicts:expr, is_explained: $explained:literal
        }
    )*) => {
        /// Options of a limit, besides its number and period. An option that the algorithm does not have is an error.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Options { $(
            $(#[doc = $doc])*
            pub $name: Option<$value>,
        )* }

        impl Options {
            /// Every option.
            pub const ALL: &'static [Declared] = &[$(Declared {
                name: stringify!($name),
                kind: <$value as Value>::KIND,
                about: $about,
                example: $example,
                conflicts: $conflicts,
                is_explained: $explained,
            }),*];

            /// Sets an option by its name. Returns false if the option cannot have this value.
            pub fn set(&mut self, name: &str, written: Written<'_>) -> bool {
                match name {
                    $(stringify!($name) => {
                        self.$name = Value::of(written);
                        self.$name.is_some()
                    })*
                    _ => false,
                }
            }

            /// Returns the options as rules write them, in the order of [`Options::ALL`].
            pub fn written(&self) -> Vec<Option<String>> {
                vec![$(self.$name.as_ref().map(Value::written)),*]
            }

            /// Returns the options that the algorithm has.
            #[must_use]
            pub fn of(self, algorithm: Algorithm) -> Options {
                Options { $($name: self.$name.filter(|_| algorithm.has(stringify!($name)))),* }
            }

            /// Returns the names of the options that are set.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
                let given = [$((stringify!($name), self.$name.is_some())),*];
                given.into_iter().filter_map(|(name, given)| given.then_some(name))
            }
        }
    };
}

options! {
    /// Buckets: hits allowed at once.
    burst: u32 {
        about: "For buckets: capacity, the number of hits allowed at once. Default: requests_per_unit for a token \
                bucket, 1 for a leaky bucket.",
        example: "20", conflicts: &[], is_explained: true
    }
    /// Token bucket: the content of a new bucket.
    initial: Initial {
        about: "For token buckets: tokens in a new bucket. Default: full.",
        example: "empty", conflicts: &[], is_explained: false
    }
    /// Leaky bucket: the longest delay of a request that exceeds the burst.
    max_delay: Duration {
        about: "For leaky buckets: delays a request that comes too early until its release time, for at most this \
                duration, up to 60s.",
        example: "250ms", conflicts: &[], is_explained: false
    }
    /// Sliding window and budget: number of sub-windows in a period, from 1 to 60.
    segments: u32 {
        about: "For sliding windows and budgets: number of sub-windows, from 1 to 60. Default: 10.",
        example: "60", conflicts: &[], is_explained: false
    }
    /// Sliding window: the weight of the oldest sub-window, which the window covers only in part.
    weighting: Weighting {
        about: "For sliding windows: the part that the oldest sub-window, which is partly over, contributes to the \
                count. Default: strict.",
        example: "linear", conflicts: &[], is_explained: false
    }
    /// Fixed window and budget: aligns windows with the days, weeks, months or years of this time zone. The period
    /// selects the unit: 24 hours, 7 days, 30 days or 365 days.
    time_zone: TimeZone {
        about: "For fixed windows and budgets: windows are the calendar days, weeks, months or years of this time \
                zone, such as Asia/Shanghai or UTC. Without it, fixed windows have the length of the unit and are \
                aligned to the epoch, and those of budgets slide.",
        example: "Asia/Shanghai",
        conflicts: &[("segments", budget_terms::NO_SEGMENTS)],
        is_explained: false
    }
    /// Fixed window and budget: the day on which windows of the calendar begin.
    starts_on: StartsOn {
        about: "For fixed windows and budgets with a time_zone: weeks begin on the weekday of this date, months on its \
                day of the month, and years on its day of the year. Beside a period of whole days, the days are \
                counted from this date. Default: Monday, the 1st, 1 January.",
        example: "2026-01-15",
        conflicts: &[(
            "segments",
            "starts_on is a day of the calendar, whose windows have no sub-windows: remove one of the two",
        )],
        is_explained: false
    }
    /// Fixed window: what a window begins with.
    starts: Starts {
        about: "For fixed windows: whether a window starts with the clock, or with the first request that it counts. \
                Default: clock.",
        example: "first_request",
        conflicts: &[
            (
                "time_zone",
                "windows of the calendar start with its days, and not with a request: remove one of the two",
            ),
            ("starts_on", "a window starts on a day or with a request, not both: remove one of the two"),
        ],
        is_explained: false
    }
    /// Budget: the time in which a stream must settle what it holds.
    settle_within: Duration {
        about: "For budgets: time after which what a stream holds is unsettled, from 1ms to 366d. Longer than any \
                stream should last. Default: 10m.",
        example: "30m", conflicts: &[], is_explained: true
    }
    /// Budget: the part of what is left of a window of the calendar that the next one has more, in percent.
    carry_percent: u32 {
        about: "For budgets with a time_zone: the part of what is left of a window that is carried over into the next \
                one, from 1 to 100 percent. Default: nothing is.",
        example: "20",
        conflicts: &[("segments", budget_terms::CARRIES_NO_SEGMENTS)],
        is_explained: false
    }
    /// Budget: what a stream holds that brings no estimate of its own.
    estimate: u64 {
        about: "For budgets: hits that a stream holds if it brings no estimate, that is, holds 0. Without it, the \
                estimate of another budget for the same descriptor, or else 1.",
        example: "500", conflicts: &[], is_explained: false
    }
    /// Budget: whether streams that bring no estimate hold what others have used.
    learn_estimate: bool {
        about: "For budgets: whether a stream that brings no estimate holds what nine of ten streams of the same \
                counter have used at most, learned as they settle. It begins with estimate. Default: false.",
        example: "true", conflicts: &[], is_explained: false
    }
    /// Budget: the least that a stream holds.
    min_estimate: u64 {
        about: "For budgets: hits that a stream holds at least, whatever estimate it brings or was learned.",
        example: "200", conflicts: &[], is_explained: false
    }
    /// Budget: the most that a stream holds.
    max_estimate: u64 {
        about: "For budgets: hits that a stream holds at most. A stream that brings a larger estimate is one that \
                brings none.",
        example: "2000", conflicts: &[], is_explained: false
    }
    /// Budget: what becomes of hits that are held and not settled in time.
    unsettled: Unsettled {
        about: "For budgets: whether what a stream holds and does not settle in time is charged or refunded. Default: \
                charge.",
        example: "refund", conflicts: &[], is_explained: true
    }
    /// Charges denied requests, too. Only fixed windows have it on by default; concurrency never does.
    count_denied: bool {
        about: "Whether denied requests are charged as well. Default: true for fixed windows, false for others.",
        example: "true", conflicts: &[
            ("concurrency", concurrency::COUNTS_NO_DENIED),
            ("budget", budget_terms::COUNTS_NO_DENIED),
        ],
        is_explained: true
    }
}

/// What a fixed window begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Starts {
    /// The clock, or the calendar: all counters of a limit have the same windows.
    #[default]
    Clock,
    /// The first request that is counted in it, as `INCR` and `EXPIRE` do it.
    FirstRequest,
}

impl Starts {
    /// Both values.
    pub const ALL: [Starts; 2] = [Starts::Clock, Starts::FirstRequest];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Starts::Clock => "clock",
            Starts::FirstRequest => "first_request",
        }
    }
}

/// What becomes of hits that a stream holds and does not settle in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unsettled {
    /// They are charged as if they had been used.
    #[default]
    Charge,
    /// They are refunded.
    Refund,
}

impl Unsettled {
    /// Both values.
    pub const ALL: [Unsettled; 2] = [Unsettled::Charge, Unsettled::Refund];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Unsettled::Charge => "charge",
            Unsettled::Refund => "refund",
        }
    }
}

/// The content of a token bucket that is new or has not been used for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Initial {
    /// The whole burst.
    #[default]
    Full,
    /// Nothing; the bucket fills over time.
    Empty,
}

impl Initial {
    /// Both values.
    pub const ALL: [Initial; 2] = [Initial::Full, Initial::Empty];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Initial::Full => "full",
            Initial::Empty => "empty",
        }
    }
}

/// The weight of the oldest sub-window of a sliding window, which the window covers only in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weighting {
    /// Counts in full: no period ever admits more than the number, and steady overload admits somewhat less.
    #[default]
    Strict,
    /// Counts for the part still covered: the number is admitted on average, twice the number at worst.
    Linear,
}

impl Weighting {
    /// Both values.
    pub const ALL: [Weighting; 2] = [Weighting::Strict, Weighting::Linear];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Weighting::Strict => "strict",
            Weighting::Linear => "linear",
        }
    }
}

impl Value for u32 {
    const KIND: Kind = Kind::Number;

    fn of(written: Written<'_>) -> Option<u32> {
        if let Written::Number(number) = written { u32::try_from(number).ok() } else { None }
    }

    fn written(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    const KIND: Kind = Kind::Wide;

    fn of(written: Written<'_>) -> Option<u64> {
        if let Written::Number(number) = written { Some(number) } else { None }
    }

    fn written(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Flag;

    fn of(written: Written<'_>) -> Option<bool> {
        if let Written::Flag(flag) = written { Some(flag) } else { None }
    }

    fn written(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const KIND: Kind = Kind::Length;

    fn of(written: Written<'_>) -> Option<Duration> {
        if let Written::Length(length) = written { Some(length) } else { None }
    }

    fn written(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

/// The options with a name as value.
macro_rules! choices {
    ($($choice:ident)*) => { $(
        impl Value for $choice {
            const KIND: Kind = Kind::Choice(|| $choice::ALL.map($choice::name).to_vec());

            fn of(written: Written<'_>) -> Option<$choice> {
                $choice::ALL.into_iter().find(|choice| written == Written::Name(choice.name()))
            }

            fn written(&self) -> String {
                self.name().to_owned()
            }
        }
    )* };
}

choices! { Initial Weighting Starts Unsettled }

impl Value for TimeZone {
    const KIND: Kind = Kind::TimeZone;

    fn of(written: Written<'_>) -> Option<TimeZone> {
        if let Written::Name(name) = written { TimeZone::named(name) } else { None }
    }

    fn written(&self) -> String {
        self.to_string()
    }
}

impl Value for StartsOn {
    const KIND: Kind = Kind::Date;

    fn of(written: Written<'_>) -> Option<StartsOn> {
        if let Written::Name(date) = written { StartsOn::parse(date) } else { None }
    }

    fn written(&self) -> String {
        self.to_string()
    }
}
