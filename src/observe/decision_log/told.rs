//! Lines of a decision log, read for people: why a request was denied, when it would have passed, and what to tell the
//! client.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::algorithm::Algorithm;
use crate::engine::clock::timestamp;
use crate::engine::descriptor::{HOLD_KEY, SETTLE_KEY, counted, per};
use crate::engine::printable::printable;

/// A line of the log. Fields that another version has and this one does not know are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Time of the decision, in RFC 3339 format and UTC.
    pub time: String,
    /// Domain of the request.
    pub domain: String,
    /// The limit; `None` if no rule was reached.
    #[serde(default)]
    pub rule: Option<String>,
    /// Entries of the descriptor.
    #[serde(default)]
    pub descriptor: Vec<Pair>,
    /// Number of hits requested.
    #[serde(default)]
    pub hits: i64,
    /// Number of hits that a stream of a budget holds or settles, or would hold; `None` if the line does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// The limit's number and period.
    #[serde(default)]
    pub limit: Option<Number>,
    /// Number of hits that would still have passed.
    #[serde(default)]
    pub remaining: Option<u64>,
    /// Time until the same request would pass.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// Result of the limit.
    pub outcome: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Whether the limit never lets such a request pass.
    #[serde(default)]
    pub never: bool,
    /// What operators had changed about the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<Adjusted>,
    /// Number of denials of the limit without a line before this one.
    #[serde(default)]
    pub suppressed: u64,
    /// The instance that decided.
    #[serde(default)]
    pub instance: String,
    /// Number of the call at its instance. All lines of a call have the same number.
    #[serde(default)]
    pub call: u64,
    /// The caller's ID for the request.
    #[serde(default)]
    pub request_id: Option<String>,
}

/// An entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Its key.
    pub key: String,
    /// Its value, or a hash of it; `None` if it is hidden.
    #[serde(default)]
    pub value: Option<String>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Number {
    /// Name of its algorithm.
    pub algorithm: String,
    /// Its number.
    pub number: u64,
    /// Its period; `None` for a limit of requests in progress, and for a balance.
    #[serde(default)]
    pub period_ms: Option<u64>,
}

/// The call of a stream to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfStream {
    /// The stream begins.
    Hold,
    /// The stream ends.
    Settle,
}

/// An adjustment of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjusted {
    /// Its ID.
    pub id: String,
    /// Its effect.
    pub effect: String,
    /// Who made it.
    pub who: String,
    /// Why.
    pub why: String,
}

impl Told {
    /// Returns whether the line is about this entry, whose value may be hashed in the log.
    pub fn has(&self, key: &str, values: &[&str]) -> bool {
        self.descriptor
            .iter()
            .any(|pair| pair.key == key && pair.value.as_deref().is_some_and(|is| values.contains(&is)))
    }

    /// Returns whether the request was denied, or failed.
    pub fn is_refused(&self) -> bool {
        matches!(&*self.outcome, "denied" | "failed")
    }

    /// Returns the line of a call by which its client is told: of those that refused it, the one that does so for
    /// longest. `None` if none refused it.
    pub fn decisive(call: &[Told]) -> Option<&Told> {
        let refused = call.iter().filter(|line| line.is_refused());
        // A time that is not known may be any.
        refused.max_by_key(|line| (line.never, line.retry_after_ms.is_none(), line.retry_after_ms))
    }

    /// Returns the sentence for the client of a request that this line refused.
    pub fn for_client(&self) -> String {
        let whose = self.entries();
        match (&*self.reason, &self.limit, self.returns()) {
            ("banned", _, Some(returns)) => {
                format!("Requests with {whose} were denied too often, and are blocked until {returns} UTC.")
            }
            ("banned", _, None) => format!("Requests with {whose} were denied too often, and are blocked."),
            ("over" | "known_denial" | "failure_mode_local", Some(limit), _) if self.never => {
                let asked = self.asked().map_or(String::new(), |hits| format!("{hits} at once, "));
                format!("A request with {whose} asked for {asked}more than {limit} ever allow. Please ask for less.")
            }
            ("over" | "known_denial" | "failure_mode_local", Some(limit), Some(returns)) => format!(
                "Requests with {whose} have used all of {limit}. Please send the next one after {returns} UTC, and at \
                 most {limit} from then on."
            ),
            ("over" | "known_denial" | "failure_mode_local", Some(limit), None) => {
                format!("Requests with {whose} have used all of {limit}. Please send the next one later.")
            }
            ("adjustment", ..) => format!("Requests with {whose} are blocked by an operator."),
            ("unknown_domain" | "unknown_descriptor" | "missing_entry", ..) => {
                format!("Requests with {whose} are not permitted here.")
            }
            _ => format!("A request with {whose} could not be decided, because of a fault of ours. Please try again."),
        }
    }

    /// Returns when the same request would have passed, in UTC; `None` if never, or if it is unknown.
    fn returns(&self) -> Option<String> {
        let time =
            humantime::parse_rfc3339(&self.time).ok()?.checked_add(Duration::from_millis(self.retry_after_ms?))?;
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        // Rounded up: a second earlier, it would not pass.
        let text = timestamp(u64::try_from(since.as_millis().div_ceil(1_000) * 1_000).ok()?);
        let (day, rest) = text.split_once('T')?;
        let clock = rest.get(..8)?;
        Some(if self.time.starts_with(day) { clock.to_owned() } else { format!("{day} {clock}") })
    }

    fn entries(&self) -> String {
        let pair = |Pair { key, value }: &Pair| {
            format!("{}={}", printable(key), value.as_deref().map_or("(hidden)".to_owned(), printable))
        };
        self.descriptor.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// Returns whether a stream begins or ends; `None` if the limit is no budget.
    fn of_stream(&self) -> Option<OfStream> {
        self.limit.as_ref().filter(|limit| limit.algorithm == Algorithm::Budget.name())?;
        // Entries that choose a price may follow, and have other keys.
        self.descriptor.iter().rev().find_map(|pair| match &*pair.key {
            HOLD_KEY => Some(OfStream::Hold),
            SETTLE_KEY => Some(OfStream::Settle),
            _ => None,
        })
    }

    /// Returns the hits that the limit was asked for. `None` if a stream brought no estimate, and the line does not say
    /// which one it got.
    fn asked(&self) -> Option<u64> {
        let brought = Some(self.hits.unsigned_abs()).filter(|hits| *hits > 0 || self.of_stream().is_none());
        self.counted.or(brought)
    }

    /// Returns what the reason means for this request.
    fn cause(&self) -> String {
        let left = self.remaining.map(|left| format!(", {left} left")).unwrap_or_default();
        match &*self.reason {
            "over" => {
                let verb =
                    if self.of_stream().is_some() && self.counted.is_some() { "would hold" } else { "asked for" };
                match self.asked() {
                    Some(hits) => format!("it {verb} {}{left}", counted(hits, "hit")),
                    None => format!("it would hold an estimate that is not in the log{left}"),
                }
            }
            "within" => match (self.of_stream(), self.counted.map(|hits| counted(hits, "hit"))) {
                (Some(OfStream::Hold), Some(hits)) => format!("within the limit, holding {hits}{left}"),
                (Some(OfStream::Settle), Some(hits)) => format!("within the limit, settling for {hits}{left}"),
                _ => format!("within the limit{left}"),
            },
            "banned" => "banned by a penalty after earlier denials".to_owned(),
            "adjustment" => "decided by an adjustment".to_owned(),
            "skipped" => "not asked, because another limit denied the request".to_owned(),
            "not_refunded" => "Redis was unavailable, and did not confirm the refund".to_owned(),
            "known_denial" => "Redis was unavailable, and had denied the same key before".to_owned(),
            "failure_mode_closed" => "Redis was unavailable, and the limit fails closed".to_owned(),
            "failure_mode_local" => "Redis was unavailable, and this instance decided by its share".to_owned(),
            "failure_mode_open" => "Redis was unavailable, and the limit fails open".to_owned(),
            "failure_mode_error" => "Redis was unavailable, and the limit fails the call".to_owned(),
            "overloaded" => "Redis had no room for the call".to_owned(),
            "deadline_exceeded" => "the caller's deadline was over before the limit was asked".to_owned(),
            "missing_entry" => "it lacks an entry that the domain expects".to_owned(),
            "unknown_domain" => "no rules know the domain, and UNKNOWN_DOMAIN denies such requests".to_owned(),
            "unknown_descriptor" => "no rule matches, and UNKNOWN_DESCRIPTOR denies such requests".to_owned(),
            other => printable(other),
        }
    }
}

/// Formats the line and its causes, for a terminal: see [`printable`].
impl Display for Told {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let outcome = match &*self.outcome {
            "denied" => "DENIED",
            "failed" => "FAILED",
            "shadow_denied" => "passed; would be denied, but for the rule's shadow mode",
            "global_shadow_denied" => "passed; would be denied, but for SHADOW_MODE",
            "allowed" => "passed",
            _ => "with an outcome that this version does not know",
        };
        writeln!(f, "{}  {}: {}  {outcome}", printable(&self.time), printable(&self.domain), self.entries())?;
        match (&self.rule, &self.limit) {
            (Some(rule), Some(limit)) => {
                writeln!(f, "  {}: {limit}, {}: {}", printable(rule), printable(&limit.algorithm), self.cause())?;
            }
            _ => writeln!(f, "  {}", self.cause())?,
        }
        for Adjusted { id, effect, who, why } in &self.adjustments {
            let [id, effect, who, why] = [id, effect, who, why].map(|text| printable(text));
            writeln!(f, "  adjusted: {effect}, by {who}: {why} ({id})")?;
        }
        match self.returns() {
            _ if !self.is_refused() => {}
            _ if self.never => writeln!(f, "  the same request would never pass")?,
            Some(returns) => writeln!(f, "  the same request would have passed from {returns} UTC on")?,
            None => {}
        }
        if self.suppressed > 0 {
            writeln!(f, "  {} of this limit before it have no line", counted(self.suppressed, "denial"))?;
        }
        let id = self.request_id.as_ref().map(|id| format!(", request {}", printable(id))).unwrap_or_default();
        writeln!(f, "  instance {}{id}", printable(&self.instance))
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, per(&self.algorithm, self.period_ms.map(Duration::from_millis), None, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::decision::DecidedBy;
    use crate::observe::watch::FailedBy;

    fn told(more: &str) -> Told {
        let line = format!(
            r#"{{"time":"2026-11-23T14:03:07.512Z","domain":"shop","rule":"per-user",
            "descriptor":[{{"key":"user","value":"ann"}}],"hits":1,
            "limit":{{"algorithm":"sliding_window","number":5,"period_ms":60000}},"remaining":0,{more},
            "sampled":false,"instance":"i-1","call":1,"request_id":null}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_line_says_why_and_when_the_client_may_return_rounded_up() {
        let over = told(r#""retry_after_ms":44489,"outcome":"denied","reason":"over""#);
        assert_eq!(
            over.to_string(),
            "2026-11-23T14:03:07.512Z  shop: user=ann  DENIED\n\
             \x20 per-user: 5 per minute, sliding_window: it asked for 1 hit, 0 left\n\
             \x20 the same request would have passed from 14:03:53 UTC on\n\
             \x20 instance i-1\n"
        );
        assert_eq!(
            over.for_client(),
            "Requests with user=ann have used all of 5 per minute. Please send the next one after 14:03:53 UTC, and at \
             most 5 per minute from then on."
        );
        let exact = told(r#""retry_after_ms":488,"outcome":"denied","reason":"over""#);
        assert_eq!(exact.returns().as_deref(), Some("14:03:08"), "a whole second is not rounded");
        let tomorrow = told(r#""retry_after_ms":86400000,"outcome":"denied","reason":"banned""#);
        assert_eq!(tomorrow.returns().as_deref(), Some("2026-11-24 14:03:08"));
        assert!(tomorrow.to_string().contains("banned by a penalty after earlier denials"), "{tomorrow}");
        let never = told(r#""retry_after_ms":null,"outcome":"denied","reason":"over","never":true"#);
        assert!(
            never.to_string().contains("would never pass") && never.for_client().contains("ask for less"),
            "{never}"
        );
    }

    #[test]
    fn every_reason_is_in_words_and_says_to_the_client_what_it_means() {
        let names = DecidedBy::ALL.map(DecidedBy::name).into_iter().filter(|name| *name != "store");
        let others = ["within", "over", "banned"].into_iter().chain(FailedBy::ALL.map(FailedBy::name));
        for reason in names.chain(others) {
            let denied = told(&format!(r#""retry_after_ms":1000,"outcome":"denied","reason":"{reason}""#));
            assert_ne!(denied.cause(), reason, "it is in words");
            let is_ours = denied.for_client().contains("a fault of ours");
            let is_used_up = denied.for_client().contains("14:03:09 UTC");
            match reason {
                "over" | "banned" | "known_denial" | "failure_mode_local" => {
                    assert!(is_used_up && !is_ours, "{reason}")
                }
                "adjustment" | "unknown_domain" | "unknown_descriptor" | "missing_entry" => {
                    assert!(!is_used_up && !is_ours, "{reason}");
                }
                _ => assert!(is_ours, "{reason}"),
            }
        }
        for outcome in ["allowed", "shadow_denied", "global_shadow_denied"] {
            let passed = told(&format!(r#""retry_after_ms":1000,"outcome":"{outcome}","reason":"over""#));
            assert!(!passed.is_refused() && passed.to_string().contains("  passed"), "{passed}");
        }
    }

    #[test]
    fn what_operators_changed_and_what_has_no_line_is_told() {
        let adjusted = told(
            r#""retry_after_ms":null,"outcome":"denied","reason":"adjustment","suppressed":12,
            "adjustments":[{"id":"flood","effect":"block","who":"bob","why":"a flood"}]"#,
        );
        let text = adjusted.to_string();
        assert!(text.contains("\n  adjusted: block, by bob: a flood (flood)\n"), "{text}");
        assert!(text.contains("\n  12 denials of this limit before it have no line\n"), "{text}");
        assert!(!text.contains("never pass") && adjusted.for_client().contains("blocked by an operator"), "{text}");
    }

    #[test]
    fn streams_of_a_budget_are_told_by_what_they_hold_and_settle_for() {
        let stream = |key: &str, hits, outcome: &str| {
            let mut line = told(outcome);
            line.descriptor.push(Pair { key: key.to_owned(), value: Some("1".to_owned()) });
            line.descriptor.push(Pair { key: "model".to_owned(), value: Some("small".to_owned()) });
            let number = Number { algorithm: "budget".to_owned(), number: 400, period_ms: Some(60_000) };
            (line.hits, line.limit, line.remaining) = (hits, Some(number), Some(12));
            line
        };
        let denied = r#""retry_after_ms":9,"outcome":"denied","reason":"over""#;
        let passed = r#""retry_after_ms":null,"outcome":"allowed","reason":"within""#;
        for (key, hits, outcome, counted, cause) in [
            ("hold", 0, denied, Some(455), "it would hold 455 hits, 12 left"),
            ("hold", 0, denied, None, "it would hold an estimate that is not in the log, 12 left"),
            ("hold", 500, denied, None, "it asked for 500 hits, 12 left"),
            ("hold", 0, passed, Some(455), "within the limit, holding 455 hits, 12 left"),
            ("settle", 1, passed, Some(2_500), "within the limit, settling for 2500 hits, 12 left"),
            ("settle", 1, passed, None, "within the limit, 12 left"),
        ] {
            let line = Told { counted, ..stream(key, hits, outcome) };
            assert_eq!(line.cause(), cause);
        }
        let never = Told { never: true, ..stream("hold", 0, denied) };
        assert!(never.for_client().contains("asked for more than 400 per minute ever allow"), "{}", never.for_client());
        let never = Told { counted: Some(455), ..never };
        assert!(never.for_client().contains("asked for 455 at once, more than 400"), "{}", never.for_client());
    }
}
