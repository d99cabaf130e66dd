//! Messages about keys that mean nothing in their place: a misspelled key, a key of another section, or the term of
//! another rate limiter.

use crate::engine::descriptor::Unit;
use crate::engine::rules::keys::{DESCRIPTOR, ROOT, SECTIONS};
use crate::engine::rules::options::{lease, penalty, usage};
use crate::engine::rules::report::{Severity, nearest, quoted, unknown};
use crate::engine::rules::section::{Key, Section};

/// Terms of other products for one thing, and the key to use here.
struct Hint {
    /// The terms, as normalized by [`plain`].
    words: &'static [&'static str],
    /// The sections where they have this meaning; empty for all sections.
    within: &'static [&'static Section],
    say: &'static str,
}

const fn hint(words: &'static [&'static str], say: &'static str) -> Hint {
    Hint { words, within: &[], say }
}

const fn hint_within(within: &'static [&'static Section], words: &'static [&'static str], say: &'static str) -> Hint {
    Hint { words, within, say }
}

/// The first hint that fits is used.
static HINTS: &[Hint] = &[
    // Configuration files of other products.
    hint_within(&[&ROOT], &["staticresources", "dynamicresources"], "this configures Envoy; rules begin with a domain"),
    hint_within(&[&ROOT], &["formatversion", "plugins"], "this configures Kong; rules begin with a domain"),
    hint_within(&[&ROOT], &["spring", "resilience4j"], "this configures Spring; rules begin with a domain"),
    hint_within(
        &[&ROOT],
        &["http", "entrypoints", "middlewares"],
        "this configures Traefik; rules begin with a domain",
    ),
    hint_within(&[&ROOT], &["namespace", "service", "services", "app", "application"], "write domain"),
    hint_within(&[&ROOT], &["version"], "remove it: rules files have no version"),
    // Parts of a penalty, of a lease, and of a limit's usage.
    hint_within(
        &[&penalty::SECTION],
        &["threshold", "count", "max", "maxretry", "denials", "limit", "times"],
        "write after",
    ),
    hint_within(&[&penalty::SECTION], &["window", "interval", "period", "findtime", "seconds"], "write within"),
    hint_within(&[&penalty::SECTION], &["duration", "bantime", "banduration", "blockduration", "ttl"], "write ban"),
    hint_within(&[&lease::SECTION], &["size", "count", "hits", "tokens", "amount", "batch", "number"], "write unused"),
    hint_within(&[&lease::SECTION], &["duration", "period", "seconds", "expires", "expiry", "window"], "write ttl"),
    hint_within(
        &[&usage::SECTION],
        &["every", "period", "per", "unit", "interval", "granularity", "bucket"],
        "write by",
    ),
    hint_within(
        &[&usage::SECTION],
        &["retain", "retention", "ttl", "days", "duration", "expires", "expiry"],
        "write keep",
    ),
    // Matching.
    hint_within(
        &[&ROOT, &DESCRIPTOR],
        &["limit", "throttle", "ratelimiting", "ratelimiter", "ratelimits"],
        "write rate_limit: {unit: minute, requests_per_unit: 5}, in a descriptor",
    ),
    hint_within(&[&DESCRIPTOR], &["limits"], "write several limits as a list, rate_limits; a single one as rate_limit"),
    hint_within(
        &[&ROOT, &DESCRIPTOR],
        &["rules", "limits", "entries", "children", "nested", "subdescriptors", "items", "routes"],
        "write descriptors: a list of mappings, each with a key",
    ),
    hint(&["descriptorkey", "entrykey"], "write key, in a descriptor"),
    hint(&["descriptorvalue", "defaultvalue", "entryvalue"], "write value, in a descriptor"),
    hint(&["conditions", "condition", "when", "if"], "conditions are nested descriptors, each with a key and a value"),
    hint(
        &["variables", "variable", "qualifiers", "limitby", "keyresolver", "sourcecriterion", "identifier", "groupby"],
        "a descriptor without a value counts each value separately",
    ),
    hint(
        &[
            "actions",
            "match",
            "matches",
            "matcher",
            "matchers",
            "headers",
            "header",
            "headername",
            "requestheaders",
            "headervaluematch",
            "clientselectors",
            "sourcecidr",
            "cidr",
            "prefix",
            "regex",
            "pattern",
        ],
        "Envoy decides which parts of a request become entries, by the actions of its rate_limits; write the entry's \
         key and value here",
    ),
    hint_within(
        &[&DESCRIPTOR],
        &[
            "path",
            "route",
            "user",
            "ip",
            "clientip",
            "sourceip",
            "remoteaddress",
            "method",
            "host",
            "tenant",
            "plan",
            "apikey",
            "generickey",
        ],
        "write the entry as a key and a value, such as key: path and value: /search",
    ),
    hint(&["shared", "share", "sharedcounter"], "write share_threshold: true, in a descriptor with a wildcard"),
    hint(
        &["dryrun", "shadow", "logonly", "reportonly", "testmode", "enforce", "enforced", "enforcing"],
        "write shadow_mode: true, in the descriptor, next to rate_limit",
    ),
    hint(&["description", "comment", "note", "title", "id", "labels"], "write a comment: it begins with #"),
    // Numbers and periods.
    hint(
        &[
            "rate",
            "limit",
            "requests",
            "count",
            "max",
            "maximum",
            "maxvalue",
            "maxrequests",
            "average",
            "permits",
            "limitforperiod",
            "quota",
            "tokens",
            "allowed",
            "number",
            "requestsperperiod",
        ],
        "write requests_per_unit: 5, with unit: minute or period: 90s, in rate_limit",
    ),
    hint(
        &[
            "window",
            "windowsize",
            "windowlength",
            "timewindow",
            "interval",
            "duration",
            "seconds",
            "per",
            "every",
            "limitrefreshperiod",
            "refreshperiod",
            "timeunit",
            "time",
            "timeperiod",
            "resetinterval",
            "ttl",
        ],
        "write unit: minute or period: 90s, in rate_limit",
    ),
    hint(&["rps", "qps", "tps"], "write requests_per_unit: 5 and unit: second, in rate_limit"),
    hint(&["rpm"], "write requests_per_unit: 5 and unit: minute, in rate_limit"),
    hint(&["rph"], "write requests_per_unit: 5 and unit: hour, in rate_limit"),
    hint(
        &["capacity", "burstcapacity", "bucketsize", "bucketcapacity", "maxtokens", "burstsize", "maxburst"],
        "write burst, with algorithm: token_bucket, in rate_limit",
    ),
    hint(
        &[
            "replenishrate",
            "fillrate",
            "refillrate",
            "refill",
            "refilltokens",
            "tokensperfill",
            "fillinterval",
            "refillinterval",
            "refillperiod",
        ],
        "a token_bucket refills requests_per_unit in each unit or period: write these, in rate_limit",
    ),
    hint(
        &[
            "daystart",
            "weekstart",
            "monthstart",
            "firstdayofweek",
            "billingday",
            "start",
            "startat",
            "starttime",
            "anchor",
            "offset",
            "resetat",
            "resettime",
            "cron",
            "schedule",
            "calendar",
            "tz",
            "zone",
        ],
        "windows begin at midnight, weeks on Monday and months on the first: write algorithm: fixed_window and \
         time_zone: Europe/Berlin, in rate_limit; for another day, add starts_on: 2026-01-15",
    ),
    // Algorithms and costs.
    hint(&["strategy", "type", "kind", "mode", "algo", "limiter"], "write algorithm, in rate_limit or defaults"),
    hint(
        &["requestedtokens", "weight", "hits", "hitsaddend", "addend", "tokensperrequest", "increment"],
        "write cost, in rate_limit",
    ),
    hint(
        &["delay", "nodelay", "timeoutduration", "maxwait", "wait", "timeout", "queue", "queuesize"],
        "a leaky_bucket with max_delay delays requests that come too early: write these, in rate_limit",
    ),
    hint(
        &[
            "concurrency",
            "concurrent",
            "maxconcurrent",
            "maxconcurrentcalls",
            "maxconcurrentrequests",
            "connections",
            "maxconnections",
            "inflight",
            "inflightreq",
            "maxinflight",
            "parallel",
        ],
        "write algorithm: concurrency, and as requests_per_unit the number of requests in progress at once, in \
         rate_limit",
    ),
    hint(
        &["ban", "bantime", "banduration", "block", "blockduration", "cooldown", "jail"],
        "write penalty: {after: 5, within: 1m, ban: 15m}, in rate_limit",
    ),
    hint(
        &["failuremodedeny", "failopen", "failclosed", "faulttolerant", "onerror", "fallback"],
        "write failure_mode: open, closed, local or error, in rate_limit or defaults",
    ),
    // Settings made elsewhere.
    hint(
        &["statuscode", "errorcode", "errormessage", "response", "status", "rejectedcode", "denycode", "message"],
        "Envoy decides what a denied client receives, by rate_limited_status of its filter",
    ),
    hint(
        &["policy", "store", "storage", "backend", "redis", "cluster"],
        "settings of the process decide where counters are stored: BACKEND_TYPE and REDIS_URL",
    ),
];

/// Returns the message about a key that means nothing in its section.
pub(super) fn stray(section: &Section, name: &str) -> (Severity, String) {
    if !SECTIONS.iter().any(|of_rules| of_rules.is(section)) {
        // The terms of rules mean nothing in another file.
        return (Severity::Error, unknown("key", name, &section.names().collect::<Vec<_>>()));
    }
    let homes: Vec<_> = SECTIONS.iter().filter(|home| home.key(name).is_some()).map(|home| home.name).collect();
    if !homes.is_empty() {
        return (Severity::Warning, format!("does nothing here; it belongs in {}", homes.join(" or ")));
    }
    let message = match meant(section, name) {
        Some(meant) => format!("unknown key {}: {meant}", quoted(name)),
        None => unknown("key", name, &section.names().collect::<Vec<_>>()),
    };
    (Severity::Error, message)
}

/// Returns what to write instead of a misspelled key or another product's term.
fn meant(section: &Section, name: &str) -> Option<String> {
    if let Some(key) = name.strip_prefix('-').filter(|key| section.key(key).is_some()) {
        return Some(format!("a space is missing after the dash: - {key}"));
    }
    let word = plain(name)?;
    let ours = |key: &&Key| plain(key.name).is_some_and(|ours| ours == word);
    if let Some(key) = section.keys().find(ours) {
        return Some(format!("write {}", key.name));
    }
    if let Some(hint) = HINTS.iter().find(|hint| hint.words.contains(&&*word) && hint.holds_in(section)) {
        // The current section need not be named.
        let here = format!(", in {}", section.name);
        return Some(hint.say.strip_suffix(&here).unwrap_or(hint.say).to_owned());
    }
    let number_of = word.strip_prefix("requestsper").or(word.strip_prefix("per")).unwrap_or(&word);
    if let Some(unit) = Unit::ALL.into_iter().find(|unit| unit.name() == number_of) {
        return Some(format!("write requests_per_unit: 5 and unit: {}", unit.name()));
    }
    // A typo in a key of this section is more likely than a key of another.
    if nearest(name, &section.names().collect::<Vec<_>>()).is_some() {
        return None;
    }
    let (home, key) = SECTIONS.iter().find_map(|home| Some((home, home.keys().find(ours)?)))?;
    Some(format!("write {}, in {}", key.name, home.name))
}

impl Hint {
    fn holds_in(&self, section: &Section) -> bool {
        self.within.is_empty() || self.within.iter().any(|within| within.is(section))
    }
}

/// Normalizes a name: `burstCapacity`, `burst-capacity` and `BURST_CAPACITY` are the same. Returns `None` for a name
/// longer than any term.
fn plain(name: &str) -> Option<String> {
    let kept = name.chars().filter(|char| !matches!(char, '_' | '-' | '.' | ' '));
    (name.len() <= 64).then(|| kept.flat_map(char::to_lowercase).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_others_can_be_met_and_gets_its_hint() {
        for hint in HINTS {
            for word in hint.words {
                assert_eq!(plain(word).as_deref(), Some(*word), "it would never be found");
                let sections = if hint.within.is_empty() { &SECTIONS[..] } else { hint.within };
                let met = sections.iter().any(|section| {
                    let (severity, message) = stray(section, &word.to_uppercase());
                    severity == Severity::Error && message.contains(hint.say.split(", in ").next().unwrap())
                });
                assert!(met, "{word}: another hint or a key of ours stands before it");
            }
        }
    }

    #[test]
    fn no_key_of_ours_is_taken_for_a_word_of_others_where_it_stands() {
        for section in SECTIONS.iter() {
            for name in section.names() {
                let camel: String = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
                let (_, message) = stray(section, &format!("x{camel}"));
                assert!(message.contains("unknown key"), "{message}");
                if camel != name {
                    let (_, message) = stray(section, &camel);
                    assert!(message.ends_with(&format!(": write {name}")), "{message}");
                }
            }
        }
    }
}
