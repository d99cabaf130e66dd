//! Limits: what a rule may say of one, whether it can be computed exactly, and what is wrong with it if not.

use std::time::Duration;

use super::calendar::Calendar;
use super::{
    Algorithm, Caller, FIGURES, NoLease, Parameters, TimeZone, concurrency, fixed_window, leaky_bucket, sliding_log,
    sliding_window,
};

/// The longest period a limit may have: 366 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The longest that a request may be delayed: longer than anybody waits for an answer.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// The longest time that an empty bucket may need to fill: a thousand years.
pub(super) const MAX_REFILL_MS: u128 = 1000 * 366 * 24 * 60 * 60 * 1000;

/// What a limit may say beyond its number and period. An option that the algorithm does not have is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// It charges denied requests, too. By default only for a fixed window. Every algorithm has it.
    pub count_denied: Option<bool>,
    /// Of a bucket: how much passes at once.
    pub burst: Option<u32>,
    /// Of a leaky bucket: how long a request is delayed at most that does not fit at once.
    pub max_delay: Option<Duration>,
    /// Of a token bucket: what a new one holds.
    pub initial: Option<Initial>,
    /// Of a sliding window: how many counts a period is cut into, from 1 to 60.
    pub segments: Option<u32>,
    /// Of a sliding window: what the segment counts that is partly left.
    pub weighting: Option<Weighting>,
    /// Of a fixed window: its windows are the days, weeks, months or years there, for which periods of 24 hours, 7, 30
    /// and 365 days stand.
    pub time_zone: Option<TimeZone>,
}

impl Options {
    /// The names of the options that are given, but for `count_denied`.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let Options { count_denied: _, burst, max_delay, initial, segments, weighting, time_zone } = self;
        let given = [
            ("burst", burst.is_some()),
            ("max_delay", max_delay.is_some()),
            ("initial", initial.is_some()),
            ("segments", segments.is_some()),
            ("weighting", weighting.is_some()),
            ("time_zone", time_zone.is_some()),
        ];
        given.into_iter().filter_map(|(name, given)| given.then_some(name))
    }
}

/// What a token bucket holds that has not been seen, or not for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Initial {
    /// The burst.
    #[default]
    Full,
    /// Nothing: it has to be waited for.
    Empty,
}

impl Initial {
    /// Both.
    pub const ALL: [Initial; 2] = [Initial::Full, Initial::Empty];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Initial::Full => "full",
            Initial::Empty => "empty",
        }
    }
}

/// What the segment of a sliding window counts that is partly left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weighting {
    /// In full: never more than the number passes in any period, and somewhat less than it under steady overload.
    #[default]
    Strict,
    /// For the part that is not left yet: the number passes on average, and up to twice that at the worst.
    Linear,
}

impl Weighting {
    /// Both.
    pub const ALL: [Weighting; 2] = [Weighting::Strict, Weighting::Linear];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Weighting::Strict => "strict",
            Weighting::Linear => "linear",
        }
    }
}

/// So many hits in a period, counted by an algorithm. Every value of this type can be computed exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    pub(super) number: u32,
    pub(super) period_ms: u64,
    pub(super) options: Options,
    pub(super) parameters: Parameters,
}

/// Why there is no such limit: all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(LimitError::to_string).collect::<Vec<_>>().join("; "))]
pub struct LimitErrors(pub Vec<LimitError>);

impl LimitErrors {
    /// Fails with those that there are.
    pub(super) fn any(errors: impl IntoIterator<Item = Option<LimitError>>) -> Result<(), LimitErrors> {
        let errors: Vec<LimitError> = errors.into_iter().flatten().collect();
        if errors.is_empty() { Ok(()) } else { Err(LimitErrors(errors)) }
    }
}

impl From<LimitError> for LimitErrors {
    fn from(error: LimitError) -> Self {
        LimitErrors(vec![error])
    }
}

/// One thing that is wrong with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Under a millisecond, over [`MAX_PERIOD`], or with a fraction of a millisecond.
    #[error("a period is a whole number of milliseconds, from 1ms to 366d")]
    Period,
    /// An option that the algorithm does not have.
    #[error("{0} has no {1}; {owners}", owners = owners(.1))]
    NoOption(Algorithm, &'static str),
    /// A bucket that holds nothing.
    #[error("burst must be at least 1: a bucket that holds nothing lets nothing pass")]
    ZeroBurst,
    /// A bucket that takes longer to fill than any promise about it can reach.
    #[error("an empty bucket of this burst would take more than a thousand years to fill: lower the burst")]
    EndlessRefill,
    /// Shorter than a millisecond, over [`MAX_DELAY`], or with a fraction of a millisecond.
    #[error("max_delay is a whole number of milliseconds, from 1ms to 60s; without it no request is delayed")]
    MaxDelay,
    /// More wait than can be counted.
    #[error("more than 4294967295 hits would fit into a max_delay of this length: lower it")]
    EndlessQueue,
    /// No segment at all, or more than pays.
    #[error("segments must be from 1 to 60")]
    Segments,
    /// A calendar has no windows of this length.
    #[error("time_zone goes with unit day, week, month or year: shorter windows follow no calendar")]
    TimeZone,
    /// More hits than a log keeps.
    #[error(
        "a sliding log keeps every hit: its number is at most {}; for more, take \
         sliding_window with segments: 60, which keeps 61 counts",
        sliding_log::MAX_NUMBER
    )]
    LogNumber,
    /// The period of a concurrency limit, out of the same range.
    #[error("hold is a whole number of milliseconds, from 1ms to 366d")]
    Hold,
    /// More slots than are kept.
    #[error("concurrency keeps every slot that is taken: it has at most {} slots", concurrency::MAX_NUMBER)]
    Slots,
    /// Denials that take slots.
    #[error("concurrency counts what is in progress, and a denied request never is: remove count_denied")]
    SlotsOfDenied,
}

impl LimitError {
    /// The key in rules that is wrong.
    pub const fn key(&self) -> &'static str {
        match self {
            LimitError::Period => "period",
            LimitError::NoOption(_, option) => option,
            LimitError::ZeroBurst | LimitError::EndlessRefill => "burst",
            LimitError::MaxDelay | LimitError::EndlessQueue => "max_delay",
            LimitError::Segments => "segments",
            LimitError::TimeZone => "time_zone",
            LimitError::Hold => "hold",
            LimitError::LogNumber | LimitError::Slots => "requests_per_unit",
            LimitError::SlotsOfDenied => "count_denied",
        }
    }

    /// It is about several values together: it says nothing where one of them is wrong by itself.
    pub const fn is_of_several(&self) -> bool {
        matches!(self, LimitError::EndlessRefill | LimitError::EndlessQueue | LimitError::TimeZone)
    }
}

/// Whole milliseconds, from one up to [`MAX_PERIOD`].
pub(super) fn is_period(length: Duration) -> bool {
    !length.is_zero() && length <= MAX_PERIOD && length.subsec_nanos().is_multiple_of(1_000_000)
}

/// Which algorithms have an option.
fn owners(option: &str) -> String {
    let owners = Algorithm::ALL.iter().filter(|algorithm| algorithm.options().contains(&option));
    let names: Vec<_> = owners.map(|algorithm| algorithm.name()).collect();
    format!("{} {}", names.join(" and "), if names.len() == 1 { "has" } else { "have" })
}

impl Limit {
    /// A limit of `number` hits in `period`, or for concurrency at once: then the period is how long a slot stays
    /// taken that no stream releases. Zero lets nothing pass.
    ///
    /// # Errors
    /// With all that is wrong: a value out of range, or an option that does not belong to the algorithm.
    pub fn new(algorithm: Algorithm, number: u32, period: Duration, options: Options) -> Result<Limit, LimitErrors> {
        let wrong_period = (!is_period(period)).then_some(match algorithm {
            algorithm if algorithm.has_holders() => LimitError::Hold,
            _ => LimitError::Period,
        });
        // With any other in its place the rest can be looked at.
        let period_ms = if wrong_period.is_none() { period.as_millis() as u64 } else { 1 };
        let foreign = options.given().filter(|option| !algorithm.options().contains(option));
        let mut errors: Vec<_> = foreign.map(|option| LimitError::NoOption(algorithm, option)).collect();
        errors.extend(wrong_period);
        match algorithm.parameters(number, period_ms, &options) {
            Ok(parameters) if errors.is_empty() => return Ok(Limit { number, period_ms, options, parameters }),
            Ok(_) => {}
            Err(LimitErrors(own)) => {
                errors.extend(own.into_iter().filter(|error| wrong_period.is_none() || !error.is_of_several()));
            }
        }
        Err(LimitErrors(errors))
    }

    /// The same limit for one of `parts` processes that count each for itself: see [`Limit::scaled_by`].
    #[must_use]
    pub fn divided_by(&self, parts: u32) -> Limit {
        self.scaled_by(1, parts)
    }

    /// A limit of the same counter with this number, and with a burst changed in proportion; the same limit where the
    /// algorithm cannot have such a number.
    #[must_use]
    pub fn with_number(&self, number: u32) -> Limit {
        match self.number {
            0 => self.with(number, self.options).unwrap_or(*self),
            own => self.scaled_by(number, own),
        }
    }

    /// A limit of the same counter whose number and burst are `part / whole` of these, rounded down, but at least 1
    /// where there was anything. A burst that would then take a thousand years to fill is left out; a number that the
    /// algorithm cannot have changes nothing.
    #[must_use]
    pub fn scaled_by(&self, part: u32, whole: u32) -> Limit {
        let share = |number| scaled(number, part, whole);
        let options = Options { burst: self.options.burst.map(share), ..self.options };
        let without_burst = Options { burst: None, ..options };
        self.with(share(self.number), options)
            .or_else(|_| self.with(share(self.number), without_burst))
            .unwrap_or(*self)
    }

    /// A limit of the same counter that lets nothing pass, and counts nothing.
    #[must_use]
    pub fn closed(&self) -> Limit {
        self.with(0, Options { count_denied: Some(false), ..self.options }).unwrap_or(*self)
    }

    /// The same limit with another number, and all else as it is. Its counter is the same.
    ///
    /// # Errors
    /// Where the algorithm has no such limit.
    pub fn with_number_alone(&self, number: u32) -> Result<Limit, LimitErrors> {
        self.with(number, self.options)
    }

    fn with(&self, number: u32, options: Options) -> Result<Limit, LimitErrors> {
        Limit::new(self.algorithm(), number, self.period(), options)
    }

    /// What it says beyond its number and period.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The options with what holds where nobody says otherwise: all that the algorithm has, but for a `max_delay`,
    /// without which no request is delayed.
    pub fn in_force(&self) -> Options {
        let given = self.options;
        let options = Options { count_denied: Some(self.count_denied()), ..given };
        match self.algorithm() {
            Algorithm::SlidingWindow => Options {
                segments: given.segments.or(Some(sliding_window::SEGMENTS)),
                weighting: Some(given.weighting.unwrap_or_default()),
                ..options
            },
            Algorithm::TokenBucket => Options {
                burst: given.burst.or(Some(self.capacity())),
                initial: Some(given.initial.unwrap_or_default()),
                ..options
            },
            Algorithm::LeakyBucket => Options { burst: given.burst.or(Some(leaky_bucket::BURST)), ..options },
            Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::Concurrency => options,
        }
    }

    /// It limits just as the other does, whoever says what need not be said.
    pub fn limits_as(&self, other: &Limit) -> bool {
        let all = |limit: &Limit| (limit.algorithm(), limit.number, limit.period_ms, limit.in_force());
        all(self) == all(other)
    }

    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.parameters.algorithm()
    }

    /// Hits in a period.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The period. Of a calendar, a length that stands for its unit.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// The window that the number is for; `None` where the number is for every moment.
    pub fn window(&self) -> Option<Duration> {
        (!self.algorithm().has_holders()).then(|| self.period())
    }

    /// The period in milliseconds.
    pub fn period_ms(&self) -> u64 {
        self.period_ms
    }

    /// It charges denied requests, too. envoyproxy/ratelimit charges denials, so its algorithm does by default.
    pub fn count_denied(&self) -> bool {
        self.options.count_denied.unwrap_or(self.algorithm() == Algorithm::FixedWindow)
    }

    /// How much work a decision is at the most, measured, where one of a small counter is 1.
    pub fn work(&self) -> u64 {
        self.parameters.work(self)
    }

    /// Why none of its hits can be taken in advance, where it is so.
    pub fn no_lease(&self) -> Option<NoLease> {
        let delays = self.options.max_delay.map(|_| NoLease::Delay);
        let counts = self.count_denied().then_some(NoLease::CountDenied);
        self.algorithm().traits().no_lease.or(delays).or(counts)
    }

    /// A denial holds for the same request until it says that the request passes, unless a request refunds
    /// something; and it leaves no trace, so that no request needs to ask meanwhile.
    pub fn denials_last(&self) -> bool {
        self.algorithm().traits().denials_last && !self.count_denied()
    }

    /// A denied request changes nothing in its counter, not even the first.
    pub fn ignores_denied(&self) -> bool {
        self.denials_last() && self.options.initial != Some(Initial::Empty)
    }

    /// How long a request of this caller may be delayed, in milliseconds.
    pub fn max_delay_ms(&self, caller: Caller) -> u64 {
        self.options.max_delay.map_or(0, |delay| delay.as_millis() as u64).min(caller.max_wait_ms)
    }

    /// The most that can be admitted at one moment: the number, or the burst of a bucket and what may be delayed.
    pub fn capacity(&self) -> u32 {
        self.parameters.capacity(self)
    }

    /// The algorithm's own figures, as the Lua twin takes them. `clock` reads the clock of this process, in
    /// milliseconds since the epoch; it is asked where windows follow a calendar.
    pub fn figures(&self, caller: Caller, clock: impl FnOnce() -> u64) -> [u64; FIGURES] {
        match self.calendar() {
            Some(calendar) => fixed_window::Parameters::calendar_figures(calendar, clock()),
            None => self.parameters.figures(caller),
        }
    }

    fn calendar(&self) -> Option<Calendar> {
        if let Parameters::FixedWindow(parameters) = &self.parameters { parameters.calendar() } else { None }
    }

    /// Appends what of the limit is part of a counter's name: the algorithm with the version of its layout, and its
    /// window; but not the number, so that a changed number goes on with the same counter.
    pub fn identity(&self, name: &mut String) {
        name.push_str(self.algorithm().traits().code);
        name.push(':');
        self.parameters.identity(self, name);
    }
}

/// So many parts of a whole of this number, rounded down; 0 only of 0.
pub(crate) fn scaled(number: u32, part: u32, whole: u32) -> u32 {
    let exact = u64::from(number) * u64::from(part) / u64::from(whole.max(1));
    u32::try_from(exact).unwrap_or(u32::MAX).max(number.min(1))
}
