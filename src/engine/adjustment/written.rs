//! Adjustments in JSON, as clients send them and stores keep them. All checks are here.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Adjustment, Content, Effect, Id, LASTS, Proposal, Share, Target};
use crate::clock::timestamp;
use crate::descriptor::Entry;
use crate::printable::printable;

/// The longest author and reason, in characters.
const WHO: usize = 100;
const WHY: usize = 500;
/// The longest target: names and values together, in bytes.
const TARGET: usize = 2_000;

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
    /// Target: the descriptor with exactly these entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    /// One of [`Effect::NAMES`].
    pub effect: String,
    /// Share for `scale`, such as `10%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Number for `number`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// The author's name.
    pub who: String,
    /// The reason.
    pub why: String,
    /// The duration, such as `30m`.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<String>,
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
        let id = Id::parse(given);
        if id.is_none() {
            mistakes.add("id: use up to 64 letters, digits, dots, dashes and underscores, or omit it");
        }
        id
    }

    fn content_or(&self, mistakes: &mut Mistakes) -> Option<Content> {
        let target = self.target(mistakes);
        let effect = self.effect(mistakes);
        add_words(&self.who, &self.why, mistakes);
        let effect = effect?;
        if matches!(effect, Effect::Number(_)) && matches!(target, Some(Target::All | Target::Domain(_))) {
            mistakes
                .add("number: name a rule or the entries of one descriptor; use effect scale to change many limits");
        }
        Some(Content { target: target?, effect, who: self.who.clone(), why: self.why.clone() })
    }

    fn target(&self, mistakes: &mut Mistakes) -> Option<Target> {
        let Written { everything, domain, rule, entries, .. } = self;
        let names = domain.iter().chain(rule).map(String::len);
        let values = entries.iter().map(|Entry { key, value }| key.len() + value.len());
        if names.chain(values).sum::<usize>() > TARGET {
            mistakes.add(format!("domain, rule and entries: at most {TARGET} bytes together"));
        }
        if entries.iter().any(|entry| entry.key.is_empty()) {
            mistakes.add("entries: each has a key");
        }
        match (domain.clone(), rule.clone(), entries.clone()) {
            (None, None, entries) if entries.is_empty() => {
                if *everything {
                    return Some(Target::All);
                }
                mistakes.add("domain: name one, or write \"everything\": true to select every limit");
            }
            _ if *everything => mistakes.add("everything: omit it if there is a domain, a rule or entries"),
            (Some(domain), _, _) if domain.is_empty() => mistakes.add("domain: a name"),
            (None, ..) => mistakes.add("domain: name the domain of the rule or descriptor"),
            (Some(domain), None, entries) if entries.is_empty() => return Some(Target::Domain(domain)),
            (Some(domain), None, entries) => return Some(Target::Descriptor { domain, entries }),
            (Some(domain), Some(rule), entries) if entries.is_empty() => return Some(Target::Rule { domain, rule }),
            _ => mistakes.add("rule or entries: give one of them; a descriptor matches only one rule"),
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
            ("number", Some(1..)) => return number.map(Effect::Number),
            ("number", _) => mistakes.add("number: write a whole number of at least 1; effect block denies everything"),
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
    fn from(Content { target, effect, who, why }: &Content) -> Written {
        let (rule, entries) = match target {
            Target::All | Target::Domain(_) => (None, Vec::new()),
            Target::Rule { rule, .. } => (Some(rule.clone()), Vec::new()),
            Target::Descriptor { entries, .. } => (None, entries.clone()),
        };
        Written {
            id: None,
            everything: *target == Target::All,
            domain: target.domain().map(str::to_owned),
            rule,
            entries,
            effect: effect.name().to_owned(),
            share: if let Effect::Scale(share) = effect { Some(share.to_string()) } else { None },
            number: if let Effect::Number(number) = effect { Some(*number) } else { None },
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
    /// Creates the JSON form. `unmatched` is the reason why the adjustment matches nothing in the rules, if so.
    pub fn new(adjustment: &Adjustment, unmatched: Option<String>) -> Shown {
        let written = Written { id: Some(adjustment.id.to_string()), ..Written::from(&adjustment.content) };
        let (since, until) = (timestamp(adjustment.since_ms), timestamp(adjustment.until_ms));
        Shown { written, since, until, unmatched, only_here: None }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { written, until, unmatched, only_here, .. } = self;
        let (id, content) = (written.id.as_deref().unwrap_or_default(), written.content());
        let Ok(Content { target, effect, who, why }) = content else { return write!(f, "{id}") };
        write!(f, "{id}  {effect}  {target}\n  until {until}, by {}: {}", printable(&who), printable(&why))?;
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
            r#""effect": "block", "domain": "shop", "entries": [{"key": "user", "value": ""}]"#,
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
