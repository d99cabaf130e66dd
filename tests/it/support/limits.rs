//! Limits and requests for property tests, drawn up to the extremes.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::engine::algorithm::{
    Algorithm, Ask, Caller, Declared, Kind, Limit, MAX_DELAY, MAX_NUMBER, MAX_PERIOD, NEVER, NamedWindow, Options,
    Penalty, StartsOn, TimeZone, Written,
};

/// Numbers at which arithmetic likes to break, and any others.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..20_u32,
        2 => 21..2_000_u32,
        1 => any::<u32>(),
        1 => Just(u32::MAX),
        1 => Just(u32::MAX - 1),
        1 => Just(1 << 16)
    ]
}

/// Numbers of budgets, and hits of their streams.
pub fn wide_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => number().prop_map(u64::from),
        1 => 0..=MAX_NUMBER,
        1 => MAX_NUMBER - 20..=MAX_NUMBER,
        1 => Just(MAX_NUMBER / 256 + 1),
        1 => Just(1 << 32)
    ]
}

/// Numbers of which a few add up to the largest number.
pub fn large_part() -> impl Strategy<Value = u64> {
    (1..16_u64, 0..5_u64).prop_map(|(sixteenths, more)| (sixteenths << 49) + more - 2)
}

/// Lengths used in place of calendar units.
const CALENDAR_MS: [u64; 4] = [DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS];

const DAY_MS: u64 = 86_400_000;

fn period_ms() -> impl Strategy<Value = u64> {
    let longest = MAX_PERIOD.as_millis() as u64;
    let named = prop::sample::select(vec![1_000, 60_000, 3_600_000, 86_400_000, 31_536_000_000, longest, longest - 1]);
    let calendar = prop::sample::select(&CALENDAR_MS[..]);
    let days = (1..=366_u64).prop_map(|days| days * DAY_MS);
    prop_oneof![3 => 1..30_u64, 2 => 31..5_000_u64, 2 => named, 2 => calendar, 1 => days, 1 => 1..=longest]
}

/// The period of a balance.
const NEVER_MS: u64 = NEVER.as_millis() as u64;

/// Options of every algorithm; those that an algorithm does not have are left out.
fn options() -> impl Strategy<Value = Options> {
    let drawn = |option: &Declared| {
        let value = value(option);
        prop::option::weighted(if option.name == "initial" { 0.3 } else { 0.5 }, value).boxed()
    };
    let drawn: Vec<_> = Options::ALL.iter().map(drawn).collect();
    (drawn, any::<bool>()).prop_map(|(values, counts_days)| {
        let mut options = Options::default();
        for (option, value) in Options::ALL.iter().zip(values) {
            let is_set = value.is_none_or(|value| options.set(option.name, value.written()));
            assert!(is_set, "{} is drawn as what it cannot be", option.name);
        }
        options.starts_on = options.starts_on.map(|date| if counts_days { date.of_days() } else { date });
        options
    })
}

/// A value of an option.
#[derive(Clone, Debug)]
enum Value {
    Plain(Written<'static>),
    Name(String),
}

impl Value {
    fn written(&self) -> Written<'_> {
        match self {
            Value::Plain(written) => *written,
            Value::Name(name) => Written::Name(name),
        }
    }
}

fn value(option: &Declared) -> BoxedStrategy<Value> {
    let length = prop_oneof![2 => 1..200_u64, 1 => 1..=MAX_DELAY.as_millis() as u64].prop_map(Duration::from_millis);
    match (option.name, option.kind) {
        ("segments", _) => (1..=60_u64).prop_map(|number| Value::Plain(Written::Number(number))).boxed(),
        (_, Kind::Number) => number().prop_map(|number| Value::Plain(Written::Number(number.into()))).boxed(),
        (_, Kind::Wide) => wide_number().prop_map(|number| Value::Plain(Written::Number(number))).boxed(),
        (_, Kind::Flag) => any::<bool>().prop_map(|flag| Value::Plain(Written::Flag(flag))).boxed(),
        (_, Kind::Length) => length.prop_map(|length| Value::Plain(Written::Length(length))).boxed(),
        (_, Kind::Choice(names)) => prop::sample::select(names()).prop_map(|name| Value::Name(name.to_owned())).boxed(),
        (_, Kind::TimeZone) => any_time_zone().prop_map(|zone| Value::Name(zone.to_string())).boxed(),
        (_, Kind::Date) => any_date().prop_map(Value::Name).boxed(),
    }
}

/// A date, often one of the last of a month.
fn any_date() -> impl Strategy<Value = String> {
    let any =
        (1970..2100_u16, 1..=12_u8, 1..=28_u8).prop_map(|(year, month, day)| format!("{year}-{month:02}-{day:02}"));
    let last = prop::sample::select(vec!["2024-02-29", "2026-01-31", "1970-01-01", "2025-04-30", "2031-12-31"]);
    prop_oneof![any, last.prop_map(str::to_owned)]
}

/// Leaves out what a calendar with this period cannot have.
fn of_calendar(period_ms: u64, options: Options) -> Options {
    let fits = match options.starts_on {
        Some(StartsOn::Days(_)) => period_ms.is_multiple_of(DAY_MS),
        Some(StartsOn::Unit(_)) | None => CALENDAR_MS.contains(&period_ms),
    };
    let time_zone = options.time_zone.filter(|_| fits);
    let has_effect = |date: &StartsOn| period_ms != DAY_MS || matches!(date, StartsOn::Days(_));
    let starts_on = options.starts_on.filter(|date| time_zone.is_some() && has_effect(date));
    Options { time_zone, starts_on, ..options }
}

/// A time zone: with and without summer time, with odd offsets, one that skipped a day, and any other.
pub fn any_time_zone() -> impl Strategy<Value = TimeZone> {
    let names = ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"];
    let odd = ["Africa/Cairo", "America/Havana", "Asia/Beirut", "America/Asuncion", "Pacific/Apia", "America/Toronto"];
    let known = names.into_iter().chain(odd).map(str::to_owned).collect::<Vec<_>>();
    let any = prop_oneof![prop::sample::select(known), prop::sample::select(TimeZone::names())];
    any.prop_map(|name| TimeZone::named(&name).unwrap())
}

fn make(algorithm: Algorithm, number: u64, period_ms: u64, options: Options) -> Option<Limit> {
    let is_never = period_ms == NEVER_MS;
    let period_ms = if is_never && algorithm != Algorithm::Budget { 1_000 } else { period_ms };
    let number = match algorithm {
        Algorithm::SlidingLog => number % 100_001,
        Algorithm::Concurrency => number % 10_001,
        Algorithm::Budget => number,
        _ => number % (1 << 32),
    };
    let options = Options {
        estimate: options.estimate.filter(|estimate| *estimate > 0),
        // They change what a request asks, not how it is decided.
        min_estimate: None,
        max_estimate: None,
        count_denied: options.count_denied.filter(|_| !algorithm.has_holders()),
        ..of_calendar(period_ms, options)
    };
    let mut options = options.of(algorithm);
    if is_never && algorithm == Algorithm::Budget {
        (options.time_zone, options.starts_on, options.segments) = (None, None, None);
    }
    let is_calendar = algorithm == Algorithm::Budget && options.time_zone.is_some();
    let carry = options.carry_percent.filter(|_| is_calendar).map(|percent| percent % 100 + 1);
    let segments = options.segments.filter(|_| !is_calendar);
    let options = Options { segments, carry_percent: carry, ..options };
    Limit::new(algorithm, number, Duration::from_millis(period_ms), options).ok()
}

/// Any limit of any algorithm.
pub fn any_limit() -> impl Strategy<Value = Limit> {
    let period_ms = prop_oneof![9 => period_ms(), 1 => Just(NEVER_MS)];
    (prop::sample::select(Algorithm::ALL), wide_number(), period_ms, options())
        .prop_filter_map("no such limit", |(algorithm, number, period_ms, options)| {
            make(algorithm, number, period_ms, options)
        })
}

/// A limit that a short sequence of hits can exhaust and a short time restore.
pub fn small_limit() -> impl Strategy<Value = Limit> {
    let period_ms = prop_oneof![9 => 1..150_u64, 1 => Just(NEVER_MS)];
    (prop::sample::select(Algorithm::ALL), 0..12_u64, period_ms, options(), 1..20_u32).prop_filter_map(
        "no such limit",
        |(algorithm, number, period_ms, options, burst)| {
            let within = options.settle_within.map_or(100, |within| within.as_millis().min(200) as u64);
            let settle_within = Some(Duration::from_millis(within));
            let options = Options { burst: options.burst.map(|_| burst), settle_within, ..options };
            make(algorithm, number, period_ms, options)
        },
    )
}

/// Generates limits with calendar windows.
pub fn calendar_limit(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    let unit = prop::sample::select(&CALENDAR_MS[..]).prop_map(|period_ms| (period_ms, false));
    let days = (1..=366_u64).prop_map(|days| (days * DAY_MS, true));
    let period = prop_oneof![2 => unit, 1 => days];
    (0..12_u64, period, any_time_zone(), prop::option::of(any_date()), any_date(), any::<bool>()).prop_map(
        move |(number, (period_ms, counts_days), time_zone, date, other, denied)| {
            let starts_on = if counts_days {
                StartsOn::parse(&other).map(StartsOn::of_days)
            } else {
                date.as_deref().and_then(StartsOn::parse)
            };
            let count_denied = Some(denied).filter(|_| algorithm == Algorithm::FixedWindow);
            let options = Options { time_zone: Some(time_zone), starts_on, count_denied, ..Options::default() };
            Limit::new(algorithm, number, Duration::from_millis(period_ms), of_calendar(period_ms, options)).unwrap()
        },
    )
}

/// Changes of a limit that keep its counter. A change may have no effect.
#[derive(Clone, Debug)]
pub struct Change {
    number: u64,
    options: Options,
}

impl Change {
    /// Returns the changed limit; `None` if it would be invalid.
    pub fn of(&self, limit: &Limit) -> Option<Limit> {
        // Windows of another length, or that start otherwise, use another counter.
        let Options { segments, time_zone, starts_on, starts, .. } = limit.options();
        let options = Options { segments, time_zone, starts_on, starts, ..self.options };
        make(limit.algorithm(), self.number, limit.period_ms(), options)
    }
}

/// Any change.
pub fn any_change() -> impl Strategy<Value = Change> {
    (prop_oneof![9 => 0..20_u64, 1 => wide_number()], options())
        .prop_map(|(number, options)| Change { number, options })
}

/// Any penalty.
pub fn any_penalty() -> impl Strategy<Value = Penalty> {
    (1..8_u32, period_ms(), period_ms(), any::<bool>()).prop_map(|(after, within, ban, extend)| {
        Penalty::new(after, Duration::from_millis(within), Duration::from_millis(ban), extend).unwrap()
    })
}

/// Any window in a counter's name.
pub fn any_window() -> impl Strategy<Value = NamedWindow> {
    (period_ms(), 0..1_000_u64).prop_map(|(left_ms, jitter_s)| NamedWindow {
        left_ms: left_ms.try_into().unwrap(),
        kept_ms: left_ms + jitter_s * 1_000,
    })
}

/// Whether a counter is as fresh as a new one some time after its last use: what is used of a balance stays used, and
/// what is left of a window may be carried over into another one.
pub fn forgets(limit: &Limit) -> bool {
    !limit.is_balance() && limit.options().carry_percent.is_none()
}

/// The most that can remain: of a window of the calendar, what is carried over is no more than the number.
pub fn most_remaining(limit: &Limit) -> u64 {
    let carried = limit.options().carry_percent.map_or(0, |_| limit.capacity());
    (limit.capacity() + carried).min(MAX_NUMBER.max(limit.capacity()))
}

/// The longest that a counter of this limit remembers anything.
pub fn memory_ms(limit: &Limit) -> u64 {
    let [first, second, third, fourth, fifth] = limit.figures(Ask::Peek, Caller::default(), || 0);
    match limit.algorithm() {
        // Months and years can be a day longer than these lengths, and a day with a change of date can last two.
        Algorithm::FixedWindow if limit.options().time_zone.is_some() => limit.period_ms() + 2 * 86_400_000,
        Algorithm::FixedWindow => limit.period_ms(),
        Algorithm::SlidingWindow => first * (second + 1),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => third + fifth,
        Algorithm::SlidingLog | Algorithm::Concurrency => limit.period_ms() + 1,
        // A hold ends, up to a sixteenth later, and what it is charged leaves the window.
        Algorithm::Budget if limit.is_balance() => 2 * NEVER_MS,
        Algorithm::Budget if limit.options().time_zone.is_some() => {
            let carried = if limit.options().carry_percent.is_some() { 400 * 86_400_000 } else { 0 };
            carried + fourth + fourth / 16 + 1 + (limit.period_ms() + 2 * 86_400_000) * 9 / 8
        }
        Algorithm::Budget => {
            let segments = u64::from(limit.in_force().segments.unwrap());
            fourth + fourth / 16 + 1 + limit.period_ms() + 2 * limit.period_ms().div_ceil(segments)
        }
    }
}

/// The longest that a counter remembers anything whose rule may have changed: how long a hold of a budget lasts is
/// decided when it begins, here by the default at the latest.
pub fn longest_memory_ms(limit: &Limit) -> u64 {
    memory_ms(limit) + if limit.algorithm() == Algorithm::Budget { 637_500 } else { 0 }
}

/// Returns a take of this many hits, or a refund of negative hits.
pub fn ask(hits: i64) -> Ask {
    let amount = hits.unsigned_abs();
    if hits < 0 { Ask::refund(amount) } else { Ask::take(amount) }.unwrap()
}

/// Generates a caller's maximum delay, in milliseconds.
pub fn max_wait_ms() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(u64::MAX), 2 => 0..200_u64, 1 => 0..=MAX_DELAY.as_millis() as u64]
}

/// Returns the most hits admitted in any interval of one period, without refunds, if no request has more than this many
/// hits.
pub fn bound(limit: &Limit, hits: u64) -> u64 {
    let number = limit.number();
    // Of a calendar, the shortest may be within the interval, and parts of two others.
    let windows = if limit.options().time_zone.is_some() { 3 } else { 1 };
    match limit.algorithm() {
        Algorithm::FixedWindow => 2 * number,
        Algorithm::SlidingWindow if limit.figures(Ask::Peek, Caller::default(), || 0)[2] == 1 => 2 * number,
        Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::Concurrency => number,
        // Without settles, what is refunded in time passes again.
        Algorithm::Budget => match limit.figures(Ask::Peek, Caller::default(), || 0) {
            [_, mode, _, within_ms, _] if mode & 4 > 0 => {
                (windows * number).saturating_mul(limit.period_ms() / (within_ms + 1) + 1)
            }
            _ => windows * number,
        },
        Algorithm::TokenBucket => number + limit.capacity(),
        Algorithm::LeakyBucket => {
            let [burst, _, _, max_delay_ms, _] = limit.figures(Ask::Peek, Caller::default(), || 0);
            // Delayed requests are released at whole milliseconds, each as a whole.
            let together =
                if max_delay_ms > 0 { hits.max(burst) - burst + number.div_ceil(limit.period_ms()) } else { 0 };
            number + burst + together
        }
    }
}

/// Returns the key of a descriptor that a limit of this algorithm requires, where it names a stream.
pub fn stream_key(algorithm: Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::Concurrency => Some("stream"),
        Algorithm::Budget => Some("hold"),
        _ => None,
    }
}

/// Returns the length of time in a rule with this algorithm: of a period, which may be written as a unit, or for
/// concurrency of a hold.
pub fn length_of(algorithm: Algorithm, period: &str, hold: &str) -> String {
    if algorithm.counts_in_progress() { format!("hold: {hold}") } else { period.to_owned() }
}
