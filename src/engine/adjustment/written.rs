//! Adjustments in JSON, as clients send them and stores keep them. All checks are here.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Adjustment, Content, DescriptorPattern, Effect, EntryPattern, Hours, Id, LASTS, Proposal, Share, Target,
    ValuePattern,
};
use crate::algorithm::{MAX_NUMBER, TimeZone};
use crate::clock::timestamp;
use crate::descriptor::{Entry, Text};
use crate::printable::printable;
use crate::wildcard::Wildcard;

/// The longest author and reason, in characters.
const WHO: usize = 100;
const WHY: usize = 500;
/// The longest target: names and values together, in bytes.
const TARGET: usize = 8_000;
/// IDs that could not be ended over HTTP: paths below `/adjustments`.
const RESERVED: [&str; 2] = ["alerts", "preview"];
/// The most descriptors of an adjustment, and the most of them with a pattern.
const DESCRIPTORS: usize = 200;
const PATTERNS: usize = 20;

/// An adjustment in JSON, as a client sends it and as a store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Written {
    /// ID; one is created if this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Target: all limits. It must be set explicitly, so leaving out the other targets never selects everything.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub everything: bool,
    /// Target: requests of this domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Target: this rule of the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Target: the descriptors with exactly these keys in this order, and with values that match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<WrittenEntry>,
    /// Target: all these descriptors, each like `entries`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<Vec<WrittenEntry>>,
    /// One of [`Effect::NAMES`].
    pub effect: String,
    /// Share for `scale`, such as `10%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Number for `number`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The hours of every day in which it takes effect, such as `22:00-06:00`; all if this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<String>,
    /// The time zone of the hours, such as `Europe/Berlin`; UTC if this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The author's name.
    pub who: String,
    /// The reason.
    pub why: String,
    /// The duration, such as `30m`.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<String>,
}

/// An entry of a target: a value, or a pattern in which each `*` matches any number of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WrittenEntry {
    /// The key.
    pub key: Text,
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Text>,
    /// The pattern of all its values, instead of one value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Text>,
}

impl WrittenEntry {
    fn len(&self) -> usize {
        self.key.len() + self.value.iter().chain(&self.pattern).map(|text| text.len()).sum::<usize>()
    }

    fn pattern(&self, mistakes: &mut Mistakes) -> Option<EntryPattern> {
        let WrittenEntry { key, value, pattern } = self;
        if key.is_empty() {
            mistakes.add("entries: each has a key");
        }
        let value = match (value, pattern) {
            (Some(value), None) => ValuePattern::Exactly(value.clone()),
            (None, Some(pattern)) => {
                let wildcard = Wildcard::new(pattern);
                if !wildcard.is_wild() {
                    mistakes
                        .add(format!("pattern of {key}: has a *, such as {pattern}*; write a single value as value"));
                    return None;
                }
                ValuePattern::Like(wildcard)
            }
            (None, None) => {
                mistakes.add(format!("entries: {key} has a value, or a pattern such as \"acme_*\""));
                return None;
            }
            (Some(_), Some(_)) => {
                mistakes.add(format!("entries: {key} has a value or a pattern, not both"));
                return None;
            }
        };
        Some(EntryPattern { key: key.clone(), value })
    }
}

impl From<&EntryPattern> for WrittenEntry {
    fn from(EntryPattern { key, value }: &EntryPattern) -> WrittenEntry {
        let (value, pattern) = match value {
            ValuePattern::Exactly(value) => (Some(value.clone()), None),
            ValuePattern::Like(wildcard) => (None, Some(wildcard.to_string().into())),
        };
        WrittenEntry { key: key.clone(), value, pattern }
    }
}

impl From<Entry> for WrittenEntry {
    fn from(Entry { key, value }: Entry) -> WrittenEntry {
        WrittenEntry { key, value: Some(value), pattern: None }
    }
}

/// All mistakes in an adjustment, each with its correction.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    fn add(&mut self, mistake: impl Into<String>) {
        self.0.push(mistake.into());
    }
}

impl Written {
    /// Returns the adjustment to start. `fresh` creates an ID if none is set.
    ///
    /// # Errors
    /// Returns all mistakes.
    pub fn proposal(&self, fresh: impl FnOnce() -> Id) -> Result<Proposal, Mistakes> {
        let mut mistakes = Mistakes::default();
        let id = self.id(fresh, &mut mistakes);
        let content = self.content_or(&mut mistakes);
        let lasts = self.lasts(&mut mistakes);
        match (id, content, lasts) {
            (Some(id), Some(content), Some(lasts)) if mistakes.0.is_empty() => Ok(Proposal { id, content, lasts }),
            _ => Err(mistakes),
        }
    }

    /// Returns the content of an adjustment that a store kept.
    ///
    /// # Errors
    /// Returns all mistakes. Another version may have written the adjustment.
    pub fn content(&self) -> Result<Content, Mistakes> {
        let mut mistakes = Mistakes::default();
        match self.content_or(&mut mistakes) {
            Some(content) if mistakes.0.is_empty() => Ok(content),
            _ => Err(mistakes),
        }
    }

    fn id(&self, fresh: impl FnOnce() -> Id, mistakes: &mut Mistakes) -> Option<Id> {
        let Some(given) = &self.id else { return Some(fresh()) };
        if RESERVED.contains(&&**given) {
            mistakes.add(format!("id: {given} is a path of the API: choose another"));
        }
        let id = Id::parse(given);
        if id.is_none() {
            mistakes.add("id: use up to 64 letters, digits, dots, dashes and underscores, or omit it");
        }
        id
    }

    fn content_or(&self, mistakes: &mut Mistakes) -> Option<Content> {
        let target = self.target(mistakes);
        let effect = self.effect(mistakes);
        let hours = self.hours(mistakes);
        add_words(&self.who, &self.why, mistakes);
        let effect = effect?;
        if matches!(effect, Effect::Number(_)) && matches!(target, Some(Target::All | Target::Domain(_))) {
            mistakes
                .add("number: name a rule or the entries of one descriptor; use effect scale to change many limits");
        }
        Some(Content { target: target?, effect, hours, who: self.who.clone(), why: self.why.clone() })
    }

    fn target(&self, mistakes: &mut Mistakes) -> Option<Target> {
        let Written { everything, domain, rule, entries, descriptors, .. } = self;
        let names = domain.iter().chain(rule).map(String::len);
        let values = entries.iter().chain(descriptors.iter().flatten()).map(WrittenEntry::len);
        if names.chain(values).sum::<usize>() > TARGET {
            mistakes.add(format!("domain, rule, entries and descriptors: at most {TARGET} bytes together"));
        }
        if !entries.is_empty() && !descriptors.is_empty() {
            mistakes.add("entries or descriptors: give one of them; entries is a single one of the descriptors");
        }
        let patterns = self.patterns(mistakes);
        match (domain.clone(), rule.clone(), patterns) {
            (None, None, patterns) if patterns.is_empty() => {
                if *everything {
                    return Some(Target::All);
                }
                mistakes.add("domain: name one, or write \"everything\": true to select every limit");
            }
            _ if *everything => mistakes.add("everything: omit it if there is a domain, a rule or entries"),
            (Some(domain), _, _) if domain.is_empty() => mistakes.add("domain: a name"),
            (None, ..) => mistakes.add("domain: name the domain of the rule or descriptor"),
            (Some(domain), None, patterns) if patterns.is_empty() => return Some(Target::Domain(domain)),
            (Some(domain), None, descriptors) => return Some(Target::Descriptors { domain, descriptors }),
            (Some(domain), Some(rule), patterns) if patterns.is_empty() => return Some(Target::Rule { domain, rule }),
            _ => mistakes.add("rule or entries: give one of them; a descriptor matches only one rule"),
        }
        None
    }

    /// Returns the descriptors of the target. One that is given twice is there once.
    fn patterns(&self, mistakes: &mut Mistakes) -> Vec<DescriptorPattern> {
        let Written { entries, descriptors, .. } = self;
        if descriptors.len() > DESCRIPTORS {
            mistakes.add(format!("descriptors: at most {DESCRIPTORS}; use a pattern, such as \"acme_*\", or a rule"));
        }
        if descriptors.iter().any(Vec::is_empty) {
            mistakes.add("descriptors: each has entries; omit the field to change a whole domain");
        }
        let mut found: Vec<DescriptorPattern> = Vec::new();
        let written = descriptors.iter().chain([entries].into_iter().filter(|entries| !entries.is_empty()));
        for descriptor in written.take(DESCRIPTORS) {
            let pattern = DescriptorPattern(descriptor.iter().filter_map(|entry| entry.pattern(mistakes)).collect());
            if !found.contains(&pattern) {
                found.push(pattern);
            }
        }
        if found.iter().filter(|pattern| pattern.exact().is_none()).count() > PATTERNS {
            mistakes.add(format!(
                "descriptors: at most {PATTERNS} with a pattern, because a request is compared with each"
            ));
        }
        found
    }

    fn hours(&self, mistakes: &mut Mistakes) -> Option<Hours> {
        let Written { hours, time_zone, .. } = self;
        let zone = time_zone.as_deref().map(TimeZone::named);
        match (hours, zone) {
            (None, None) => return None,
            (None, Some(_)) => mistakes.add("time_zone: only hours have one: write \"hours\": \"22:00-06:00\""),
            (Some(_), Some(None)) => {
                mistakes.add("time_zone: write a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\"");
            }
            (Some(hours), zone) => {
                let hours =
                    zone.flatten().or_else(|| TimeZone::named("UTC")).and_then(|zone| Hours::parse(hours, zone));
                if hours.is_none() {
                    mistakes.add("hours: write two different times of the day, such as \"22:00-06:00\"");
                }
                return hours;
            }
        }
        None
    }

    fn effect(&self, mistakes: &mut Mistakes) -> Option<Effect> {
        let Written { effect, share, number, .. } = self;
        if share.is_some() && effect != "scale" {
            mistakes.add("share: only effect scale takes one");
        }
        if number.is_some() && effect != "number" {
            mistakes.add("number: only effect number takes one");
        }
        match (effect.as_str(), number) {
            ("scale", _) => {
                let share = share.as_deref().and_then(Share::parse);
                if share.is_none() {
                    mistakes.add(
                        "share: write a percentage with its sign, from \"0.01%\" to \"10000%\"; \"50%\" is half of \
                         each limit",
                    );
                }
                return share.map(Effect::Scale);
            }
            ("number", Some(1..=MAX_NUMBER)) => return number.map(Effect::Number),
            ("number", _) => mistakes
                .add(format!("number: write a whole number from 1 to {MAX_NUMBER}; effect block denies everything")),
            ("pass", _) => return Some(Effect::Pass),
            ("block", _) => return Some(Effect::Block),
            ("enforce", _) => return Some(Effect::Enforce),
            ("shadow", _) => return Some(Effect::Shadow),
            _ => mistakes.add(format!("effect: one of {}", Effect::NAMES.join(", "))),
        }
        None
    }

    fn lasts(&self, mistakes: &mut Mistakes) -> Option<Duration> {
        let (shortest, longest) = LASTS;
        let lasts = self.lasts.as_deref().and_then(|text| humantime::parse_duration(text).ok());
        let is_whole = |lasts: &Duration| lasts.subsec_nanos().is_multiple_of(1_000_000);
        let lasts = lasts.filter(|lasts| (shortest..=longest).contains(lasts) && is_whole(lasts));
        if lasts.is_none() {
            mistakes.add("for: write a duration from 1s to 7d, such as \"30m\"");
        }
        lasts
    }
}

/// Checks the author and the reason given when an adjustment is started or ended.
///
/// # Errors
/// Returns all mistakes: each text must be one line and not too long.
pub fn check_words(who: &str, why: &str) -> Result<(), Mistakes> {
    let mut mistakes = Mistakes::default();
    add_words(who, why, &mut mistakes);
    if mistakes.0.is_empty() { Ok(()) } else { Err(mistakes) }
}

fn add_words(who: &str, why: &str, mistakes: &mut Mistakes) {
    for (name, text, longest, wanted) in [("who", who, WHO, "who you are"), ("why", why, WHY, "why, in a few words")] {
        if text.trim().is_empty() {
            mistakes.add(format!("{name}: say {wanted}"));
        } else if text.chars().count() > longest || text.contains(char::is_control) {
            mistakes.add(format!("{name}: one line of at most {longest} characters"));
        }
    }
}

impl From<&Content> for Written {
    fn from(Content { target, effect, hours, who, why }: &Content) -> Written {
        let written = |DescriptorPattern(entries): &DescriptorPattern| entries.iter().map(WrittenEntry::from).collect();
        let (entries, descriptors) = match target.descriptors() {
            [one] => (written(one), Vec::new()),
            several => (Vec::new(), several.iter().map(written).collect()),
        };
        Written {
            id: None,
            everything: *target == Target::All,
            domain: target.domain().map(str::to_owned),
            rule: if let Target::Rule { rule, .. } = target { Some(rule.clone()) } else { None },
            entries,
            descriptors,
            effect: effect.name().to_owned(),
            share: if let Effect::Scale(share) = effect { Some(share.to_string()) } else { None },
            number: if let Effect::Number(number) = effect { Some(*number) } else { None },
            hours: hours.map(Hours::range),
            time_zone: hours.map(|hours| hours.time_zone().to_string()),
            who: who.clone(),
            why: why.clone(),
            lasts: None,
        }
    }
}

/// An adjustment in force, in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its content and ID.
    #[serde(flatten)]
    pub written: Written,
    /// Its start, by the store's clock.
    pub since: String,
    /// Its end.
    pub until: String,
    /// When its hours begin again; `None` if it takes effect now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<String>,
    /// The reason why it matches nothing in the rules; `None` if the rules have a limit that it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmatched: Option<String>,
    /// How it holds at one instance alone; `None` if the store has it, for all instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_here: Option<OnlyHere>,
}

/// How an adjustment holds at one instance alone, because the store was away when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyHere {
    /// ID of the instance. The adjustment ends with its process.
    pub instance: String,
    /// Whether it, or its end, is published to all instances when the store is back.
    pub fleet: bool,
    /// Whether it may hold at all instances: the store did not answer in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// Whether it is ended here, while the others have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Why it was not published, although the store is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
}

impl fmt::Display for OnlyHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnlyHere { instance, fleet, uncertain, ended, stays } = self;
        let instance = printable(instance);
        match (ended, uncertain) {
            (true, _) if *fleet => {
                return write!(f, "it is ended at instance {instance}; the store is told when it is back");
            }
            (true, _) => return write!(f, "it is ended at instance {instance} alone, until that restarts"),
            (false, true) => write!(f, "it holds at instance {instance}, and maybe at all: ")?,
            (false, false) => write!(f, "it holds at instance {instance} alone, until that restarts: ")?,
        }
        match (stays, fleet) {
            (Some(why), _) => write!(f, "it is not published, because {}", printable(why)),
            (None, true) => f.write_str("it is published to all when the store is back"),
            (None, false) => f.write_str("it was begun while the store was away, and not for the fleet"),
        }
    }
}

impl Shown {
    /// Creates the JSON form at this time of the store. `unmatched` is the reason why the adjustment matches nothing in
    /// the rules, if so.
    pub fn new(adjustment: &Adjustment, now_ms: u64, unmatched: Option<String>) -> Shown {
        let written = Written { id: Some(adjustment.id.to_string()), ..Written::from(&adjustment.content) };
        let (since, until) = (timestamp(adjustment.since_ms), timestamp(adjustment.until_ms));
        let paused = adjustment.content.hours.filter(|hours| !hours.contain(now_ms));
        let paused_until = paused.and_then(|hours| hours.next_turn(now_ms)).map(timestamp);
        Shown { written, since, until, paused_until, unmatched, only_here: None }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { written, until, paused_until, unmatched, only_here, .. } = self;
        let (id, content) = (written.id.as_deref().unwrap_or_default(), written.content());
        let Ok(Content { target, effect, hours, who, why }) = content else { return write!(f, "{id}") };
        write!(f, "{id}  {effect}  {target}\n  ")?;
        hours.iter().try_for_each(|hours| write!(f, "daily {hours}, "))?;
        paused_until.iter().try_for_each(|until| write!(f, "paused until {}, ", printable(until)))?;
        write!(f, "until {until}, by {}: {}", printable(&who), printable(&why))?;
        only_here.iter().try_for_each(|here| write!(f, "\n  {here}"))?;
        unmatched
            .iter()
            .try_for_each(|unmatched| write!(f, "\n  it does not match the rules: {}", printable(unmatched)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Proposal, String> {
        let written: Written = serde_json::from_str(json).map_err(|error| error.to_string())?;
        written.proposal(|| Id::of_number(7)).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn what_is_written_reads_as_what_it_was() {
        for rest in [
            r#""effect": "scale", "share": "10%", "everything": true"#,
            r#""effect": "scale", "share": "2.5%", "domain": "shop""#,
            r#""effect": "shadow", "domain": "shop", "rule": "per-user""#,
            r#""effect": "number", "number": 5, "domain": "shop", "entries": [{"key": "user", "value": "a b=c"}]"#,
            r#""effect": "number", "number": 9007199254740991, "domain": "shop", "rule": "tokens""#,
            r#""effect": "block", "domain": "shop", "entries": [{"key": "user", "value": ""}]"#,
            r#""effect": "block", "domain": "shop", "entries": [{"key": "user", "pattern": "acme_*"}]"#,
            r#""effect": "pass", "domain": "shop", "hours": "22:00-06:00", "time_zone": "Europe/Berlin""#,
            r#""effect": "block", "domain": "shop", "descriptors": [[{"key": "user", "value": "*"}],
               [{"key": "user", "pattern": "acme_*"}, {"key": "path", "value": "/"}]]"#,
        ] {
            let json = format!(r#"{{{rest}, "who": "ann", "why": "a sale", "for": "30m"}}"#);
            let proposal = read(&json).unwrap();
            assert_eq!((proposal.id, proposal.lasts), (Id::of_number(7), Duration::from_secs(1_800)));
            let kept = serde_json::to_string(&Written::from(&proposal.content)).unwrap();
            assert!(!kept.contains('\n'));
            let content = serde_json::from_str::<Written>(&kept).unwrap().content();
            assert_eq!(content, Ok(proposal.content));
        }
    }

    #[test]
    fn a_descriptor_that_is_given_twice_is_one_and_hours_are_in_utc_unless_they_say() {
        let rest =
            r#""effect": "block", "domain": "shop", "hours": "8:00-24:00", "who": "ann", "why": "x", "for": "1h""#;
        let user = |value: &str| format!(r#"[{{"key": "user", "value": "{value}"}}]"#);
        let (ann, bob) = (user("ann"), user("bob"));
        let content = read(&format!(r#"{{{rest}, "descriptors": [{ann}, {bob}, {ann}]}}"#)).unwrap().content;
        assert_eq!(content.target.to_string(), "shop: user=ann + user=bob");
        assert_eq!(content.hours.unwrap().to_string(), "08:00-00:00 UTC");
        let one = read(&format!(r#"{{{rest}, "descriptors": [{ann}]}}"#)).unwrap().content;
        assert_eq!(one, read(&format!(r#"{{{rest}, "entries": {ann}}}"#)).unwrap().content);
    }

    #[test]
    fn descriptors_are_bounded() {
        let many = |count: usize, entry: &str| {
            let all: Vec<String> = (0..count).map(|at| format!("[{}]", entry.replace('N', &at.to_string()))).collect();
            let rest = r#""effect": "block", "domain": "shop", "who": "ann", "why": "x", "for": "1h""#;
            read(&format!(r#"{{{rest}, "descriptors": [{}]}}"#, all.join(",")))
        };
        let (value, pattern) = (r#"{"key": "u", "value": "N"}"#, r#"{"key": "u", "pattern": "N*"}"#);
        for (bound, entry, wrong) in [(200, value, "at most 200; use a pattern"), (20, pattern, "at most 20 with a")] {
            assert!(many(bound, entry).is_ok());
            let said = many(bound + 1, entry).unwrap_err();
            assert!(said.contains(wrong), "{said}");
        }
        let long = format!(r#"{{"key": "u", "value": "N{}"}}"#, "x".repeat(100));
        assert!(many(100, &long).unwrap_err().contains("at most 8000 bytes together"));
    }

    #[test]
    fn all_that_is_wrong_is_told_with_what_would_be_right() {
        let all = read("{}").unwrap_err();
        for part in
            ["effect: one of scale, number, pass", "who: say who you are", "why: say why", "for: write a duration"]
        {
            assert!(all.contains(part), "{all}");
        }
        let good = r#""who": "ann", "why": "a sale", "for": "30m""#;
        for (rest, wrong) in [
            (r#""effect": "scale", "share": "0.5""#, "\"50%\" is half of each limit"),
            (r#""effect": "pass", "share": "10%""#, "share: only effect scale takes one"),
            (r#""effect": "number", "number": 0, "domain": "shop", "rule": "user""#, "effect block denies everything"),
            (
                r#""effect": "number", "number": 9007199254740992, "domain": "shop", "rule": "user""#,
                "number: write a whole number from 1 to 9007199254740991",
            ),
            (r#""effect": "number", "number": 5, "domain": "shop""#, "name a rule or the entries"),
            (r#""effect": "pass", "rule": "user""#, "domain: name the domain"),
            (r#""effect": "pass", "domain": """#, "domain: a name"),
            (r#""effect": "block""#, "domain: name one, or write \"everything\": true"),
            (r#""effect": "pass", "everything": true, "domain": "shop""#, "everything: omit it"),
            (
                r#""effect": "pass", "domain": "shop", "rule": "user", "entries": [{"key": "user", "value": "ann"}]"#,
                "rule or entries: give one of them",
            ),
            (r#""effect": "pass", "everything": true, "id": "a b""#, "id: use up to 64 letters"),
            (r#""effect": "pass", "everything": true, "id": "alerts""#, "id: alerts is a path of the API"),
            (r#""effect": "pass", "domain": "a", "entries": [{"key": "u"}]"#, "u has a value, or a pattern such as"),
            (r#""effect": "pass", "domain": "a", "entries": [{"key": "u", "value": "x", "pattern": "*"}]"#, "not both"),
            (r#""effect": "pass", "domain": "a", "entries": [{"key": "u", "pattern": "x"}]"#, "has a *, such as x*"),
            (r#""effect": "pass", "domain": "a", "entries": [{"value": "x"}]"#, "entries: each has a key"),
            (r#""effect": "pass", "domain": "a", "descriptors": [[]]"#, "descriptors: each has entries"),
            (
                r#""effect": "pass", "domain": "a", "descriptors": [[{"key": "u", "value": "x"}]],
                   "entries": [{"key": "u", "value": "x"}]"#,
                "entries or descriptors: give one of them",
            ),
            (r#""effect": "pass", "domain": "a", "hours": "22-6""#, "hours: write two different times of the day"),
            (r#""effect": "pass", "domain": "a", "time_zone": "UTC""#, "time_zone: only hours have one"),
            (
                r#""effect": "pass", "domain": "a", "hours": "8:00-9:00", "time_zone": "Berlin""#,
                "time_zone: write a name of the IANA database",
            ),
            (r#""effect": "pass", "until": "tomorrow""#, "unknown field `until`"),
        ] {
            let said = read(&format!("{{{rest}, {good}}}")).unwrap_err();
            assert!(said.contains(wrong), "{said}");
        }
        for lasts in ["", "5", "999ms", "8d", "1s 1us"] {
            let json =
                format!(r#"{{"effect": "pass", "domain": "a", "who": "ann", "why": "a sale", "for": "{lasts}"}}"#);
            assert!(read(&json).unwrap_err().starts_with("for: write a duration"), "{lasts}");
        }
        for (who, why) in [("a\\nb", "x"), ("ann", "\\u0000"), (&*"x".repeat(101), "x"), ("ann", &"x".repeat(501))] {
            let json = format!(r#"{{"effect": "pass", "who": "{who}", "why": "{why}", "for": "1h"}}"#);
            assert!(read(&json).unwrap_err().contains(": one line of at most"), "{json}");
        }
    }
}
