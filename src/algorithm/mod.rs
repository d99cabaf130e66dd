//! The algorithms: pure functions from a limit, a counter's state and a time to a verdict.
//!
//! Every algorithm is one file here and one file of the same name in `lua/`, its twin. The two hold the same statements
//! under the same names and agree to the bit: a counter in memory and a counter in Redis are the same.
//! A new algorithm is one line in `algorithms!` below; everything that lists algorithms follows from it.
//!
//! Nothing here reads a clock, does I/O, or knows of requests. Time is a count of whole milliseconds; every number
//! stays whole and below 2^53, because the Lua twin computes in doubles.

mod ask;
mod bucket;
mod calendar;
pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
mod limit;
pub mod penalty;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use std::fmt;

pub use ask::{Ask, Caller, Charge, MAX_HITS, NamedWindow};
pub use calendar::TimeZone;
pub(crate) use limit::scaled;
pub use limit::{Initial, Limit, LimitError, LimitErrors, MAX_DELAY, MAX_PERIOD, Options, Weighting};
use limit::{MAX_REFILL_MS, is_period};
pub use penalty::{Event, Penalty, PenaltyError};

/// How many figures of its own an algorithm may hand to its Lua twin.
pub const FIGURES: usize = 5;

/// How long a counter remembers what the present limit could forget already, for a slower limit or a longer ban. After
/// a rule has changed, a counter that was charged within this time, or that a request has taken from since, goes on as
/// if the limit had always been so.
const REMEMBERED_MS: u64 = 60 * 60 * 1000;

/// What a request means to a counter, as the algorithms take it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Taken if positive, refunded or taken back if negative; a peek takes 0.
    hits: i64,
    /// The charge that is taken back, where it is no refund.
    charge: Option<Charge>,
    /// Another limit of the request denies it: nothing is taken, whatever this one would say.
    denied: bool,
    caller: Caller,
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
            /// Every algorithm; its index here, from 1 on, is its number in the Lua script.
            pub const ALL: &'static [Algorithm] = &[$(Algorithm::$variant),*];

            /// The name in rules, metrics and file names.
            pub const fn name(self) -> &'static str {
                match self { $(Algorithm::$variant => stringify!($module)),* }
            }

            /// The source of the Lua twin.
            pub const fn lua(self) -> &'static str {
                match self { $(
                    Algorithm::$variant => include_str!(concat!("../../lua/", stringify!($module), ".lua")),
                )* }
            }

            /// The options that a limit of this algorithm may have, by their names in rules.
            pub const fn options(self) -> &'static [&'static str] {
                match self { $(Algorithm::$variant => $module::OPTIONS),* }
            }

            /// What it declares beside its options.
            const fn traits(self) -> Traits {
                match self { $(Algorithm::$variant => $module::TRAITS),* }
            }

            fn parameters(self, number: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
                match self { $(
                    Algorithm::$variant => {
                        $module::Parameters::new(number, period_ms, options).map(Parameters::$variant)
                    }
                )* }
            }
        }

        /// What an algorithm derives from a limit's number, period and options, once, when the limit is made.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        enum Parameters { $($variant($module::Parameters)),* }

        impl Parameters {
            const fn algorithm(self) -> Algorithm {
                match self { $(Parameters::$variant(_) => Algorithm::$variant),* }
            }

            fn figures(&self, caller: Caller) -> [u64; FIGURES] {
                match self { $(Parameters::$variant(parameters) => parameters.figures(caller)),* }
            }

            fn capacity(&self, limit: &Limit) -> u32 {
                match self { $(Parameters::$variant(parameters) => parameters.capacity(limit)),* }
            }

            fn identity(&self, limit: &Limit, name: &mut String) {
                match self { $(Parameters::$variant(parameters) => parameters.identity(limit, name)),* }
            }

            fn work(&self, limit: &Limit) -> u64 {
                match self { $(Parameters::$variant(parameters) => parameters.work(limit)),* }
            }
        }

        /// What a counter remembers.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State {
            $(
                #[doc = concat!("Of a [`", stringify!($module), "`] counter.")]
                $variant($module::State),
            )*
            /// Of a [`penalty`].
            Penalty(penalty::State),
        }

        impl State {
            /// The counter as the Lua twin packs it.
            pub fn pack(&self) -> Vec<u8> {
                match self {
                    $(State::$variant(state) => state.pack(),)*
                    State::Penalty(state) => state.pack(),
                }
            }

            /// What it takes beside itself, in bytes.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    $(State::$variant(state) => state.heap_bytes(),)*
                    State::Penalty(state) => state.heap_bytes(),
                }
            }

            /// What a counter never seen becomes.
            pub fn begin(change: Change) -> State {
                match change {
                    $(Change::$variant(change) => State::$variant(Becomes::begin(change)),)*
                    Change::Penalty(change) => State::Penalty(change),
                }
            }

            /// What a counter becomes, seen before or not.
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

            /// Becomes what was decided on it.
            pub fn alter(&mut self, change: Change) {
                match (self, change) {
                    $((State::$variant(state), Change::$variant(change)) => change.onto(state),)*
                    // A counter's name has the algorithm in it, so no other ever comes.
                    (state, change) => *state = State::begin(change),
                }
            }
        }

        /// What a decision makes of a counter.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Change {
            $(
                #[doc = concat!("Of a [`", stringify!($module), "`] counter.")]
                $variant($module::Change),
            )*
            /// Of a [`penalty`].
            Penalty(penalty::State),
        }

        impl Change {
            /// What the counter then takes beside itself, in bytes.
            pub fn heap_bytes(&self) -> usize {
                match self {
                    $(Change::$variant(change) => change.heap_bytes(),)*
                    Change::Penalty(change) => change.heap_bytes(),
                }
            }
        }

        impl Limit {
            fn decide_attempt(&self, attempt: Attempt, state: Option<&State>, now: u64) -> Outcome {
                match &self.parameters { $(
                    Parameters::$variant(parameters) => {
                        // A counter's name has the algorithm in it, so no other ever comes.
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
}

/// What an algorithm declares of itself.
#[derive(Clone, Copy, Debug)]
struct Traits {
    /// Its part of a counter's name, with the version of the layout of its state: another layout is another
    /// counter.
    code: &'static str,
    /// A stream holds what it takes until it releases it: the number is for what is in progress, not for a length of
    /// time.
    has_holders: bool,
    /// Why a limit of it cannot be leased, where it cannot.
    no_lease: Option<NoLease>,
    /// A denial says until when the same request is denied, unless a request refunds something.
    denials_last: bool,
}

/// Why hits of a limit cannot be taken in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// What is taken belongs to a stream.
    Holders,
    /// Each request has a delay of its own.
    Delay,
    /// Asking for a lease in vain would be charged.
    CountDenied,
}

impl Algorithm {
    /// A stream holds what it takes until it releases it: the number is for what is in progress, not for a length of
    /// time.
    pub const fn has_holders(self) -> bool {
        self.traits().has_holders
    }

    /// Why a limit that does not name its algorithm cannot have this one.
    pub const fn no_default(self) -> Option<&'static str> {
        if self.has_holders() {
            return Some("concurrency is no default: it counts slots that streams hold, and other limits have a unit");
        }
        None
    }
}

impl Limit {
    /// Decides what `ask` means at `now`, and what becomes of the counter.
    ///
    /// `state` is what the counter last was, `None` for a counter never seen.
    pub fn decide(&self, ask: Ask, caller: Caller, state: Option<&State>, now: u64) -> Outcome {
        let attempt = Attempt { hits: ask.hits(), charge: ask.charge(), denied: false, caller };
        if ask == Ask::Reset {
            let Outcome { verdict, .. } = self.decide_attempt(attempt, None, now);
            return Outcome { effect: state.map_or(Effect::None, |_| Effect::Forgotten), verdict };
        }
        self.decide_attempt(attempt, state, now)
    }

    /// The same for a request that another limit denies: it takes nothing. Only a limit that counts denials is charged,
    /// refunds happen, charges are taken back, and the counter remembers what it must of a denied request.
    pub fn decide_denied(&self, ask: Ask, caller: Caller, state: Option<&State>, now: u64) -> Outcome {
        if ask == Ask::Reset {
            return self.decide(ask, caller, state, now);
        }
        let attempt = Attempt { hits: ask.hits(), charge: ask.charge(), denied: true, caller };
        self.decide_attempt(attempt, state, now)
    }
}

/// What one counter says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The hits pass.
    pub allowed: bool,
    /// So many more hits would pass right now; one more would not.
    pub remaining: u32,
    /// A counter of hits that counts denials, too, has so many more than its number.
    pub excess: Option<u32>,
    /// From then on the counter is the same as a fresh one.
    pub reset_after_ms: u64,
    /// The same request passes then and not a millisecond before; zero if it passes now, `None` if it never can.
    pub retry_after_ms: Option<u64>,
    /// How long a request that passes is delayed, first come first served; zero but for a leaky bucket with a
    /// `max_delay`.
    pub delay_ms: u64,
}

impl Verdict {
    /// What a limit says under its penalty.
    #[must_use]
    pub fn under(self, penalty: Verdict) -> Verdict {
        if penalty.allowed {
            return self;
        }
        Verdict {
            allowed: false,
            remaining: 0,
            excess: self.excess,
            reset_after_ms: self.reset_after_ms.max(penalty.reset_after_ms),
            // What can never pass never passes.
            retry_after_ms: self.retry_after_ms.zip(penalty.retry_after_ms).map(|(own, ban)| own.max(ban)),
            delay_ms: 0,
        }
    }
}

/// A verdict, and what it does to the counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What becomes of the counter.
    pub effect: Effect,
    /// What to answer.
    pub verdict: Verdict,
}

/// What becomes of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It stays as it is.
    None,
    /// It is the same as a fresh one, whatever limit asks it: it need not be kept.
    Forgotten,
    /// It changes.
    Changed {
        /// Into what.
        change: Change,
        /// After this it is as fresh, whatever limit asks it then: it may be deleted, or not.
        expires_after_ms: u64,
    },
}

impl Effect {
    /// What a counter is after it, which before was this.
    #[must_use]
    pub fn apply(self, state: Option<State>) -> Option<State> {
        match self {
            Effect::None => state,
            Effect::Forgotten => None,
            Effect::Changed { change, .. } => Some(State::after(state, change)),
        }
    }

    /// Of a change, and of how long it is remembered.
    fn of<C>(change: Option<(C, u64)>, wrap: fn(C) -> Change) -> Effect {
        match change {
            None => Effect::None,
            Some((_, 0)) => Effect::Forgotten,
            Some((change, expires_after_ms)) => Effect::Changed { change: wrap(change), expires_after_ms },
        }
    }
}

/// What makes a counter's next state of the one before. Most states are small and made anew, so that they are their own
/// change.
trait Becomes<S> {
    /// Of a counter never seen.
    fn begin(self) -> S;
    /// Of this one.
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

/// What a counter's clock reads at `now`, when it last read `at`; and whether it was set back.
///
/// A clock that steps back (a failover to a host whose clock is behind) must neither give away what time has not yet
/// restored nor hold a counter for as long as the step was. So the counter's time stands still until the clock has
/// caught up, unless that is more than `most` away: then the counter goes on from `now`, with what it has counted.
fn steady(now: u64, at: u64, most: u64) -> (u64, bool) {
    if at <= now {
        (now, false)
    } else if at - now <= most {
        (at, false)
    } else {
        (now, true)
    }
}

/// `a * b / c` as whole quotient and remainder, exact where `a` and `c` are below 2^35 and `b` is below 2^34.
fn mul_div(a: u64, b: u64, c: u64) -> (u64, u64) {
    let (product, c) = (u128::from(a) * u128::from(b), u128::from(c));
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    (narrow(product / c), narrow(product % c))
}

/// Appends a number to a counter's name, which is made for every decision: `write!` takes several times as long.
fn push_number(name: &mut String, number: u64) {
    if number >= 10 {
        push_number(name, number / 10);
    }
    name.push(char::from(b'0' + (number % 10) as u8));
}

/// An algorithm's own figures; those that it has no need of are 0.
fn figures(own: &[u64]) -> [u64; FIGURES] {
    std::array::from_fn(|place| own.get(place).copied().unwrap_or(0))
}

/// A counter after `hits` more, at most 2^32-1; after negative hits, at least 0.
fn add(count: u32, hits: i64) -> u32 {
    let sum = i64::from(count).saturating_add(hits);
    u32::try_from(sum.max(0)).unwrap_or(u32::MAX)
}
