//! The seats of instances that have [shares](crate::engine::share) of limits: each instance sends beats to a table that
//! all of them share, and tells its decisions what they may do ([`Desk`]).
//!
//! A beat is sent every [`PERIOD`], at once after rules have changed, and when a decision waits for it. While the table
//! does not answer, shares go on for the timeout that the settings name.

pub mod redis;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::engine::check::StoreError;
use crate::engine::rules::Rules;
use crate::engine::share::{Answer, Beat, Member};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::store::share::{BeatEnd, Desk};
use redis::RedisSeats;

/// How often an instance sends a beat, or five times within the timeout if that is more often.
const PERIOD: Duration = Duration::from_secs(3);

/// How often an instance checks whether its rules have changed, and sends a beat while it does not know the table.
const LOOK: Duration = Duration::from_millis(250);

/// Timeout of the last beat.
const LAST_WORD: Duration = Duration::from_millis(500);

/// The table of seats, wherever it is kept.
pub trait SeatTable: Send + Sync {
    /// Sends a beat, and returns the table after it.
    ///
    /// # Errors
    /// If there is no answer in time, or the store does not run the table. It may have taken a beat without an answer.
    fn beat(&self, beat: &Beat<'_>) -> impl Future<Output = Result<Answer, SeatError>> + Send;
}

/// Why the table of seats has not answered a beat.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// The store never runs the table for this service: a right or a command is missing. So no instance of the fleet
    /// has a seat.
    #[error("{0}")]
    Refused(String),
    /// There is no answer.
    #[error(transparent)]
    Lost(#[from] StoreError),
}

/// The seat of this instance.
pub struct Seats<S, T = RedisSeats> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    desk: Arc<Desk>,
    table: T,
    terms: SeatTerms,
    asking: tokio::sync::Mutex<Asking>,
    told: Mutex<Told>,
}

/// What the settings say about seats.
#[derive(Clone, Copy, Debug)]
pub struct SeatTerms {
    /// The number of seats: as many as there are instances.
    pub seats: u32,
    /// How long an instance uses its seat without a confirmed beat.
    pub timeout: Duration,
}

/// Held while the table is asked.
struct Asking {
    member: Member,
    /// The rules whose terms the member states.
    rules: Option<Arc<Rules>>,
    has_left: bool,
}

/// What the log has told.
#[derive(Default)]
struct Told {
    seat: Option<u32>,
    agreed: usize,
    /// Since when this instance has waited for a seat while others have all of them.
    crowded: Option<Instant>,
    is_crowded: bool,
    is_refused: bool,
}

impl<S: Store, T: SeatTable> Seats<S, T> {
    /// Creates the instance with this ID, which no other has had. It has no seat before the first beat.
    pub fn new(
        id: &str,
        (limiter, metrics): (Arc<Limiter<S>>, Arc<Metrics>),
        (desk, table): (Arc<Desk>, T),
        terms: SeatTerms,
    ) -> Seats<S, T> {
        let member = Member::new(id, terms.seats, terms.timeout);
        let asking = tokio::sync::Mutex::new(Asking { member, rules: None, has_left: false });
        Seats { limiter, metrics, desk, table, terms, asking, told: Mutex::default() }
    }

    /// Sends beats, forever.
    pub async fn keep(&self) -> Infallible {
        let period = PERIOD.min(self.terms.timeout / 5);
        let mut last = Instant::now();
        loop {
            let is_wanted = tokio::select! {
                biased;
                () = self.desk.wanted() => true,
                () = sleep_until(Instant::now() + LOOK) => !self.desk.is_current(),
            };
            if is_wanted || last.elapsed() >= period || self.has_new_rules().await {
                last = Instant::now();
                self.beat().await;
            }
        }
    }

    /// Sends a beat, and lets decisions know what follows.
    pub async fn beat(&self) {
        let mut asking = self.asking.lock().await;
        if asking.has_left {
            return;
        }
        let Asking { member, rules, .. } = &mut *asking;
        let snapshot = self.limiter.snapshot();
        if snapshot.is_in_force() {
            member.set_domains(snapshot.rules.share_terms(self.terms.seats));
            *rules = Some(Arc::clone(&snapshot.rules));
        }
        let query = member.query(self.desk.now());
        // The query gives up what others may count as given up.
        self.desk.put(member.view().clone());
        // No table has had this name.
        let incarnation = format!("{:032x}", fastrand::u128(..));
        let answer = self.table.beat(&query.beat(member.id(), &incarnation)).await;
        if let Ok(answer) = &answer {
            member.answered(&query, answer, self.desk.now());
            self.desk.put(member.view().clone());
        }
        self.tell(member, answer.as_ref().err());
        self.desk.end_beat(match answer {
            Ok(_) => BeatEnd::Answered,
            Err(SeatError::Refused(_)) => BeatEnd::Refused,
            Err(SeatError::Lost(_)) => BeatEnd::Lost,
        });
    }

    /// Gives up the seat, after the last decision. Others then need not wait until this instance counts as silent.
    pub async fn leave(&self) {
        let last_word = async {
            let mut asking = self.asking.lock().await;
            asking.has_left = true;
            let member = &mut asking.member;
            self.desk.put(member.left());
            let query = member.last_query(self.desk.now());
            self.table.beat(&query.beat(member.id(), &format!("{:032x}", fastrand::u128(..)))).await
        };
        if let Ok(Err(error)) = timeout(LAST_WORD, last_word).await {
            tracing::debug!(%error, "cannot tell the store that this instance gives up its seat");
        }
    }

    /// Returns whether other rules are in force than those whose terms were stated last.
    async fn has_new_rules(&self) -> bool {
        let snapshot = self.limiter.snapshot();
        let asking = self.asking.lock().await;
        snapshot.is_in_force() && asking.rules.as_ref().is_none_or(|rules| !Arc::ptr_eq(rules, &snapshot.rules))
    }

    /// Tells metrics and the log what has become of this instance's seat.
    fn tell(&self, member: &Member, error: Option<&SeatError>) {
        let view = member.view();
        let seat = view.seat(self.desk.now());
        let (domains, agreed) = view.domains();
        self.metrics.set_shares(seat.is_some(), (agreed, domains - agreed));
        let mut told = self.told.lock();
        if (seat, agreed) != (told.seat, told.agreed) {
            let what = match (seat, error) {
                (None, Some(_)) => "own shares have ended: the table of seats has not answered for SHARE_TIMEOUT",
                (None, None) => "own shares are not in use: this instance has no seat",
                _ if agreed < domains => "own shares are not in use where instances have other rules",
                _ => "own shares are in use a period from now",
            };
            // Counted from 1, as people do.
            let place = seat.map_or_else(|| "none".to_owned(), |seat| format!("{} of {}", seat + 1, self.terms.seats));
            tracing::info!(seat = place, domains, agreed, "{what}");
        }
        (told.seat, told.agreed) = (seat, agreed);
        match error {
            // An outage of the store is logged elsewhere.
            Some(SeatError::Lost(_)) => return,
            Some(SeatError::Refused(error)) if domains > 0 && !told.is_refused => tracing::warn!(
                %error,
                "Redis does not run the table of seats, so limits have no own shares: its script needs INFO (ACL \
                 SETUSER NAME +info)"
            ),
            Some(SeatError::Refused(_)) | None => {}
        }
        told.is_refused = error.is_some() && domains > 0;
        // Also the seat of one that has died counts as taken, until it has been silent for long.
        let is_crowded = domains > 0 && seat.is_none() && member.others() >= self.terms.seats as usize;
        told.crowded = if is_crowded { told.crowded.or_else(|| Some(Instant::now())) } else { None };
        let is_long = told.crowded.is_some_and(|since| since.elapsed() > self.terms.timeout * 6 / 5);
        if is_long && !told.is_crowded {
            tracing::warn!(
                seats = self.terms.seats,
                "all seats have been taken for SHARE_TIMEOUT: this instance has no own shares; if it lasts, raise \
                 EXPECTED_REPLICAS at all instances"
            );
        }
        told.is_crowded = is_long;
    }
}
