//! Histories: what clients asked a rate limiter, and what they were told. A history is a text of JSON lines. The first
//! is the [`Header`], each other one an [`Operation`], in the order of their ends.
//!
//! Times are microseconds of one monotonic clock, which all processes of a machine share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// The version of the format.
pub const VERSION: u32 = 1;

/// The promises that a history is judged by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the format, [`VERSION`].
    pub judge: u32,
    /// The limiter and the faults, for people.
    #[serde(default)]
    pub about: String,
    /// No operation lasts longer, in microseconds: a caller that waits longer gives up. An operation without an answer
    /// takes effect, if at all, no longer after its end.
    pub longest_us: u64,
    /// By how much a wait may be told too long, in microseconds: 1,000,000 if answers tell whole seconds.
    #[serde(default)]
    pub wait_resolution_us: u64,
    /// The step of the limiter's clock, in microseconds: two instants that are less apart may be the same to it, and
    /// two that it takes for a period apart may be so much less.
    #[serde(default)]
    pub clock_us: u64,
    /// The limits by name.
    pub limits: BTreeMap<String, Promise>,
}

/// What a limit promises for each of its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "kind")]
pub enum Promise {
    /// In each interval of one period at most this number of hits.
    Window {
        /// The most hits.
        number: u64,
        /// The period in microseconds.
        period_us: u64,
        /// How long a hit may count against later ones, in microseconds: the period, and for a window of segments one
        /// segment more. A denial is needless if the limit was free although each hit counted that long.
        memory_us: u64,
        /// The share of the number that is always there to be used, in thousandths: less than 1,000 if instances hold
        /// parts of it back.
        #[serde(default = "whole")]
        usable_thousandths: u64,
        /// The hits that the system's own count may lack: those that instances have used and not told of yet, and for
        /// each instance that died and each message that was lost, as many as it may have been about.
        #[serde(default)]
        unrecorded: u64,
    },
    /// In each interval of length t at most `burst + number * t / period` hits.
    Bucket {
        /// The most hits at once.
        burst: u64,
        /// The hits that are refilled in a period.
        number: u64,
        /// The period in microseconds.
        period_us: u64,
        /// The share of both numbers that is always there to be used, in thousandths: less than 1,000 if instances hold
        /// parts of it back. A denial is needless if a bucket of that share has had the hits.
        #[serde(default = "whole")]
        usable_thousandths: u64,
    },
    /// At each instant at most this number of holders.
    Holders {
        /// The most holders.
        number: u64,
        /// How long a holder that does not let go holds its place, in microseconds.
        expiry_us: u64,
    },
    /// In each interval of one period, streams use at most this number of hits, but for what they settle beyond their
    /// own holds; and no more than this is used and held when a stream begins.
    Budget {
        /// The most hits.
        number: u64,
        /// The period in microseconds.
        period_us: u64,
        /// How long a used hit may count against later ones, in microseconds: the period, and for a window of segments
        /// one segment more.
        memory_us: u64,
        /// How long a hold without a settle lasts at least, in microseconds.
        #[serde(default)]
        settle_within_us: u64,
        /// How long a hold without a settle lasts at most, in microseconds: of Tollgate a sixteenth longer.
        hold_for_us: u64,
        /// What becomes of a hold without a settle when it ends.
        #[serde(default)]
        unsettled: Unsettled,
        /// A settle may have no effect although it was answered: where a store fails, it denies no request.
        #[serde(default)]
        settles_may_be_lost: bool,
    },
}

/// What becomes of a hold that is not settled in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsettled {
    /// It is charged when it ends.
    #[default]
    Charge,
    /// It is refunded.
    Refund,
}

impl Promise {
    /// Returns what can be promised with a clock of this step: of a window, a period that is a step shorter, and hits
    /// that count a step longer. Of a bucket, what is refilled in a step is judged with its rate.
    pub(crate) fn by_clock(self, clock_us: u64) -> Promise {
        match self {
            Promise::Window { number, period_us, memory_us, usable_thousandths, unrecorded } => Promise::Window {
                number,
                period_us: period_us.saturating_sub(clock_us),
                memory_us: memory_us + clock_us,
                usable_thousandths,
                unrecorded,
            },
            Promise::Holders { number, expiry_us } => {
                Promise::Holders { number, expiry_us: expiry_us.saturating_sub(clock_us) }
            }
            Promise::Budget {
                number,
                period_us,
                memory_us,
                settle_within_us,
                hold_for_us,
                unsettled,
                settles_may_be_lost,
            } => Promise::Budget {
                number,
                period_us: period_us.saturating_sub(clock_us),
                memory_us: memory_us + clock_us,
                settle_within_us: settle_within_us.saturating_sub(clock_us),
                hold_for_us: hold_for_us + 2 * clock_us,
                unsettled,
                settles_may_be_lost,
            },
            bucket @ Promise::Bucket { .. } => bucket,
        }
    }
}

fn whole() -> u64 {
    1_000
}

/// A call of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation<'h> {
    /// When the client asked.
    pub begin: u64,
    /// When the client had the answer, or gave up.
    pub end: u64,
    /// What it asked.
    #[serde(default, skip_serializing_if = "Ask::is_take")]
    pub ask: Ask,
    /// The counters that it asked, all together or none.
    #[serde(borrow)]
    pub of: Vec<Part<'h>>,
    /// What it was told.
    pub told: Told,
    /// What remained, by the answer, at the counter that had least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// How much the counter was used so far, by the system's own count: the answer to [`Ask::Total`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// How long to wait before the same passes, by the answer, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_us: Option<u64>,
    /// The process that asked.
    #[serde(default)]
    pub from: u32,
    /// Who decided, if the answer says it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Cow<'h, str>>,
}

/// The part of an operation at one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part<'h> {
    /// The name of the limit.
    #[serde(borrow)]
    pub limit: Cow<'h, str>,
    /// The key, which has a counter of its own.
    #[serde(borrow)]
    pub key: Cow<'h, str>,
    /// The hits; of holders, 1.
    pub hits: u64,
    /// The holder, at a limit of holders; the stream, at a budget.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Cow<'h, str>>,
}

/// What an operation asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// To take the hits, or to hold a place.
    #[default]
    Take,
    /// To be told, and take nothing.
    Peek,
    /// To give hits back, or to let a place go.
    Return,
    /// To hold hits of a budget, by a stream that begins.
    Hold,
    /// To end the hold, and to be charged these hits instead, by a stream that ends.
    Settle,
    /// To be told how many hits were taken and not given back since the begin, of one counter; a bill is made of it.
    Total,
}

impl Ask {
    /// Whether it takes, which is usual.
    pub fn is_take(&self) -> bool {
        *self == Ask::Take
    }
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The request passes.
    Allowed,
    /// The request is over a limit.
    Denied,
    /// An error; what was asked may have been counted or not.
    Failed,
    /// No answer in time; what was asked may have been counted or not.
    Late,
}

/// The reason why a text is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Reading failed.
    #[error("the history cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line has another form.
    #[error("line {0} is not of a history: {1}")]
    Line(u64, serde_json::Error),
    /// A line contradicts the header, or another line.
    #[error("line {0}: {1}")]
    Wrong(u64, String),
}

/// Reads a history, and calls `visit` with each operation and its line's number.
///
/// # Errors
/// Fails at the first line that is not of a history, and if `visit` fails.
pub fn read<T>(
    mut text: impl BufRead,
    begin: impl FnOnce(Header) -> T,
    mut visit: impl FnMut(&mut T, &Operation<'_>) -> Result<(), String>,
) -> Result<T, HistoryError> {
    let mut line = String::new();
    text.read_line(&mut line)?;
    let header: Header = serde_json::from_str(&line).map_err(|error| HistoryError::Line(1, error))?;
    if header.judge != VERSION {
        let why = format!("is of version {}, and this judge reads version {VERSION}", header.judge);
        return Err(HistoryError::Wrong(1, why));
    }
    let longest_us = header.longest_us;
    let mut judged = begin(header);
    let mut last = 0;
    for number in 2.. {
        line.clear();
        if text.read_line(&mut line)? == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let operation: Operation<'_> =
            serde_json::from_str(&line).map_err(|error| HistoryError::Line(number, error))?;
        let wrong = |why: String| HistoryError::Wrong(number, why);
        if operation.end < operation.begin {
            return Err(wrong("the operation ends before it begins".to_owned()));
        }
        if operation.end - operation.begin > longest_us {
            return Err(wrong(format!("the operation lasts longer than longest_us, {longest_us}")));
        }
        if operation.ask == Ask::Total && operation.of.len() != 1 {
            return Err(wrong("asks for the total of one counter, and names another number of them".to_owned()));
        }
        if operation.end < last {
            return Err(wrong("ends before the line before: a history is in the order of ends".to_owned()));
        }
        last = operation.end;
        visit(&mut judged, &operation).map_err(wrong)?;
    }
    Ok(judged)
}

/// Writes a history from the operations of all processes, in the order of their ends.
///
/// # Errors
/// Fails if writing fails.
pub fn write(header: &Header, mut operations: Vec<Operation<'_>>, mut out: impl Write) -> io::Result<()> {
    operations.sort_by_key(|operation| (operation.end, operation.begin));
    serde_json::to_writer(&mut out, header)?;
    out.write_all(b"\n")?;
    for operation in &operations {
        serde_json::to_writer(&mut out, operation)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "{\"judge\":1,\"longest_us\":10,\"limits\":{\"a\":{\"kind\":\"window\",\"number\":1,\
                          \"period_us\":5,\"memory_us\":6}}}\n";

    fn ends(text: &str) -> Result<Vec<u64>, String> {
        let all = read(
            text.as_bytes(),
            |_| Vec::new(),
            |all, operation| {
                all.push(operation.end);
                Ok(())
            },
        );
        all.map_err(|error| error.to_string())
    }

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let part = Part { limit: "a".into(), key: "\"k\"\n".into(), hits: 2, holder: None };
        let operation = |begin, end| Operation {
            begin,
            end,
            ask: Ask::Take,
            of: vec![part.clone()],
            told: Told::Allowed,
            remaining: Some(3),
            total: None,
            wait_us: None,
            from: 1,
            by: None,
        };
        let header: Header = serde_json::from_str(HEADER).unwrap();
        let mut text = Vec::new();
        write(&header, vec![operation(3, 9), operation(1, 4)], &mut text).unwrap();
        let all = read(
            &text[..],
            |_| Vec::new(),
            |all, operation| {
                all.push((operation.begin, operation.of[0].key.clone().into_owned()));
                Ok(())
            },
        );
        assert_eq!(all.unwrap(), [(1, "\"k\"\n".to_owned()), (3, "\"k\"\n".to_owned())]);
    }

    #[test]
    fn what_is_no_history_is_refused_by_its_line() {
        let line = |begin, end| format!("{{\"begin\":{begin},\"end\":{end},\"of\":[],\"told\":\"denied\"}}\n");
        let with = |lines: &[String]| ends(&(HEADER.to_owned() + &lines.concat()));
        assert_eq!(with(&[line(1, 2), "\n".to_owned(), line(1, 3)]), Ok(vec![2, 3]));
        assert!(with(&[line(2, 1)]).unwrap_err().starts_with("line 2: the operation ends before"));
        assert!(with(&[line(1, 12)]).unwrap_err().contains("longer than longest_us, 10"));
        assert!(with(&[line(1, 4), line(1, 3)]).unwrap_err().starts_with("line 3: ends before the line before"));
        let total = line(1, 4).replace("\"of\"", "\"ask\":\"total\",\"of\"");
        assert!(with(&[total]).unwrap_err().starts_with("line 2: asks for the total of one counter"));
        assert!(with(&["{}".to_owned()]).unwrap_err().starts_with("line 2 is not of a history: missing field"));
        assert!(ends("").unwrap_err().starts_with("line 1 is not of a history"));
        assert!(
            ends(&HEADER.replace("1,\"longest", "2,\"longest")).unwrap_err().contains("this judge reads version 1")
        );
    }
}
