//! Own shares: a part of each limit that instances admit by themselves, without asking the store.
//!
//! **Promise.** A limit of N with shares never admits more than N, as without. Of N, each of k *seats* has a share
//! ([`Split::share`]), and the store has the rest ([`Split::rest`]): N less all shares. An instance that has a seat
//! counts its share in its memory with the limit's algorithm, and asks the store for what it does not admit.
//!
//! **Proof.** Let all instances ask the store with the rest, and let each seat be used by one instance at a time. The
//! store then admits the rest in any window of one period, and each seat its share, whatever the clocks of the
//! instances say: for windows and logs, what may be admitted in parts adds up. A fixed window's share slides, since it
//! must not straddle the store's window. For a bucket, the sum of rates and of bursts are those of the limit. Three
//! things are left to show:
//!
//! 1. *A seat has one user.* An instance uses its seat until [`Terms::timeout`] after it *sent* the last beat that the
//!    store confirmed, by a clock that counts suspension. Others remove an instance from the table only after they have
//!    seen its entry unchanged for longer than that, by their own clocks ([`Member`]). A table may have lost entries:
//!    it is empty, or another server has it. It then has a new *incarnation*, and nobody takes a seat in it before it
//!    has been known for that long ([`Table`]); by then all those who are not in it have stopped.
//! 2. *All ask with the rest.* An instance is in the table before its first decision. It states the *terms* of each
//!    domain with shares: a digest of the domain's rules, the largest part, and the number of seats. It begins to use
//!    its shares of a domain when all instances of the table have stated the same terms ([`View::share`]), and ends
//!    when its own terms change; others go on. An instance with other terms has no shares, and asks the store with so
//!    little that the shares of others have room, whatever their rules say ([`Split::cut`]): also one with other rules,
//!    and one whose rules have no shares. Its own former terms count as those of others until the table has its new
//!    ones, since others may still agree with the former. An instance that was away for longer than its timeout agrees
//!    anew. While an incarnation has not been known for long, the table may lack instances or have old terms of them:
//!    nothing is agreed in it, and no terms of others count as gone.
//! 3. *What was admitted before.* A share is used, and more than the rest asked for, only a time after that: the period
//!    of a window, or the time in which a bucket fills ([`Split::forgets_after`]), and a tenth more. Nothing from
//!    before is then in a window with it. An instance that is new, or was away, has not seen what was in use before: so
//!    each states which splits have been in use until lately, and one that leaves stays in the table until it has been
//!    seen.
//!
//! So when rules change, each instance gives up its share first, and shares begin again when all have the new rules.
//! While they change, no more is admitted than the larger of the old and the new number.
//!
//! The proof assumes that an instance that reaches the counters reaches the table, too. One that cannot reach the table
//! for longer than the timeout, and whose rules become others than those of the fleet, may cause as much more as the
//! shares amount to. So may an instance that is new, or was away, in a table that has lost an instance that uses its
//! share by other rules, for at most a timeout and a period. All instances have the same timeout, or no table is lost
//! during the longest. The clocks of instances run alike to some percent; a share counts its period by the instance's
//! clock. Where the store loses counters or has two masters, what that costs without shares is the bound.

#[cfg(test)]
mod lives;
mod member;
#[cfg(test)]
mod model;
mod split;
mod table;

pub use member::{DomainTerms, Member, Query, Terms, View};
pub use split::{Shared, Split};
pub use table::{Answer, Beat, Entry, Seat, Table};
