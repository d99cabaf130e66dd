//! The table of seats in Redis: a hash, which one script reads and writes over a separate connection, so no request
//! waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::Value;

use super::{SeatError, SeatTable};
use crate::engine::check::StoreError;
use crate::engine::share::{Answer, Beat, Entry, Seat};
use crate::shared::exchange::{Exchange, Repeat};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::connection::Fault;
use crate::store::redis::topology::Route;

/// The script, a twin of [`Table`](crate::engine::share::Table).
pub const SOURCE: &str = include_str!("../../../lua/seats.lua");

/// How long the table is kept after the last beat: the longest period, a year of 366 days, and a tenth more. New
/// instances learn from it what was admitted before.
const KEPT: Duration = Duration::from_secs(403 * 24 * 60 * 60);

/// The table of a service.
pub struct RedisSeats {
    exchange: Exchange,
}

impl RedisSeats {
    /// Returns the table of the service over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisSeats {
        RedisSeats { exchange: Exchange::new(route, SOURCE, ("seats", &["table"])) }
    }
}

impl SeatTable for RedisSeats {
    /// Waits for as long as the configuration says.
    async fn beat(&self, beat: &Beat<'_>) -> Result<Answer, SeatError> {
        let mut call = self.exchange.call();
        for argument in arguments(beat) {
            call.arg(argument);
        }
        // The same beat changes nothing the second time.
        match self.exchange.turn().await.send(&call, Repeat::Allowed).await {
            Ok(reply) => answer(reply).ok_or(SeatError::Lost(StoreError::Answer)),
            // What lasts. Other refusals, as without memory or of a replica, pass.
            Err(Fault::Refused(cause @ (Cause::Lacks(_) | Cause::NoCommand(_) | Cause::Other(_)))) => {
                Err(SeatError::Refused(cause.to_string()))
            }
            Err(fault) => Err(SeatError::Lost(fault.into())),
        }
    }
}

/// Returns the arguments of the script for a beat.
pub fn arguments(beat: &Beat<'_>) -> Vec<String> {
    let (ask, seat, after_ms) = match beat.seat {
        Seat::None => ("none", 0, 0),
        Seat::Hold(seat) => ("hold", seat, 0),
        Seat::Take(seat, after_ms) => ("take", seat, after_ms),
    };
    let Beat { id, beat, stated, incarnation, known, silent, .. } = *beat;
    let mut arguments = vec![
        id.to_owned(),
        beat.to_string(),
        ask.to_owned(),
        seat.to_string(),
        after_ms.to_string(),
        stated.to_owned(),
        incarnation.to_owned(),
        known.0.to_owned(),
        known.1.to_string(),
        KEPT.as_millis().to_string(),
    ];
    arguments.extend(silent.iter().flat_map(|(id, beat)| [id.clone(), beat.to_string()]));
    arguments
}

/// Reads the reply of the script; `None` if it is not one. An entry that cannot be read states nothing that can be read
/// either.
pub fn answer(reply: Value) -> Option<Answer> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(incarnation), Value::Int(known_ms), listed @ ..] = &*parts else { return None };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entry = |pair: &[Value]| match pair {
        [Value::BulkString(id), Value::BulkString(entry)] => Some((text(id), read(&text(entry)))),
        _ => None,
    };
    let entries: Option<BTreeMap<String, Entry>> = listed.chunks(2).map(entry).collect();
    Some(Answer { incarnation: text(incarnation), known_ms: u64::try_from(*known_ms).ok()?, entries: entries? })
}

/// Reads an entry: the beat, the seat or `-`, and what the instance states.
fn read(entry: &str) -> Entry {
    let mut parts = entry.splitn(3, ' ');
    let mut next = || parts.next().unwrap_or_default();
    let (beat, seat, stated) = (next(), next(), next());
    Entry { beat: beat.parse().unwrap_or_default(), seat: seat.parse().ok(), stated: stated.to_owned() }
}
