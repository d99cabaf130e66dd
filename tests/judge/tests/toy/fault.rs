//! Mistakes of the toy.

/// A mistake in the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The limit admits one more.
    OffByOne,
    /// The counters are forgotten now and then, as by a restart without persistence.
    Forgets,
    /// The latest writes are lost now and then, as by a failover.
    LosesLatest,
    /// One of two replicas has a clock that is ahead, and each counts by its own.
    ClockOfReplica,
    /// A period is a tenth too short.
    ShortPeriod,
    /// A hit counts for two periods.
    LongMemory,
    /// A reply is lost, and the limiter charges again without telling.
    ChargedTwice,
    /// A denied request is charged.
    DenialCharged,
    /// Of a group of limits, those before the one that denies are charged.
    PartOfGroup,
    /// Of a group of limits, only the first is asked.
    FirstOfGroup,
    /// Each request counts as one hit.
    HitsIgnored,
    /// All keys share a counter.
    KeysCollide,
    /// The period begins at fixed times.
    FixedWindow,
    /// Two replicas lease hits, and what is left of a lease at its end is spent and given back.
    LeaseSpentTwice,
    /// Each of two replicas has a share of its own, and gets it again when it restarts.
    ShareMinted,
    /// Peeking takes a hit.
    PeekTakes,
    /// What is given back is given back twice.
    ReturnedTwice,
    /// One too many remains, by the answer.
    RemainingOff,
    /// Half of the wait is told.
    ShortWait,
    /// Twice the wait is told.
    LongWait,
    /// A bucket refills twice as fast.
    FastRefill,
    /// A full bucket fills on.
    Overflow,
    /// A holder's place is given away at half of its time.
    HolderExpires,
    /// Any holder that leaves frees two places.
    HolderFreesTwo,
    /// A release is lost now and then, and the limiter says that it was not.
    ReleaseLost,
    /// A place whose holder does not let it go stays taken for ever.
    PlaceKept,
    /// What is given back is not.
    RefundLost,
    /// Instances hold back more than is stated.
    HoldsBackMore,
    /// The system's own count has the hits that it denied.
    TotalOfDenied,
    /// The system's own count misses hits now and then.
    TotalMisses,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 30] = [
        Fault::OffByOne,
        Fault::Forgets,
        Fault::LosesLatest,
        Fault::ClockOfReplica,
        Fault::ShortPeriod,
        Fault::LongMemory,
        Fault::ChargedTwice,
        Fault::DenialCharged,
        Fault::PartOfGroup,
        Fault::FirstOfGroup,
        Fault::HitsIgnored,
        Fault::KeysCollide,
        Fault::FixedWindow,
        Fault::LeaseSpentTwice,
        Fault::ShareMinted,
        Fault::PeekTakes,
        Fault::ReturnedTwice,
        Fault::RemainingOff,
        Fault::ShortWait,
        Fault::LongWait,
        Fault::FastRefill,
        Fault::Overflow,
        Fault::HolderExpires,
        Fault::HolderFreesTwo,
        Fault::ReleaseLost,
        Fault::PlaceKept,
        Fault::RefundLost,
        Fault::HoldsBackMore,
        Fault::TotalOfDenied,
        Fault::TotalMisses,
    ];
}
