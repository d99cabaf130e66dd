//! What a rule may say of a limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::descriptors::Tree;
use super::{algorithm, failure_mode};
use crate::algorithm::{Algorithm, Initial, Limit, LimitError, LimitErrors, Options, Penalty, TimeZone, Weighting};
use crate::descriptor::Unit;
use crate::lease::Lease;
use crate::rules::checked::{Allowance, LimitConfig, RuleLimitConfig, Said, SaidBy};
use crate::rules::config::{FieldPath, Raw, RawLease, RawLimit, RawPenalty, RawReplaces, RawUsage, Text};
use crate::rules::report::{Severity, nearest, quoted, unknown};
use crate::usage::{Period, Usage};

/// How long a slot is taken that no stream releases.
const HOLD: Duration = Duration::from_secs(60);

/// A sliding window of so few requests denies a fifth and more of those of a client that keeps to it.
const SMALL: u32 = 4;

/// Stands for a length that cannot be read, so that what is beside it can be looked at.
const ANY_LENGTH: Duration = Duration::from_secs(1);

impl Tree<'_, '_> {
    pub(super) fn rate_limits(&mut self, list: &[Raw<RawLimit<'_>>], path: FieldPath<'_>) -> Vec<RuleLimitConfig> {
        if list.is_empty() {
            self.complaints.error(path, "is empty: write a limit, or leave it out");
        }
        let mut limits = Vec::new();
        let mut counters: HashMap<String, usize> = HashMap::new();
        for (index, raw) in list.iter().enumerate() {
            let path = path.item(index);
            let Some(config) = raw.get().and_then(|raw| self.rate_limit(raw, path)) else { continue };
            match config.config.allowance {
                Allowance::Unlimited => {
                    self.complaints.error(path, "among several limits none can be unlimited: remove it")
                }
                Allowance::Limited(limit) if limit.algorithm().has_holders() => {
                    let message = "among several limits none can count what is in progress: beside the key stream \
                                   the others would count each request for itself; let them stand on a descriptor \
                                   without it";
                    self.complaints.error(path, message);
                }
                Allowance::Limited(_) if config.config.lease.is_some() => {
                    let message = "among several limits none has a lease: the store decides all of them together; \
                                   remove it, or leave one limit";
                    self.complaints.error(path, message);
                }
                Allowance::Limited(limit) => {
                    let mut counter = String::new();
                    limit.identity(&mut counter);
                    if let Some(other) = counters.insert(counter, index) {
                        let message = "has the same algorithm and period as";
                        self.complaints
                            .error(path, format!("{message} rate_limits[{other}]: keep the lower of the two"));
                    }
                }
            }
            limits.push(config);
        }
        limits
    }

    pub(super) fn rate_limit(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<RuleLimitConfig> {
        let name: Option<Arc<str>> = raw.name.get().filter(|name| !name.is_empty()).map(|name| (**name).into());
        self.part.names.given.extend(name.clone());
        let own = name.as_deref().unwrap_or_default();
        let replaces = raw.replaces.get().map(|list| self.replaces(list, path.key("replaces"), own));
        let replaces = replaces.unwrap_or_default();
        let failure_mode = failure_mode(&raw.failure_mode, path, self.complaints);
        let failure_mode = failure_mode.unwrap_or(self.part.defaults().failure_mode);
        let cost = self.cost(&raw.cost, path.key("cost"));
        let common = LimitConfig {
            said: self.said(raw),
            allowance: Allowance::Unlimited,
            failure_mode,
            cost: cost.unwrap_or(1),
            give_back: raw.give_back.get().copied().unwrap_or(true),
            penalty: None,
            lease: None,
            durable: raw.durable.get().copied().unwrap_or(false),
            usage: None,
            replaces,
        };
        match raw.unlimited {
            Raw::Unreadable => return None,
            Raw::Given(true) => {
                self.check_unlimited(raw, path);
                return cost.map(|_| self.shared(name, common, path));
            }
            Raw::Given(false) | Raw::Missing => {}
        }
        let limit = self.limit(raw, path);
        if let (Some(cost), Some(limit)) = (cost, &limit) {
            self.check_cost(path.key("cost"), cost, limit);
            self.check_small(raw, path, limit.number() / cost, limit.algorithm());
        }
        if let Some(limit) = limit.filter(|limit| limit.algorithm().has_holders())
            && !common.give_back
        {
            let algorithm = limit.algorithm();
            let message = format!(
                "{algorithm} needs negative hits: by them a request that has ended releases its slot; remove it"
            );
            self.complaints.error(path.key("give_back"), message);
        }
        let penalty = raw.penalty.get().map(|raw| self.penalty(raw, path.key("penalty")));
        let lease = raw.lease.get();
        let lease =
            lease.map(|raw_lease| self.lease(raw_lease, path.key("lease"), limit.as_ref(), !raw.penalty.is_missing()));
        let usage = raw.usage.get().map(|usage| self.usage(usage, path.key("usage"), limit.as_ref(), lease.is_some()));
        // What is there and makes no sense has been reported.
        let reported = cost.is_none() || penalty == Some(None) || lease == Some(None) || usage == Some(None);
        let (limit, penalty, lease, usage) = (limit?, penalty.flatten(), lease.flatten(), usage.flatten());
        let config = LimitConfig { allowance: Allowance::Limited(limit), penalty, lease, usage, ..common };
        (!reported).then(|| self.shared(name, config, path))
    }

    /// The limit; others that say the same have the same config.
    fn shared(&mut self, name: Option<Arc<str>>, config: LimitConfig, path: FieldPath<'_>) -> RuleLimitConfig {
        let limits = &mut self.part.limits;
        let config = limits.get(&config).cloned().unwrap_or_else(|| {
            let config = Arc::new(config);
            limits.insert(Arc::clone(&config));
            config
        });
        RuleLimitConfig { line: self.complaints.line(path), name, config }
    }

    /// Who says what the limit need not say.
    fn said(&self, raw: &RawLimit<'_>) -> Said {
        let by = |is_missing, is_given| match (is_missing, is_given) {
            (false, _) => SaidBy::Limit,
            (true, true) => SaidBy::Defaults,
            (true, false) => SaidBy::Setting,
        };
        Said {
            algorithm: by(raw.algorithm.is_missing(), self.part.given.algorithm.is_some()),
            failure_mode: by(raw.failure_mode.is_missing(), self.part.given.failure_mode.is_some()),
            hold: if raw.hold.is_missing() { SaidBy::Nobody } else { SaidBy::Limit },
        }
    }

    fn cost(&mut self, raw: &Raw<u32>, path: FieldPath<'_>) -> Option<u32> {
        match raw {
            Raw::Missing => Some(1),
            Raw::Unreadable => None,
            Raw::Given(0) => {
                self.complaints.error(path, "must be at least 1: what costs nothing is unlimited: true");
                None
            }
            Raw::Given(cost) => Some(*cost),
        }
    }

    /// A number of 0 says by itself that nothing passes.
    fn check_cost(&mut self, path: FieldPath<'_>, cost: u32, limit: &Limit) {
        let most = limit.capacity();
        if limit.number() > 0 && cost > most {
            let message =
                format!("no request ever passes: each costs {cost}, and no more than {most} can be taken at once");
            self.complaints.warn(path, message);
        }
    }

    /// Hints at what fits a small number better than the default, where nobody has chosen that.
    fn check_small(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>, requests: u32, algorithm: Algorithm) {
        let is_chosen = self.part.given.algorithm.is_some()
            || !raw.algorithm.is_missing()
            || !raw.segments.is_missing()
            || !raw.weighting.is_missing()
            // Usage is charged when it has happened: nobody sends it evenly.
            || raw.count_denied.is_set();
        if !is_chosen && algorithm == Algorithm::SlidingWindow && (1..=SMALL).contains(&requests) {
            let ordinal = ["2nd", "3rd", "4th", "5th"][requests as usize - 1];
            let message = format!(
                "a client that sends just {requests} in every period, evenly, is denied every {ordinal}; algorithm: \
                 sliding_log denies it none, token_bucket refills evenly; to keep it, write algorithm: sliding_window"
            );
            self.complaints.hint(path.key("requests_per_unit"), message);
        }
    }

    fn penalty(&mut self, raw: &RawPenalty<'_>, path: FieldPath<'_>) -> Option<Penalty> {
        let complaints = &mut *self.complaints;
        let after =
            complaints.required(&raw.after, path.key("after"), "how many denials bring a ban, such as 5").copied();
        let within = path.key("within");
        complaints.required(&raw.within, within, "the time in which denials are counted, such as 1m");
        let within = self.length(&raw.within, within);
        let ban = path.key("ban");
        self.complaints.required(&raw.ban, ban, "how long a ban lasts, such as 15m");
        let ban = self.length(&raw.ban, ban);
        let is_whole = after.is_some() && within.is_some() && ban.is_some();
        let (after, [within, ban]) = (after.unwrap_or(1), [within, ban].map(|length| length.unwrap_or(ANY_LENGTH)));
        match Penalty::new(after, within, ban, raw.extend.is_set()) {
            Ok(penalty) => is_whole.then_some(penalty),
            Err(errors) => {
                errors.iter().for_each(|error| self.complaints.error(path.key(error.key()), error.to_string()));
                None
            }
        }
    }

    fn lease(
        &mut self,
        raw: &RawLease<'_>,
        path: FieldPath<'_>,
        limit: Option<&Limit>,
        has_penalty: bool,
    ) -> Option<Lease> {
        let complaints = &mut *self.complaints;
        let size = complaints
            .required(&raw.size, path.key("size"), "how many hits a process takes in advance, such as 50")
            .copied();
        let ttl = path.key("ttl");
        complaints.required(&raw.ttl, ttl, "how long they may be used, such as 100ms");
        let ttl = self.length(&raw.ttl, ttl);
        if has_penalty {
            let message = "a limit that has a penalty has no lease: a ban must be seen at once; remove one of the two";
            self.complaints.error(path, message);
            return None;
        }
        let lease = Lease::new(size?, ttl?, limit?);
        if let Err(error) = &lease {
            let message = error.to_string();
            match error.key() {
                Some(key) => self.complaints.error(path.key(key), message),
                None => self.complaints.error(path, message),
            }
        }
        lease.ok()
    }

    fn usage(
        &mut self,
        raw: &RawUsage<'_>,
        path: FieldPath<'_>,
        limit: Option<&Limit>,
        has_lease: bool,
    ) -> Option<Usage> {
        let by = self.complaints.required_text(&raw.by, path.key("by")).and_then(|name| {
            let period = Period::ALL.into_iter().find(|period| period.name() == name);
            if period.is_none() {
                let message = unknown("period", name, &Period::ALL.map(Period::name));
                self.complaints.error(path.key("by"), message);
            }
            period
        });
        let keep = path.key("keep");
        self.complaints.required(&raw.keep, keep, "how long a record is kept, such as 400d");
        let keep_for = self.length(&raw.keep, keep);
        if has_lease {
            let message = "what is taken in advance is in no record when it is used: remove usage or lease";
            self.complaints.error(path, message);
            return None;
        }
        if let Some(limit) = limit.filter(|limit| limit.algorithm().has_holders()) {
            let message = format!(
                "{} limits what is in progress, and counts nothing up: remove it, or choose another algorithm",
                limit.algorithm()
            );
            self.complaints.error(path, message);
            return None;
        }
        let usage = Usage::new(by?, keep_for?);
        if let Err(error) = &usage {
            self.complaints.error(keep, error.to_string());
        }
        usage.ok()
    }

    fn replaces(&mut self, list: &[Raw<RawReplaces<'_>>], path: FieldPath<'_>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for (index, raw) in list.iter().enumerate() {
            let item = path.item(index);
            let path = item.key("name");
            let Some(name) = raw.get().and_then(|raw| self.complaints.required_text(&raw.name, path)) else { continue };
            if name == own {
                self.complaints.error(path, "a rule cannot replace itself");
                continue;
            }
            let unknown = self.complaints.problem(Severity::Warning, path, String::new());
            self.part.names.replaced.push((name.to_owned(), unknown));
            names.push(name.to_owned());
        }
        names
    }

    /// A unit is refused as in `envoyproxy/ratelimit`; what else makes no sense here is legal there.
    fn check_unlimited(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) {
        if let Some(unit) = raw.unit.get() {
            let path = path.key("unit");
            match unit_named(unit) {
                Some(_) => self.complaints.error(path, "an unlimited rule has no unit: remove one of the two"),
                None if unit.is_empty() => {}
                None => self.complaints.warn(path, "does nothing: an unlimited rule has no unit"),
            }
        }
        if !raw.period.is_missing() {
            self.complaints.error(path.key("period"), "an unlimited rule has no period: remove one of the two");
        }
        if !raw.usage.is_missing() {
            let message = "an unlimited rule counts nothing, so there is no use to be kept: limit it to what never \
                           comes, or remove it";
            self.complaints.error(path.key("usage"), message);
        }
        // Every other key is about counting.
        let elsewhere = ["name", "replaces", "unlimited", "unit", "period", "usage"];
        for key in raw.given().filter(|key| !elsewhere.contains(key)) {
            self.complaints.warn(path.key(key), "does nothing: an unlimited rule counts nothing");
        }
    }

    fn limit(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<Limit> {
        let algorithm = match raw.algorithm {
            Raw::Missing => Some(self.part.defaults().algorithm),
            _ => algorithm(&raw.algorithm, path, self.complaints),
        };
        let period = match algorithm {
            Some(algorithm) if algorithm.has_holders() => self.hold(raw, path),
            // Whether it must have one, nobody knows.
            None if raw.unit.is_missing() && raw.period.is_missing() => None,
            _ => self.period(raw, path),
        };
        if let Some(algorithm) = algorithm.filter(|algorithm| !algorithm.has_holders())
            && !raw.hold.is_missing()
        {
            self.complaints.error(path.key("hold"), LimitError::NoOption(algorithm, "hold").to_string());
        }
        let number = match raw.requests_per_unit {
            Raw::Given(number) => Some(number),
            Raw::Unreadable => None,
            Raw::Missing => {
                let message = "is missing, so it is 0 and every request is over the limit";
                self.complaints.warn(path.key("requests_per_unit"), message);
                Some(0)
            }
        };
        let max_delay = self.length(&raw.max_delay, path.key("max_delay"));
        let time_zone = self.time_zone(raw, path);
        let complaints = &mut *self.complaints;
        let options = Options {
            count_denied: raw.count_denied.get().copied(),
            burst: raw.burst.get().copied(),
            max_delay,
            initial: complaints.choice(&raw.initial, path, "initial", &Initial::ALL, Initial::name),
            segments: raw.segments.get().copied(),
            weighting: complaints.choice(&raw.weighting, path, "weighting", &Weighting::ALL, Weighting::name),
            time_zone,
        };
        let (is_whole, number) = (number.is_some() && period.is_some(), number.unwrap_or(1));
        let limit = Limit::new(algorithm?, number, period.unwrap_or(ANY_LENGTH), options);
        self.readable(path, limit, is_whole)
    }

    /// Reports all that is wrong with a limit. Where it is not whole, something else stands for what could not be read.
    fn readable(&mut self, path: FieldPath<'_>, limit: Result<Limit, LimitErrors>, is_whole: bool) -> Option<Limit> {
        let errors = match limit {
            Ok(limit) => return is_whole.then_some(limit),
            Err(LimitErrors(errors)) => errors,
        };
        for error in errors.iter().filter(|error| is_whole || !error.is_of_several()) {
            self.complaints.error(path.key(error.key()), error.to_string());
        }
        None
    }

    fn period(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<Duration> {
        if raw.period.is_missing() {
            return match &raw.unit {
                Raw::Unreadable => None,
                Raw::Missing => self.unit("", path),
                Raw::Given(name) => self.unit(name, path),
            };
        }
        let place = path.key("period");
        if raw.unit.get().is_some() {
            self.complaints.error(place, "a limit has a unit or a period: remove one of the two");
            return None;
        }
        self.length(&raw.period, place)
    }

    fn time_zone(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<TimeZone> {
        let name = raw.time_zone.get()?;
        let path = path.key("time_zone");
        if raw.period.get().is_some() {
            let message = "a time_zone goes with a unit: day, week, month or year; a period is as long everywhere";
            self.complaints.error(path, message);
            return None;
        }
        let found = TimeZone::named(name);
        if found.is_none() {
            let names = TimeZone::names();
            let near = nearest(name, &names.iter().map(String::as_str).collect::<Vec<_>>());
            let hint = match near {
                Some(near) => format!(", did you mean {near:?}?"),
                None => "; it is a name such as Asia/Shanghai, Europe/Berlin or UTC".to_owned(),
            };
            self.complaints.error(path, format!("unknown time zone {}{hint}", quoted(name)));
        }
        found
    }

    /// The period of a limit of what is in progress.
    fn hold(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<Duration> {
        let mut wrong = false;
        for (key, _) in
            [("unit", &raw.unit), ("period", &raw.period)].into_iter().filter(|(_, raw)| raw.get().is_some())
        {
            wrong = true;
            let message = format!(
                "concurrency has no {key}: requests_per_unit is how many may be in progress at once; hold says \
                 how long a slot stays taken that no stream releases"
            );
            self.complaints.error(path.key(key), message);
        }
        let hold = match raw.hold {
            Raw::Missing => HOLD,
            _ => self.length(&raw.hold, path.key("hold"))?,
        };
        (!wrong).then_some(hold)
    }

    fn unit(&mut self, name: &str, path: FieldPath<'_>) -> Option<Duration> {
        let found = unit_named(name);
        if found.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let message = match name {
                "" => format!("is missing; it is one of {}, or there is a period such as 90s", names.join(", ")),
                length if humantime::parse_duration(length).is_ok() => {
                    format!("unknown unit {}: a length stands in period", quoted(length))
                }
                _ => unknown("unit", name, &names),
            };
            self.complaints.error(path.key("unit"), message);
        }
        found.map(Unit::duration)
    }

    /// A length of time that a person can read: `90s`.
    fn length(&mut self, raw: &Raw<Text<'_>>, path: FieldPath<'_>) -> Option<Duration> {
        let text = raw.get()?;
        let length = humantime::parse_duration(text);
        if let Err(error) = &length {
            // The library's words repeat what was given.
            let reason = if text.len() > 100 { String::new() } else { format!(" ({error})") };
            let message = format!("{} is no length of time{reason}; write 500ms, 90s, 15m or 1h30m", quoted(text));
            self.complaints.error(path, message);
        }
        length.ok()
    }
}

fn unit_named(name: &str) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
}
