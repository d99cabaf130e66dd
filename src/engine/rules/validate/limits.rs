//! Validation of limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::descriptors::Tree;
use super::lease::Leasing;
use super::own_share::admits;
use super::{GivenDefaults, algorithm, failure_mode};
use crate::algorithm::lease_terms::Lease;
use crate::algorithm::{
    Algorithm, Declared, Kind, Limit, LimitError, LimitErrors, NEVER, Options, StartsOn, TimeZone, Written,
};
use crate::descriptor::Unit;
use crate::rules::checked::{Allowance, FailureMode, LimitConfig, RuleLimitConfig, SettingOrigin, SettingOrigins};
use crate::rules::config::{FieldPath, Raw, RawLimit, RawMapping};
use crate::rules::options::enforce::Share;
use crate::rules::options::{self, RuleOptions, denied_body, lease, own_share};
use crate::rules::pairs::{Conflict, ConflictKind, Given};
use crate::rules::report::{Severity, nearest, quoted, unknown};

/// Time after which a slot is freed if no stream releases it.
const HOLD: Duration = Duration::from_secs(60);

/// A sliding window with at most this number of requests denies at least a fifth of the requests of a client that keeps
/// to the limit.
const SMALL: u64 = 4;

/// Replaces an invalid length, to validate the other keys.
const ANY_LENGTH: Duration = Duration::from_secs(1);

/// Why a period takes no time zone unless its days are counted from a date.
const PERIOD_WITHOUT_START: &str = "time_zone needs unit day, week, month or year, or starts_on beside the period: the \
                                    date from which its days are counted";

/// Whether a limit is the only one of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Alone,
    OneOfSeveral,
}

impl Tree<'_, '_> {
    pub(super) fn rate_limits(&mut self, list: &[Raw<RawLimit<'_>>], path: FieldPath<'_>) -> Vec<RuleLimitConfig> {
        if list.is_empty() {
            self.complaints.error(path, "is empty: write a limit, or remove it");
        }
        let mut limits = Vec::new();
        let mut counters: HashMap<String, usize> = HashMap::new();
        for (index, raw) in list.iter().enumerate() {
            let path = path.item(index);
            let Some(config) = raw.get().and_then(|raw| self.rate_limit(raw, path, Count::OneOfSeveral)) else {
                continue;
            };
            if let Allowance::Limited(limit) = config.config.allowance {
                let mut counter = String::new();
                limit.identity(&mut counter);
                // Money and units are counted apart.
                counter.push_str(if config.config.options.weigh_by.is_some() { "|money" } else { "" });
                if let Some(other) = counters.insert(counter, index) {
                    let message = "has the same algorithm and period as";
                    self.complaints.error(path, format!("{message} rate_limits[{other}]: keep the lower of the two"));
                }
            }
            limits.push(config);
        }
        limits
    }

    pub(super) fn rate_limit(
        &mut self,
        raw: &RawLimit<'_>,
        path: FieldPath<'_>,
        count: Count,
    ) -> Option<RuleLimitConfig> {
        let name: Option<Arc<str>> = raw.text("name").get().filter(|name| !name.is_empty()).map(|name| (*name).into());
        self.part.names.given.extend(name.clone());
        let own = name.as_deref().unwrap_or_default();
        let replaces = raw.list("replaces").get().map(|list| self.replaces(list, path.key("replaces"), own));
        let failure_mode = failure_mode(&raw.text("failure_mode"), path, self.complaints);
        let unlimited = raw.flag("unlimited");
        let algorithm = match raw.text("algorithm") {
            _ if unlimited.is_set() => None,
            Raw::Missing => Some(self.part.defaults().algorithm),
            given => algorithm(&given, path, self.complaints),
        };
        let conflicts = self.check_pairs(raw, (algorithm, count), path);
        let common = LimitConfig {
            origins: self.origins(raw),
            allowance: Allowance::Unlimited,
            failure_mode: failure_mode.unwrap_or(self.part.defaults().failure_mode),
            options: RuleOptions::default(),
            replaces: replaces.unwrap_or_default(),
        };
        match unlimited {
            Raw::Unreadable => return None,
            Raw::Given(true) => return Some(self.shared(name, common, path)),
            Raw::Given(false) | Raw::Missing => {}
        }
        let in_conflict: Vec<&'static str> = conflicts.iter().map(|conflict| conflict.at).collect();
        let limit = self.limit(raw, (algorithm, &in_conflict), path);
        let mut validation = options::Validation {
            raw,
            path,
            limit: limit.as_ref(),
            prices: &self.part.beside.prices,
            in_conflict: &in_conflict,
            complaints: self.complaints,
        };
        let mut options = RuleOptions::check(&mut validation);
        if let Some(options) = options.as_mut().filter(|_| raw.get(denied_body::KEY.name).is_missing()) {
            options.denied_body = self.part.defaults().denied_body;
        }
        let mut origins = self.origins(raw);
        if let (Some(options), Some(limit)) = (&mut options, &limit) {
            self.save_calls(raw, (limit, options, &mut origins), count);
        }
        if let (Some(options), Some(limit)) = (&options, &limit) {
            self.check_small(raw, path, limit.number() / u64::from(options.cost), limit.algorithm());
            self.check_estimate(path, limit, options.cost);
            self.check_alone(path, limit, common.failure_mode);
        }
        // Invalid values have been reported.
        let config = LimitConfig { allowance: Allowance::Limited(limit?), options: options?, origins, ..common };
        in_conflict.is_empty().then(|| self.shared(name, config, path))
    }

    /// Reports conflicts between the keys of a limit.
    fn check_pairs(
        &mut self,
        raw: &RawLimit<'_>,
        (algorithm, count): (Option<Algorithm>, Count),
        path: FieldPath<'_>,
    ) -> Vec<&'static Conflict> {
        let is_unlimited = raw.flag("unlimited").is_set();
        let defaults = self.part.defaults();
        let counts_denied =
            |algorithm: Algorithm| defaults.count_denied(algorithm).unwrap_or(algorithm.counts_denied());
        let counted = algorithm.map(|algorithm| (algorithm, counts_denied(algorithm)));
        let mut given = Given::of(raw, counted, count == Count::OneOfSeveral);
        if let Some(unit) = raw.text("unit").get()
            && is_unlimited
            && unit_named(unit).is_none()
        {
            // Valid in envoyproxy/ratelimit.
            given = given.without("unit");
            if !unit.is_empty() {
                self.complaints.warn(path.key("unit"), "does nothing: an unlimited rule has no unit");
            }
        }
        let conflicts: Vec<&'static Conflict> = given.conflicts(is_unlimited).collect();
        // A limit with starts_on has a time_zone: what is refused beside both is one mistake.
        let beside = |conflict: &Conflict, key| match conflict {
            _ if conflict.kind != ConflictKind::Refused => None,
            conflict if conflict.at == key => Some(conflict.with),
            conflict => (conflict.with == key).then_some(conflict.at),
        };
        let of_day: Vec<&str> = conflicts.iter().filter_map(|conflict| beside(conflict, "starts_on")).collect();
        let is_told = |conflict: &Conflict| beside(conflict, "time_zone").is_some_and(|other| of_day.contains(&other));
        for conflict in conflicts.iter().filter(|conflict| !is_told(conflict)) {
            // An algorithm's name is a value, not a key.
            let at = if Algorithm::ALL.iter().any(|algorithm| algorithm.name() == conflict.at) {
                "algorithm"
            } else {
                conflict.at
            };
            match conflict.kind {
                ConflictKind::Refused => self.complaints.error(path.key(at), &*conflict.why),
                ConflictKind::Ignored => self.complaints.warn(path.key(at), &*conflict.why),
            }
        }
        conflicts
    }

    /// Returns the limit; limits with equal settings share them.
    fn shared(&mut self, name: Option<Arc<str>>, config: LimitConfig, path: FieldPath<'_>) -> RuleLimitConfig {
        let limits = &mut self.part.limits;
        let config = limits.get(&config).cloned().unwrap_or_else(|| {
            let config = Arc::new(config);
            limits.insert(Arc::clone(&config));
            config
        });
        RuleLimitConfig { line: self.complaints.line(path), name, config }
    }

    /// Returns where the settings come from that the limit may leave out.
    fn origins(&self, raw: &RawLimit<'_>) -> SettingOrigins {
        let by = |is_missing, is_given| match (is_missing, is_given) {
            (false, _) => SettingOrigin::Limit,
            (true, true) => SettingOrigin::Defaults,
            (true, false) => SettingOrigin::Setting,
        };
        SettingOrigins {
            algorithm: by(raw.get("algorithm").is_missing(), self.part.beside.defaults.algorithm.is_some()),
            failure_mode: by(raw.get("failure_mode").is_missing(), self.part.beside.defaults.failure_mode.is_some()),
            hold: if raw.get("hold").is_missing() { SettingOrigin::BuiltIn } else { SettingOrigin::Limit },
            denied_body: by(
                raw.get(denied_body::KEY.name).is_missing(),
                self.part.beside.defaults.denied_body.is_some(),
            ),
            lease: SettingOrigin::Limit,
            own_share: SettingOrigin::Limit,
        }
    }

    /// Gives a limit the lease and the share of the defaults, if it sets none, can have them, and they save calls.
    fn save_calls(
        &self,
        raw: &RawLimit<'_>,
        (limit, options, origins): (&Limit, &mut RuleOptions, &mut SettingOrigins),
        count: Count,
    ) {
        let GivenDefaults { lease, own_share: share, .. } = &self.part.beside.defaults;
        let saves = |lease: &Lease| Leasing { lease: *lease, limit, cost: options.cost, per_value: None }.saves_calls();
        if raw.get(lease::KEY.name).is_missing() && count != Count::OneOfSeveral {
            let lease = lease.and_then(|terms| terms.by_default(limit, options)).filter(saves);
            (options.lease, origins.lease) = (lease, SettingOrigin::Defaults);
        }
        if raw.get(own_share::KEY.name).is_missing() && own_share::fits_limit(limit, options) {
            let admits = |share: &Share| admits(*share, limit, 1) >= options.cost;
            (options.own_share, origins.own_share) = (share.filter(admits), SettingOrigin::Defaults);
        }
    }

    /// Warns of an estimate of a budget that is more than all of it.
    fn check_estimate(&mut self, path: FieldPath<'_>, limit: &Limit, cost: u32) {
        let Options { estimate, min_estimate, .. } = limit.options();
        let number = limit.number();
        let is_too_much = |estimate: Option<u64>| {
            estimate.is_some_and(|estimate| number > 0 && estimate.saturating_mul(cost.into()) > number)
        };
        let (key, denied) = match (is_too_much(min_estimate), is_too_much(estimate)) {
            (true, _) => ("min_estimate", "every stream"),
            (false, true) => ("estimate", "every stream without an estimate of its own"),
            (false, false) => return,
        };
        let message =
            format!("is more than the whole budget, so {denied} is denied: lower it, or raise requests_per_unit");
        self.complaints.warn(path.key(key), message);
    }

    /// Warns of a balance of which instances that decide alone would allow a part again, whatever of it is used.
    fn check_alone(&mut self, path: FieldPath<'_>, limit: &Limit, failure_mode: FailureMode) {
        if limit.is_balance() && limit.number() > 0 && failure_mode == FailureMode::Local {
            let message = "while Redis is unavailable, each instance allows its part of requests_per_unit again, even \
                           if the balance is used up, and no top-up: write failure_mode: closed, or \
                           requests_per_unit: 0 and top-ups alone";
            self.complaints.warn(path.key("failure_mode"), message);
        }
    }

    /// Suggests an alternative for a small number, if the default algorithm was not chosen explicitly.
    fn check_small(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>, requests: u64, algorithm: Algorithm) {
        let is_chosen = self.part.beside.defaults.algorithm.is_some()
            || ["algorithm", "segments", "weighting"].iter().any(|key| !raw.get(key).is_missing())
            // Usage is charged after it happens, and not at an even rate.
            || raw.flag("count_denied").is_set();
        if !is_chosen && algorithm == Algorithm::SlidingWindow && (1..=SMALL).contains(&requests) {
            let ordinal = ["2nd", "3rd", "4th", "5th"][requests as usize - 1];
            let message = format!(
                "a client that sends exactly {requests} in every period, evenly spaced, is denied every {ordinal} \
                 request; algorithm: sliding_log denies none of them, token_bucket refills evenly; to keep this, write \
                 algorithm: sliding_window"
            );
            self.complaints.hint(path.key("requests_per_unit"), message);
        }
    }

    fn replaces(&mut self, list: &[Raw<RawMapping<'_>>], path: FieldPath<'_>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for (index, raw) in list.iter().enumerate() {
            let item = path.item(index);
            let path = item.key("name");
            let Some(raw) = raw.get() else { continue };
            let name = raw.text("name");
            let Some(name) = self.complaints.required_text(&name, path) else { continue };
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

    /// Reads the limit. Options with a reported conflict are left out.
    fn limit(
        &mut self,
        raw: &RawLimit<'_>,
        (algorithm, in_conflict): (Option<Algorithm>, &[&str]),
        path: FieldPath<'_>,
    ) -> Option<Limit> {
        let period = match algorithm {
            Some(algorithm) if algorithm.counts_in_progress() => self.hold(raw, path),
            // Without an algorithm it is not known whether a period is required.
            None if raw.get("unit").is_missing() && raw.get("period").is_missing() => None,
            _ => self.period(raw, algorithm, path),
        };
        let number = match raw.wide_number("requests_per_unit") {
            Raw::Given(number) => Some(number),
            Raw::Unreadable => None,
            Raw::Missing => {
                let message = "is missing, so it is 0 and every request is over the limit";
                self.complaints.warn(path.key("requests_per_unit"), message);
                Some(0)
            }
        };
        let mut options = Options::default();
        for Declared { name, kind, .. } in Options::ALL.iter().filter(|option| !in_conflict.contains(&option.name)) {
            if !raw.get(name).is_missing() {
                self.option(raw, &mut options, (name, *kind), path.key(name));
            }
        }
        let defaults = self.part.defaults();
        options.count_denied = options.count_denied.or_else(|| defaults.count_denied(algorithm?));
        let is_unsaid = ["time_zone", "starts_on", "starts"].iter().all(|key| raw.get(key).is_missing());
        if raw.text("unit").get().is_some() && is_unsaid {
            let by_default = |(algorithm, period)| defaults.time_zone(algorithm, period);
            options.time_zone = algorithm.zip(period).and_then(by_default);
        }
        self.calendar(raw, &mut options, path);
        let (is_whole, number) = (number.is_some() && period.is_some(), number.unwrap_or(1));
        let limit = Limit::new(algorithm?, number, period.unwrap_or(ANY_LENGTH), options);
        self.readable(path, limit, is_whole)
    }

    /// Adapts the options of a calendar to a limit with a period. If one of them is invalid, none is left.
    fn calendar(&mut self, raw: &RawLimit<'_>, options: &mut Options, path: FieldPath<'_>) {
        let is_given = |key| !raw.get(key).is_missing();
        let (zone, start) = (is_given("time_zone"), is_given("starts_on"));
        let is_of_period = is_given("period");
        if is_of_period && options.time_zone.is_some() && !start {
            self.complaints.error(path.key("time_zone"), PERIOD_WITHOUT_START);
            options.time_zone = None;
        }
        if (zone && options.time_zone.is_none()) || (start && options.starts_on.is_none()) {
            (options.time_zone, options.starts_on) = (None, None);
        }
        if is_of_period {
            options.starts_on = options.starts_on.map(StartsOn::of_days);
        }
    }

    /// Reads an option of algorithms.
    fn option(&mut self, raw: &RawLimit<'_>, options: &mut Options, (name, kind): (&str, Kind), path: FieldPath<'_>) {
        let text = raw.text(name);
        let written = match kind {
            Kind::Number | Kind::Wide => raw.wide_number(name).map(Written::Number),
            Kind::Flag => raw.flag(name).map(Written::Flag),
            Kind::Length => self
                .complaints
                .length(&text, path)
                .map_or(Raw::Unreadable, |length| Raw::Given(Written::Length(length))),
            Kind::Choice(_) | Kind::TimeZone | Kind::Date => text.clone().map(Written::Name),
        };
        let (Raw::Given(written), text) = (written, text.get()) else { return };
        if options.set(name, written) {
            return;
        }
        if let Some(text) = text {
            let message = match kind {
                Kind::TimeZone => unknown_time_zone(text),
                Kind::Date => format!("unknown date {}: write one from 1970 on, such as 2026-01-15", quoted(text)),
                Kind::Choice(names) => unknown(name, text, &names()),
                Kind::Number | Kind::Wide | Kind::Flag | Kind::Length => return,
            };
            self.complaints.error(path, message);
        }
    }

    /// Reports all errors of a limit. If the limit is incomplete, it has substitutes for invalid values, and errors
    /// that involve several values are skipped.
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

    fn period(&mut self, raw: &RawLimit<'_>, algorithm: Option<Algorithm>, path: FieldPath<'_>) -> Option<Duration> {
        let (unit, period) = (raw.text("unit"), raw.text("period"));
        match (unit, &period) {
            (Raw::Unreadable, Raw::Missing) => None,
            (Raw::Missing, Raw::Missing) => self.unit("", path),
            (Raw::Given(name), Raw::Missing) if name.eq_ignore_ascii_case(Unit::NEVER) => self.never(algorithm, path),
            (Raw::Given(name), Raw::Missing) => self.unit(name, path),
            // Reported as a conflict.
            (Raw::Given(_), _) => None,
            _ => {
                let length = self.complaints.length(&period, path.key("period"))?;
                if length == NEVER {
                    // A limit of this length is a balance, which nobody asks for by a number of days.
                    self.complaints.error(path.key("period"), LimitError::Period.to_string());
                    return None;
                }
                Some(length)
            }
        }
    }

    /// Reads the period of a limit of requests in progress.
    fn hold(&mut self, raw: &RawLimit<'_>, path: FieldPath<'_>) -> Option<Duration> {
        match raw.text("hold") {
            Raw::Missing => Some(HOLD),
            hold => self.complaints.length(&hold, path.key("hold")),
        }
    }

    /// Reads the unit of a balance.
    fn never(&mut self, algorithm: Option<Algorithm>, path: FieldPath<'_>) -> Option<Duration> {
        if algorithm? == Algorithm::Budget {
            return Some(NEVER);
        }
        let message = "unit never is for a budget, which is a balance then: write algorithm: budget, or unit: year, as \
                       every other limit starts over at some time";
        self.complaints.error(path.key("unit"), message);
        None
    }

    fn unit(&mut self, name: &str, path: FieldPath<'_>) -> Option<Duration> {
        let found = unit_named(name);
        if found.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let message = match name {
                "" => format!("is missing: write one of {}, or a period such as 90s", names.join(", ")),
                length if humantime::parse_duration(length).is_ok() => {
                    format!("unknown unit {}: write a duration as period", quoted(length))
                }
                _ => match period_of(name) {
                    Some(instead) => format!("unknown unit {}: write {instead}", quoted(name)),
                    None => unknown("unit", name, &names),
                },
            };
            self.complaints.error(path.key("unit"), message);
        }
        found.map(Unit::duration)
    }
}

fn unknown_time_zone(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    let offset = upper.strip_prefix("UTC").or_else(|| upper.strip_prefix("GMT")).unwrap_or(&upper);
    if let (Some(sign @ ('+' | '-')), Some(hours)) = (offset.chars().next(), offset.get(1..)) {
        let hours = hours.split(':').next().and_then(|hours| hours.parse::<u8>().ok());
        let same = hours.map(|hours| format!("Etc/GMT{}{hours}", if sign == '+' { '-' } else { '+' }));
        let same = same
            .filter(|same| TimeZone::named(same).is_some())
            .map_or(String::new(), |same| format!(", or {same}, whose sign is reversed"));
        let place = "an offset is no time zone: write a place such as Europe/Berlin, which has summer time";
        return format!("unknown time zone {}: {place}{same}", quoted(name));
    }
    let names = TimeZone::names();
    let near = nearest(name, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let hint = match near {
        Some(near) => format!(", did you mean {near:?}?"),
        None => ": write a name such as Asia/Shanghai, Europe/Berlin or UTC".to_owned(),
    };
    format!("unknown time zone {}{hint}", quoted(name))
}

/// Returns what to write for words that mean a time, but are no unit.
fn period_of(name: &str) -> Option<&'static str> {
    const WORDS: [(&[&str], &str); 8] = [
        (&["fortnight", "biweekly", "2weeks"], "period: 14d; with time_zone and starts_on, by the calendar"),
        (&["quarter", "quarterly"], "period: 91d; there are no calendar quarters"),
        (&["halfyear", "semester"], "period: 182d; there are no calendar half-years"),
        (&["decade", "century"], "unit: year, with the number for a year"),
        (&["millisecond", "ms", "msec"], "unit: second, with the number for a second"),
        (&["halfday"], "period: 12h"),
        (&["weekend", "weekday", "workday", "businessday"], "unit: day; all days of the week count alike"),
        (
            &["forever", "total", "lifetime", "infinite", "balance"],
            "unit: never for a budget, or unit: year: every other limit starts over at some time",
        ),
    ];
    let word: String = name.chars().filter(|char| char.is_alphanumeric()).collect::<String>().to_lowercase();
    let found = WORDS.iter().find(|(words, _)| words.iter().any(|known| word == *known || word == format!("{known}s")));
    found.map(|(_, instead)| *instead)
}

fn unit_named(name: &str) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
}
