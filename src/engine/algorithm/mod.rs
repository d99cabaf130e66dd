//! The algorithms: pure functions from a limit, a counter's state and a time to a verdict.
//!
//! Each algorithm has one file here and a twin of the same name in `lua/`. The two hold the same statements under the
//! same names and agree to the bit, so a counter behaves the same in memory and in Redis. A new algorithm is one line
//! in `algorithms!` below; every list of algorithms is derived from it.
//!
//! Nothing here reads a clock, does I/O, or knows about requests. Time is a count of whole milliseconds. All numbers
//! are whole and stay below 2^53, because the Lua twin computes in doubles.

mod ask;
mod bucket;
pub mod budget;
mod budget_stored;
mod budget_terms;
mod calendar;
pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod lease_terms;
pub mod leased;
mod limit;
mod options;
pub mod penalty;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use std::fmt;

pub use ask::{Ask, Bounds, Caller, Charge, Credit, CreditKind, MAX_HITS, MAX_NUMBER, NamedWindow};
pub use calendar::{StartsOn, TimeZone};
pub use leased::{Granted, LeaseAsk, Occupies, Returned};
pub use limit::{Limit, LimitError, LimitErrors, MAX_DELAY, MAX_PERIOD, NEVER};
use limit::{MAX_REFILL_MS, is_period};
pub use limit::{clipped, scaled};
pub use options::{Declared, Initial, Kind, Options, Starts, Unsettled, Weighting, Written};
pub use penalty::{Event, Penalty, PenaltyError};

/// Number of algorithm-specific figures that an algorithm may pass to its Lua twin.
pub const FIGURES: usize = 5;

/// How long a counter keeps state that the present limit no longer needs, in case a rule change makes the limit slower
/// or the ban longer. If a counter was charged within this time, or a request has taken hits from it since, then it
/// continues after the rule change as if the changed limit had always applied.
const REMEMBERED_MS: u64 = 60 * 60 * 1000;

/// A request as the algorithms see it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Positive for hits to take, negative for hits to refund or take back, 0 for a peek.
    hits: i64,
    /// The charge to take back. `None` for a refund.
    charge: Option<Charge>,
    /// The hits that a stream has used, if this settles its hold. Such an attempt has no hits.
    settles: Option<u64>,
    /// The hits that an operator credits. Such an attempt has no hits.
    credit: Option<Credit>,
    /// Another limit denies the request, so this one takes nothing, whatever its own verdict.
    denied: bool,
    caller: Caller,
}

impl Attempt {
    fn new(ask: Ask, denied: bool, caller: Caller) -> Attempt {
        Attempt { hits: ask.hits(), charge: ask.charge(), settles: ask.settled(), credit: ask.credit(), denied, caller }
    }
}

macro_rules! algorithms {
    ($($variant:ident $module:ident)*) => {
        /// How a limit counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm { $(
            #[doc = concat!("See [`", stringify!($module), "`].")]
            $variant,
        )* }

        impl Algorithm {
            /// All algorithms. The number of an algorithm in the Lua script is its index here, counted from 1.
            pub const ALL: &'static [Algorithm] = &[$(Algorithm::$variant),*];

            /// The name in rules, metrics and file names.
            pub const fn name(self) -> &'static str {
                match self { $(Algorithm::$variant => stringify!($module)),* }
            }

            /// The source of the Lua twin.
            pub const fn lua(self) -> &'static str {
                match self { $(
                    Algorithm::$variant => include_str!(concat!("../../../lua/", stringify!($module), ".lua")),
                )* }
            }

            /// The options that a limit of this algorithm accepts, by their names in rules.
            pub const fn options(self) -> &'static [&'static str] {
                match self { $(Algorithm::$variant => $module::OPTIONS),* }
            }

            /// The algorithm's declared properties, except for its options.
            const fn traits(self) -> Traits {
                match self { $(Algorithm::$variant => $module::TRAITS),* }
            }

            fn parameters(self, number: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
                match self { $(
                    Algorithm::$variant => {
                        $module::parameters(number, period_ms, options).map(Parameters::$variant)
                    }
                )* }
            }
        }

        /// Values that an algorithm derives from a limit's number, period and options when the limit is created.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        enum Parameters { $($variant($module::Parameters)),* }

        impl Parameters {
            const fn algorithm(self) -> Algorithm {
                match self { $(Parameters::$variant(_) => Algorithm::$variant),* }
            }

            fn figures(&self, caller: Caller) -> [u64; FIGURES] {
                match self { $(Parameters::$variant(parameters) => parameters.figures(caller)),* }
            }

            fn capacity(&self, limit: &Limit) -> u64 {
                match self { $(Parameters::$variant(parameters) => parameters.capacity(limit)),* }
            }

            fn identity(&self, limit: &Limit, name: &mut String) {
                match self { $(Parameters::$variant(parameters) => parameters.identity(limit, name)),* }
            }

            fn work(&self, limit: &Limit) -> u64 {
                match self { $(Parameters::$variant(parameters) => parameters.work(limit)),* }
            }
        }

        /// The stored state of a counter.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State {
            $(
                #[doc = concat!("State of a [`", stringify!($module), "`] counter.")]
                $variant($module::State),
            )*
            /// State of a [`penalty`] counter.
            Penalty(penalty::State),
            /// State of a counter of [`leased`] hits.
            Leased(leased::State),
        }

        impl State {
            /// Parses a state that the Lua twin packed; `None` if it is damaged, so no decision can have written it.
            pub fn unpack(limit: &Limit, caller: Caller, bytes: &[u8]) -> Option<State> {
                match limit.algorithm() { $(
                    Algorithm::$variant => $module::State::unpack(limit, caller, bytes).map(State::$variant),
                )* }
            }

            /// Returns the state in the packed form that the Lua twin stores.
            pub fn pack(&self) -> Vec<u8> {
                match self {
                    $(State::$variant(state) => state.pack(),)*
                    State::Penalty(state) => state.pack(),
                    State::Leased(state) => state.pack(),
                }
            }

            /// Returns the heap memory that the state uses, in bytes.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    $(State::$variant(state) => state.heap_bytes(),)*
                    State::Penalty(state) => state.heap_bytes(),
                    State::Leased(state) => state.heap_bytes(),
                }
            }

            /// Returns the state of a new counter after its first change.
            pub fn begin(change: Change) -> State {
                match change {
                    $(Change::$variant(change) => State::$variant(Becomes::begin(change)),)*
                    Change::Penalty(change) => State::Penalty(change),
                    Change::Leased(change) => State::Leased(change),
                }
            }

            /// Returns a counter's state after `change`; `None` is a new counter.
            #[must_use]
            pub fn after(state: Option<State>, change: Change) -> State {
                match state {
                    Some(mut state) => {
                        state.alter(change);
                        state
                    }
                    None => State::begin(change),
                }
            }

            /// Applies `change`.
            pub fn alter(&mut self, change: Change) {
                match (self, change) {
                    $((State::$variant(state), Change::$variant(change)) => change.onto(state),)*
                    // The algorithm is part of a counter's name, so both are always of the same algorithm.
                    (state, change) => *state = State::begin(change),
                }
            }
        }

        /// The change that a decision makes to a counter.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Change {
            $(
                #[doc = concat!("Change of a [`", stringify!($module), "`] counter.")]
                $variant($module::Change),
            )*
            /// Change of a [`penalty`] counter.
            Penalty(penalty::State),
            /// Change of a counter of [`leased`] hits.
            Leased(leased::State),
        }

        impl Change {
            /// Returns what a peek sees after the change, where that is cheaper than the whole state.
            pub fn seen_by_peeks(&self) -> Option<State> {
                match self {
                    Change::Budget(change) => Some(State::Budget(change.account())),
                    _ => None,
                }
            }

            /// Returns what a budget charges by the change, which is not what a request asks.
            pub fn charged(&self) -> i64 {
                match self {
                    Change::Budget(change) => change.charged(),
                    _ => 0,
                }
            }

            /// Returns the hits that the change tops up.
            pub fn topped_up(&self) -> u64 {
                match self {
                    Change::Budget(change) => change.topped_up(),
                    _ => 0,
                }
            }

            /// Returns the heap memory that the counter uses after the change, in bytes.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    $(Change::$variant(change) => change.heap_bytes(),)*
                    Change::Penalty(change) => change.heap_bytes(),
                    Change::Leased(change) => change.heap_bytes(),
                }
            }
        }

        impl Limit {
            fn decide_attempt(&self, attempt: Attempt, state: Option<&State>, now: u64) -> Outcome {
                match &self.parameters { $(
                    Parameters::$variant(parameters) => {
                        // The algorithm is part of a counter's name, so the state is always of this algorithm.
                        let state = match state {
                            Some(State::$variant(state)) => Some(state),
                            _ => None,
                        };
                        let (change, verdict) = $module::decide(self, parameters, attempt, state, now);
                        Outcome { effect: Effect::of(change, Change::$variant), verdict }
                    }
                )* }
            }
        }
    };
}

algorithms! {
    FixedWindow fixed_window
    SlidingWindow sliding_window
    SlidingLog sliding_log
    TokenBucket token_bucket
    LeakyBucket leaky_bucket
    Concurrency concurrency
    Budget budget
}

/// The properties that an algorithm declares.
#[derive(Clone, Copy, Debug)]
struct Traits {
    /// The algorithm's part of a counter's name. It includes the version of the state's layout, so a new layout starts
    /// new counters.
    code: &'static str,
    /// A stream holds the hits it takes until it releases or settles them, and the last entry of a descriptor names the
    /// stream.
    has_holders: bool,
    /// The number limits hits in progress, not hits per period.
    counts_in_progress: bool,
    /// How leased hits occupy a counter; `None` where hits cannot be leased.
    leased: Option<Occupies>,
    /// The time in a denial is final: the same request is denied until then, unless another request refunds hits.
    denials_last: bool,
}

/// The reason why hits of a limit cannot be taken in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// Each slot belongs to a stream.
    Holders,
    /// Each request is delayed by a different time.
    Delay,
    /// A denied attempt to take a lease would be charged.
    CountDenied,
}

impl Algorithm {
    /// Returns whether a stream holds the hits it takes until it releases or settles them. The last entry of a
    /// descriptor then names the stream.
    pub const fn has_holders(self) -> bool {
        self.traits().has_holders
    }

    /// Returns whether the number limits hits in progress, not hits per period.
    pub const fn counts_in_progress(self) -> bool {
        self.traits().counts_in_progress
    }

    /// Returns whether a limit of this algorithm may have an option of this name.
    pub fn has(self, option: &str) -> bool {
        option == "count_denied" || self.options().contains(&option)
    }

    /// Returns whether limits of this algorithm charge denied requests by default, as in envoyproxy/ratelimit.
    pub const fn counts_denied(self) -> bool {
        matches!(self, Algorithm::FixedWindow)
    }

    /// Returns why this algorithm cannot be the default for limits that name none; `None` where it can.
    pub const fn no_default(self) -> Option<&'static str> {
        if self.counts_in_progress() {
            return Some("concurrency cannot be the default: it counts slots and has no unit, which other limits need");
        }
        if self.has_holders() {
            return Some("a budget cannot be the default: it counts streams, which other limits do not name");
        }
        None
    }
}

impl Limit {
    /// Decides `ask` at time `now`: the verdict, and the effect on the counter.
    ///
    /// `state` is the counter's stored state, `None` for a new counter.
    pub fn decide(&self, ask: Ask, caller: Caller, state: Option<&State>, now: u64) -> Outcome {
        let attempt = Attempt::new(ask, false, caller);
        if ask == Ask::Reset {
            let Outcome { verdict, .. } = self.decide_attempt(attempt, None, now);
            return Outcome { effect: state.map_or(Effect::None, |_| Effect::Forgotten), verdict };
        }
        self.decide_attempt(attempt, state, now)
    }

    /// Decides a request that another limit denies. It takes no hits here, but a limit that counts denials is still
    /// charged. Refunds and take-backs happen as usual, and the counter stores whatever it needs to know about a denied
    /// request.
    pub fn decide_denied(&self, ask: Ask, caller: Caller, state: Option<&State>, now: u64) -> Outcome {
        if ask == Ask::Reset {
            return self.decide(ask, caller, state, now);
        }
        let attempt = Attempt::new(ask, true, caller);
        self.decide_attempt(attempt, state, now)
    }
}

/// One counter's verdict on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The hits are allowed.
    pub allowed: bool,
    /// Number of further hits that would be allowed right now.
    pub remaining: u64,
    /// Number of hits beyond the limit, for counters that also count denied hits, and for budgets that settles have
    /// overspent.
    pub excess: Option<u64>,
    /// Time until the counter is equivalent to a new one.
    pub reset_after_ms: u64,
    /// Time until the same request would be allowed, exact to the millisecond: zero if it is allowed now, `None` if it
    /// never can be.
    pub retry_after_ms: Option<u64>,
    /// How long an allowed request is delayed, first come first served. Only a leaky bucket with a `max_delay` delays
    /// requests.
    pub delay_ms: u64,
    /// What streams hold of a budget, unless it denies: the stream that begins, otherwise all.
    pub held: Option<Held>,
    /// Hits of a budget beyond its number: topped up, or carried over into the present window.
    pub extra: u64,
    /// For a peek at a budget, what nine of ten streams use at most, as far as it has been learned; otherwise 0.
    pub learned: u64,
}

/// What streams in progress hold of a budget; or the hits of a credit, with one hold if they were credited now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Hits, all together.
    pub hits: u64,
    /// Number of holds: as many as streams, unless some have the same name.
    pub holds: u32,
    /// Time until the first of the holds ends, if nothing settles it before; 0 if there is none.
    pub first_ends_ms: u64,
}

impl Verdict {
    /// Nothing is allowed, now or later. Other verdicts differ from it.
    pub const NOTHING: Verdict = Verdict {
        allowed: false,
        remaining: 0,
        excess: None,
        reset_after_ms: 0,
        retry_after_ms: None,
        delay_ms: 0,
        held: None,
        extra: 0,
        learned: 0,
    };

    /// Returns this verdict on a request that another limit denies, with what is left of the counter by the other one.
    #[must_use]
    pub fn as_left(self, other: Verdict) -> Verdict {
        let Verdict { remaining, excess, reset_after_ms, extra, learned, .. } = other;
        Verdict { remaining, excess, reset_after_ms, extra, learned, ..self }
    }
}

/// A verdict and its effect on the counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The effect on the counter.
    pub effect: Effect,
    /// The answer to the request.
    pub verdict: Verdict,
}

/// The effect of a decision on a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The counter does not change.
    None,
    /// The counter is equivalent to a new one under any limit, so it can be deleted.
    Forgotten,
    /// The counter changes.
    Changed {
        /// The change.
        change: Change,
        /// TTL. After it the counter is equivalent to a new one under any limit, so deleting it is optional.
        expires_after_ms: u64,
    },
}

impl Effect {
    /// Returns the counter's state after this effect on `state`.
    #[must_use]
    pub fn apply(self, state: Option<State>) -> Option<State> {
        match self {
            Effect::None => state,
            Effect::Forgotten => None,
            Effect::Changed { change, .. } => Some(State::after(state, change)),
        }
    }

    /// Returns what a budget charges by this effect.
    pub fn charged(&self) -> i64 {
        if let Effect::Changed { change, .. } = self { change.charged() } else { 0 }
    }

    /// Returns the hits that a budget is topped up by this effect.
    pub fn topped_up(&self) -> u64 {
        if let Effect::Changed { change, .. } = self { change.topped_up() } else { 0 }
    }

    /// Returns the effect of a decision that was made for an earlier time, so long ago.
    #[must_use]
    pub fn since(self, ms: u64) -> Effect {
        match self {
            Effect::Changed { change, expires_after_ms } => {
                Effect::Changed { change, expires_after_ms: expires_after_ms.saturating_sub(ms).max(1) }
            }
            Effect::None | Effect::Forgotten => self,
        }
    }

    /// Returns the effect of an optional change and its TTL.
    fn of<C>(change: Option<(C, u64)>, wrap: fn(C) -> Change) -> Effect {
        match change {
            None => Effect::None,
            Some((_, 0)) => Effect::Forgotten,
            Some((change, expires_after_ms)) => Effect::Changed { change: wrap(change), expires_after_ms },
        }
    }
}

/// A change that produces a counter's next state. Most states are small and are replaced as a whole, so the new state
/// itself serves as the change.
trait Becomes<S> {
    /// Returns the first state of a new counter.
    fn begin(self) -> S;
    /// Updates an existing state.
    fn onto(self, state: &mut S);
}

impl<S> Becomes<S> for S {
    fn begin(self) -> S {
        self
    }

    fn onto(self, state: &mut S) {
        *state = self;
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The rest of a packed state that is being parsed.
struct Packed<'b>(&'b [u8]);

impl Packed<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Parses a double; `None` unless it is a whole number below 2^53.
    fn whole(&mut self) -> Option<u64> {
        let number = f64::from_le_bytes(self.take()?);
        (number.fract() == 0.0 && (0.0..MAX_HITS as f64).contains(&number)).then_some(number as u64)
    }

    fn count(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

/// The fields of a state that is a hash in Redis.
type Fields = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

impl Packed<'_> {
    /// Parses the fields of a hash.
    fn fields(bytes: &[u8]) -> Option<Fields> {
        let mut packed = Packed(bytes);
        let mut fields = Fields::new();
        while !packed.is_empty() {
            let name = packed.text()?;
            fields.insert(name, packed.text()?).is_none().then_some(())?;
        }
        Some(fields)
    }

    /// Parses a text behind its length.
    fn text(&mut self) -> Option<Vec<u8>> {
        let length = self.count()? as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text.to_vec())
    }
}

/// Packs the fields of a hash: each name and each value behind its length, in the order of the names.
fn pack_fields(fields: &Fields) -> Vec<u8> {
    let texts = fields.iter().flat_map(|(name, value)| [name, value]);
    texts.flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text].concat()).collect()
}

/// Returns the time of a counter's own clock at `now`, given its previous time `at`, and whether the clock was reset to
/// `now`.
///
/// The store's clock can step back, for example after a failover to a host with a slower clock. Such a step must not
/// restore hits early, and it must not block a counter for the length of the step. So the counter's clock pauses until
/// the store's clock catches up. If that would take more than `most`, the counter continues from `now` with the hits it
/// has counted.
fn steady(now: u64, at: u64, most: u64) -> (u64, bool) {
    if at <= now {
        (now, false)
    } else if at - now <= most {
        (at, false)
    } else {
        (now, true)
    }
}

/// Returns the whole quotient and the remainder of `a * b / c`; exact if `a` and `c` are below 2^35 and `b` is below
/// 2^34.
fn mul_div(a: u64, b: u64, c: u64) -> (u64, u64) {
    let (product, c) = (u128::from(a) * u128::from(b), u128::from(c));
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    (narrow(product / c), narrow(product % c))
}

/// Appends a number to a counter's name. Names are built for every decision, and `write!` takes several times as long.
fn push_number(name: &mut String, number: u64) {
    if number >= 10 {
        push_number(name, number / 10);
    }
    name.push(char::from(b'0' + (number % 10) as u8));
}

/// Returns an algorithm's figures, padded with zeros.
fn figures(own: &[u64]) -> [u64; FIGURES] {
    std::array::from_fn(|place| own.get(place).copied().unwrap_or(0))
}

/// Returns the count after adding `hits`, kept within 0 and 2^32-1.
fn add(count: u32, hits: i64) -> u32 {
    let sum = i64::from(count).saturating_add(hits);
    u32::try_from(sum.max(0)).unwrap_or(u32::MAX)
}
