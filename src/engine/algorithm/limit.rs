//! Limits: the options a rule can set, the check that a limit can be computed exactly, and the errors if it cannot.

use std::time::Duration;

use super::budget_terms;
use super::calendar::Calendar;
use super::concurrency;
use super::fixed_window;
use super::leaky_bucket;
use super::options::{Initial, Options};
use super::sliding_log;
use super::sliding_window;
use super::{Algorithm, Ask, Caller, FIGURES, MAX_HITS, MAX_NUMBER, NoLease, Occupies, Parameters};

/// The longest period a limit may have: 366 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The period of a budget without an end, which is a balance: ten years. So long it is kept after its last change.
pub const NEVER: Duration = Duration::from_secs(3_660 * 24 * 60 * 60);

/// The longest that a request may be delayed; no caller waits longer for an answer.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// The longest time that an empty bucket may need to fill: a thousand years.
pub(super) const MAX_REFILL_MS: u128 = 1000 * 366 * 24 * 60 * 60 * 1000;

/// A number of hits per period, counted by an algorithm. Every value of this type can be computed exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    pub(super) number: u64,
    pub(super) period_ms: u64,
    pub(super) options: Options,
    pub(super) parameters: Parameters,
}

/// All the reasons why a limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(LimitError::to_string).collect::<Vec<_>>().join("; "))]
pub struct LimitErrors(pub Vec<LimitError>);

impl LimitErrors {
    /// Fails if there are any errors.
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

/// One reason why a limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Under a millisecond, over [`MAX_PERIOD`], or with a fraction of a millisecond.
    #[error("a period is a whole number of milliseconds, from 1ms to 366d")]
    Period,
    /// An option that the algorithm does not have.
    #[error("{0} has no {1}; {owners}", owners = owners(.1))]
    NoOption(Algorithm, &'static str),
    /// A bucket with a burst of 0.
    #[error("burst must be at least 1: an empty bucket allows no requests")]
    ZeroBurst,
    /// A bucket that takes too long to fill.
    #[error("an empty bucket would take more than a thousand years to fill: lower the burst")]
    EndlessRefill,
    /// Shorter than a millisecond, over [`MAX_DELAY`], or with a fraction of a millisecond.
    #[error("max_delay is a whole number of milliseconds, from 1ms to 60s; without it no request is delayed")]
    MaxDelay,
    /// A `max_delay` that lets more hits wait than can be counted.
    #[error("more than 4294967295 hits would fit into a max_delay of this length: lower it")]
    EndlessQueue,
    /// No segments, or more than are useful.
    #[error("segments must be from 1 to 60")]
    Segments,
    /// A budget with sub-windows and a calendar.
    #[error("{}", budget_terms::NO_SEGMENTS)]
    SegmentsOfCalendar,
    /// A balance with windows.
    #[error("{}", budget_terms::NO_WINDOWS)]
    NoWindows(&'static str),
    /// A part to carry over that is none.
    #[error("carry_percent must be from 1 to 100: without it, nothing is carried over")]
    CarryPercent,
    /// A part to carry over, without windows of the calendar.
    #[error(
        "carry_percent needs a time_zone: what is left of a window of the calendar is carried over into the next one"
    )]
    CarriesNothing,
    /// `time_zone` with a period that is not a calendar unit.
    #[error("time_zone needs unit day, week, month or year: shorter windows do not depend on the calendar")]
    TimeZone,
    /// `starts_on` without a calendar.
    #[error("starts_on needs a time_zone, by whose clocks the day begins")]
    StartsOn,
    /// `starts_on` with windows that begin every day.
    #[error("starts_on has no effect on unit day, which begins every day: remove it, or write a period such as 14d")]
    StartsOnOfDay,
    /// `starts_on` with a period that is not a number of days.
    #[error("with starts_on, a period is a whole number of days, from 1d to 366d")]
    PeriodOfDays,
    /// A window of the calendar that starts with a request.
    #[error("starts: first_request has no time_zone: windows of the calendar start with its days")]
    Starts,
    /// A number that only a budget can have.
    #[error("requests_per_unit is at most {}; only a budget counts beyond that", u32::MAX)]
    Number,
    /// A number or an estimate of a budget that is not below 2^53.
    #[error("{0} is below 2^53 = {MAX_HITS}")]
    TooLarge(&'static str),
    /// More hits than a sliding log keeps.
    #[error(
        "a sliding log stores every hit, so requests_per_unit is at most {}: for more, use sliding_window with \
         segments: 60, which stores 61 counts",
        sliding_log::MAX_NUMBER
    )]
    LogNumber,
    /// The `hold` of a concurrency limit, outside the range of a period.
    #[error("hold is a whole number of milliseconds, from 1ms to 366d")]
    Hold,
    /// More slots than a concurrency limit keeps.
    #[error("concurrency stores every slot in use, so it has at most {} slots", concurrency::MAX_NUMBER)]
    Slots,
    /// `count_denied` on a concurrency limit.
    #[error("{}", concurrency::COUNTS_NO_DENIED)]
    SlotsOfDenied,
    /// The `settle_within` of a budget, outside the range of a period.
    #[error("settle_within is a whole number of milliseconds, from 1ms to 366d")]
    SettleWithin,
    /// One of the estimates is 0.
    #[error("{0} must be at least 1: a stream that holds nothing may begin however little is left")]
    Estimate(&'static str),
    /// The estimates of a budget are not in order.
    #[error("min_estimate, estimate and max_estimate must be in ascending order")]
    Estimates,
    /// `count_denied` on a budget.
    #[error("{}", budget_terms::COUNTS_NO_DENIED)]
    DeniedOfBudget,
}

impl LimitError {
    /// Returns the key in rules that is wrong.
    pub const fn key(&self) -> &'static str {
        match self {
            LimitError::Period | LimitError::PeriodOfDays => "period",
            LimitError::NoOption(_, option) => option,
            LimitError::ZeroBurst | LimitError::EndlessRefill => "burst",
            LimitError::MaxDelay | LimitError::EndlessQueue => "max_delay",
            LimitError::Segments | LimitError::SegmentsOfCalendar => "segments",
            LimitError::TimeZone => "time_zone",
            LimitError::NoWindows(key) => key,
            LimitError::CarryPercent | LimitError::CarriesNothing => "carry_percent",
            LimitError::StartsOn | LimitError::StartsOnOfDay => "starts_on",
            LimitError::Starts => "starts",
            LimitError::Hold => "hold",
            LimitError::Number | LimitError::LogNumber | LimitError::Slots => "requests_per_unit",
            LimitError::SlotsOfDenied | LimitError::DeniedOfBudget => "count_denied",
            LimitError::SettleWithin => "settle_within",
            LimitError::Estimate(key) | LimitError::TooLarge(key) => key,
            LimitError::Estimates => "estimate",
        }
    }

    /// Returns whether the error involves several values. Such an error is reported only if each of the values is
    /// valid.
    pub const fn is_of_several(&self) -> bool {
        use LimitError::{EndlessQueue, EndlessRefill, Estimates, PeriodOfDays, Starts, StartsOnOfDay, TimeZone};
        let is_of_calendar = matches!(self, TimeZone | StartsOnOfDay | PeriodOfDays | Starts);
        is_of_calendar || matches!(self, EndlessRefill | EndlessQueue | Estimates)
    }
}

/// Returns the largest number that limits of an algorithm may have, unless it has a lower bound of its own.
fn max_number(algorithm: Algorithm) -> u64 {
    if algorithm == Algorithm::Budget { MAX_NUMBER } else { u32::MAX.into() }
}

/// Returns whether `length` is a whole number of milliseconds, from 1 up to [`MAX_PERIOD`].
pub(super) fn is_period(length: Duration) -> bool {
    !length.is_zero() && length <= MAX_PERIOD && length.subsec_nanos().is_multiple_of(1_000_000)
}

/// Names the algorithms that have an option, for an error message.
fn owners(option: &str) -> String {
    let owners = Algorithm::ALL.iter().filter(|algorithm| algorithm.options().contains(&option));
    let names: Vec<_> = owners.map(|algorithm| algorithm.name()).collect();
    format!("{} {}", names.join(" and "), if names.len() == 1 { "has" } else { "have" })
}

impl Limit {
    /// Creates a limit of `number` hits in `period`. For concurrency, it is a limit of `number` slots in use at once,
    /// and `period` is the time after which an unreleased slot expires. A number of 0 allows nothing.
    ///
    /// # Errors
    /// Returns all errors: values out of range, and options that the algorithm does not have.
    pub fn new(algorithm: Algorithm, number: u64, period: Duration, options: Options) -> Result<Limit, LimitErrors> {
        let wrong_number =
            (number > max_number(algorithm)).then_some(algorithm).and_then(|algorithm| match algorithm {
                Algorithm::Budget => Some(LimitError::TooLarge("requests_per_unit")),
                // These have lower bounds of their own.
                Algorithm::SlidingLog | Algorithm::Concurrency => None,
                _ => Some(LimitError::Number),
            });
        let is_balance = algorithm == Algorithm::Budget && period == NEVER;
        let wrong_period = (!is_period(period) && !is_balance).then_some(match algorithm {
            algorithm if algorithm.counts_in_progress() => LimitError::Hold,
            _ => LimitError::Period,
        });
        // A placeholder, so that the other values can be checked, too.
        let period_ms = if wrong_period.is_none() { period.as_millis() as u64 } else { 1 };
        let foreign = options.given().filter(|option| !algorithm.has(option));
        let mut errors: Vec<_> = foreign.map(|option| LimitError::NoOption(algorithm, option)).collect();
        let is_whole = wrong_period.is_none() && wrong_number.is_none();
        errors.extend(wrong_period.into_iter().chain(wrong_number));
        match algorithm.parameters(clipped(number), period_ms, &options) {
            Ok(parameters) if errors.is_empty() => return Ok(Limit { number, period_ms, options, parameters }),
            Ok(_) => {}
            Err(LimitErrors(own)) => {
                errors.extend(own.into_iter().filter(|error| is_whole || !error.is_of_several()));
            }
        }
        Err(LimitErrors(errors))
    }

    /// Returns the limit for one of `parts` instances that count separately: see [`Limit::scaled_by`].
    #[must_use]
    pub fn divided_by(&self, parts: u32) -> Limit {
        self.scaled_by(1, parts.into())
    }

    /// Returns this limit with another number and a burst in proportion. The counter is the same. Returns the limit
    /// unchanged if the algorithm cannot have this number.
    #[must_use]
    pub fn with_number(&self, number: u64) -> Limit {
        match self.number {
            0 => self.with(number, self.options).unwrap_or(*self),
            _ if number > max_number(self.algorithm()) => *self,
            own => self.scaled_by(number, own),
        }
    }

    /// Returns this limit with its number and burst multiplied by `part / whole`. The counter is the same. Both values
    /// are rounded down, but stay at least 1 unless they were 0. A burst that would then take a thousand years to fill
    /// is dropped. Returns the limit unchanged if the algorithm cannot have the number.
    #[must_use]
    pub fn scaled_by(&self, part: u64, whole: u64) -> Limit {
        let burst = self.options.burst.map(|burst| clipped(scaled(burst.into(), part, whole)));
        let options = Options { burst, ..self.options };
        let without_burst = Options { burst: None, ..options };
        let number = scaled(self.number, part, whole);
        self.with(number, options).or_else(|_| self.with(number, without_burst)).unwrap_or(*self)
    }

    /// Returns a limit of the same counter that allows nothing and counts nothing.
    #[must_use]
    pub fn closed(&self) -> Limit {
        self.with(0, Options { count_denied: Some(false), ..self.options }).unwrap_or(*self)
    }

    /// Returns this limit with another number and the same options. The counter is the same.
    ///
    /// # Errors
    /// Fails if the algorithm has no such limit.
    pub fn with_number_alone(&self, number: u64) -> Result<Limit, LimitErrors> {
        self.with(number, self.options)
    }

    /// Returns this limit with another number, and with another burst if one is given. The counter is the same.
    /// Returns `None` if the algorithm has no such limit.
    pub fn with_number_and_burst(&self, number: u64, burst: Option<u32>) -> Option<Limit> {
        let options = Options { burst: burst.or(self.options.burst), ..self.options };
        self.with(number, options).ok()
    }

    fn with(&self, number: u64, options: Options) -> Result<Limit, LimitErrors> {
        Limit::new(self.algorithm(), number, self.period(), options)
    }

    /// Returns the options as the rule sets them.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns all options of the algorithm with their defaults filled in, except for `max_delay`: without it requests
    /// are not delayed.
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
                burst: given.burst.or(Some(clipped(self.capacity()))),
                initial: Some(given.initial.unwrap_or_default()),
                ..options
            },
            Algorithm::LeakyBucket => Options { burst: given.burst.or(Some(leaky_bucket::BURST)), ..options },
            Algorithm::FixedWindow => Options { starts: Some(given.starts.unwrap_or_default()), ..options },
            Algorithm::Budget => Options {
                segments: given.segments.or(given.time_zone.is_none().then_some(sliding_window::SEGMENTS)),
                settle_within: given.settle_within.or(Some(budget_terms::SETTLE_WITHIN)),
                unsettled: Some(given.unsettled.unwrap_or_default()),
                ..options
            },
            Algorithm::SlidingLog | Algorithm::Concurrency => options,
        }
    }

    /// Returns whether both limits behave the same, even if one spells out a default.
    pub fn limits_as(&self, other: &Limit) -> bool {
        let all = |limit: &Limit| (limit.algorithm(), limit.number, limit.period_ms, limit.in_force());
        all(self) == all(other)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.parameters.algorithm()
    }

    /// Returns the number of hits in a period.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of a limit that is no budget.
    pub(super) fn number_as_u32(&self) -> u32 {
        clipped(self.number)
    }

    /// Returns the number for arithmetic with refunds.
    pub(super) fn number_as_i64(&self) -> i64 {
        self.number as i64
    }

    /// Returns the period; for a calendar unit, the length that represents it.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// Returns the period that the number applies to; `None` for concurrency, where it applies at every moment, and for
    /// a balance, which has no end.
    pub fn window(&self) -> Option<Duration> {
        (!self.algorithm().counts_in_progress() && !self.is_balance()).then(|| self.period())
    }

    /// Returns whether this is a budget without an end.
    pub fn is_balance(&self) -> bool {
        matches!(&self.parameters, Parameters::Budget(parameters) if parameters.is_balance())
    }

    /// Returns whether operators can add to what may be used: to balances, and windows of a budget's calendar.
    pub fn is_topped_up(&self) -> bool {
        self.is_balance() || (self.algorithm() == Algorithm::Budget && self.calendar().is_some())
    }

    /// Returns whether so long a wait is a time to tell. When a stream ends, which nobody knows, its slot is free at
    /// once. What it holds of a budget is free then, too, so the wait is one at the latest, and beyond the budget's
    /// window it is for streams.
    pub fn is_freed_by_time(&self, wait_ms: u64) -> bool {
        match &self.parameters {
            Parameters::Budget(parameters) => wait_ms <= parameters.window_ms(self.period_ms),
            _ => !self.algorithm().counts_in_progress(),
        }
    }

    /// Returns the period in milliseconds.
    pub fn period_ms(&self) -> u64 {
        self.period_ms
    }

    /// Returns whether denied requests are charged, too. The default is true for fixed windows, as in
    /// envoyproxy/ratelimit.
    pub fn count_denied(&self) -> bool {
        self.options.count_denied.unwrap_or(self.algorithm().counts_denied())
    }

    /// Returns the most work that a decision takes, measured; 1 is a decision on a small counter.
    pub fn work(&self) -> u64 {
        self.parameters.work(self)
    }

    /// Returns why hits of this limit cannot be taken in advance; `None` where they can.
    pub fn no_lease(&self) -> Option<NoLease> {
        let delays = self.options.max_delay.map(|_| NoLease::Delay);
        let counts = self.count_denied().then_some(NoLease::CountDenied);
        let holders = self.occupies().is_none().then_some(NoLease::Holders);
        holders.or(delays).or(counts)
    }

    /// Returns how leased hits occupy a counter; `None` where hits cannot be leased.
    pub fn occupies(&self) -> Option<Occupies> {
        self.algorithm().traits().leased
    }

    /// Returns this limit with less room: while this many hits are out.
    #[must_use]
    pub fn less(&self, out: u64) -> Limit {
        self.with_number_alone(self.number.saturating_sub(out)).unwrap_or(*self)
    }

    /// Returns this limit as one that charges whatever it is asked for.
    #[must_use]
    pub fn charging(&self) -> Limit {
        self.with(self.number, Options { count_denied: Some(true), ..self.options }).unwrap_or(*self)
    }

    /// Returns whether a denial can be cached. Its retry time is then final for the same request, unless another
    /// request refunds hits, and a denied request leaves no trace, so asking the counter in between has no effect.
    pub fn denials_last(&self) -> bool {
        self.algorithm().traits().denials_last && !self.count_denied()
    }

    /// Returns whether a denied request never changes the counter, even if the counter is new.
    pub fn ignores_denied(&self) -> bool {
        self.denials_last() && self.options.initial != Some(Initial::Empty)
    }

    /// Returns the longest delay of a request by this caller, in milliseconds.
    pub fn max_delay_ms(&self, caller: Caller) -> u64 {
        self.options.max_delay.map_or(0, |delay| delay.as_millis() as u64).min(caller.max_wait_ms)
    }

    /// Returns the most hits that can be admitted at one moment: the number, or a bucket's burst plus the hits that may
    /// be delayed.
    pub fn capacity(&self) -> u64 {
        self.parameters.capacity(self)
    }

    /// Returns the same for a budget that has so many hits beyond its number.
    pub fn capacity_with(&self, extra: u64) -> u64 {
        if extra > 0 { (self.capacity() + extra).min(MAX_NUMBER) } else { self.capacity() }
    }

    /// Returns the algorithm's figures for the Lua twin. `clock` returns this process's time in milliseconds since the
    /// epoch; it is called only for windows that follow a calendar.
    pub fn figures(&self, ask: Ask, caller: Caller, clock: impl FnOnce() -> u64) -> [u64; FIGURES] {
        let figures = self.parameters.figures(caller);
        let figures = match (ask, self.algorithm()) {
            (Ask::Settle(actual), Algorithm::Budget) => budget_terms::Parameters::settling(figures, actual),
            (Ask::Credit(credit), Algorithm::Budget) => budget_terms::Parameters::crediting(figures, credit),
            _ => figures,
        };
        match (&self.parameters, self.calendar()) {
            (Parameters::Budget(_), Some(calendar)) => {
                budget_terms::Parameters::of_window(figures, calendar.starts_from_earlier(clock()))
            }
            (_, Some(calendar)) => fixed_window::Parameters::calendar_figures(calendar, clock()),
            (_, None) => figures,
        }
    }

    /// Returns the period in milliseconds as the Lua twin takes it: for a budget that follows a calendar, with lengths
    /// of windows. `clock` must return the same time as for the figures.
    pub fn period_figure(&self, clock: impl FnOnce() -> u64) -> u64 {
        match (&self.parameters, self.calendar()) {
            (Parameters::Budget(_), Some(calendar)) => {
                budget_terms::Parameters::period_of_window(calendar.starts_from_earlier(clock()))
            }
            _ => self.period_ms,
        }
    }

    fn calendar(&self) -> Option<Calendar> {
        match &self.parameters {
            Parameters::FixedWindow(parameters) => parameters.calendar(),
            Parameters::Budget(parameters) => parameters.calendar(),
            _ => None,
        }
    }

    /// Appends the limit's part of a counter's name: the algorithm with the version of its layout, and the window. The
    /// number is not included, so a limit with a changed number continues with the same counter.
    pub fn identity(&self, name: &mut String) {
        name.push_str(self.algorithm().traits().code);
        name.push(':');
        self.parameters.identity(self, name);
    }
}

/// Returns `number * part / whole`, rounded down, but at least 1 unless `number` is 0.
pub fn scaled(number: u64, part: u64, whole: u64) -> u64 {
    let exact = u128::from(number) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX).max(number.min(1))
}

/// Returns a number as one of 32 bits: most numbers are, and where a larger one cannot be told, the largest is.
pub fn clipped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
