//! Mappings from a log line to a request: the domain, and the descriptors that Envoy would have sent.

use serde::Deserialize;

use super::Event;
use super::entry::{DescriptorMap, EntryMap, Source};
use super::envoy::{EnvoyConfig, Routing};
use super::format::{self, Format};
use super::packed::Packed;
use super::rate_limits::{Context, NoDescriptor, RateLimit};
use super::template::{Names, OpenField, Template, Values};
use super::time;
use crate::engine::algorithm::Ask;
use crate::engine::descriptor::{Descriptor, Request, Text};

/// Options of a mapping.
#[derive(Clone, Debug, Default)]
pub struct MappingOptions {
    /// Domain of all requests.
    pub domain: Option<String>,
    /// Entries of a descriptor, each as `KEY=TEXT`.
    pub entries: Vec<String>,
    /// Content of a map file, which has any number of descriptors.
    pub file: Option<String>,
    /// Envoy's own configuration, in place of entries and a map file.
    pub envoy: Option<EnvoyConfig>,
    /// Hits of requests that do not specify them.
    pub hits: Option<String>,
    /// Time of the request.
    pub time: Option<String>,
    /// How long the request lasted, in milliseconds.
    pub duration: Option<String>,
    /// What identifies the request elsewhere.
    pub id: Option<String>,
}

/// A mapping from the fields of a line to a request.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    /// What Envoy asks about requests of one route or another.
    calls: Vec<Call>,
    /// The choice of what Envoy asks; `None` if it asks the same about all requests.
    routing: Option<Routing>,
    /// What of Envoy's configuration is not replayed, each with the reason.
    left_out: Vec<String>,
    /// Fields that may have the time; the first that a line has is used.
    times: Vec<Template>,
    /// Fields that may have the duration; the first that a line has is used.
    durations: Vec<Template>,
    /// Whether an option names the duration, so that another value than a number is a mistake.
    is_duration_given: bool,
    id: Option<Template>,
    names: Names,
}

/// The reason why a mapping is invalid.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// A field does not end.
    #[error(transparent)]
    Open(#[from] OpenField),
    /// An entry has the wrong form.
    #[error("{0:?} is no entry: write KEY=TEXT, in which %NAME% stands for a field of the log")]
    Entry(String),
    /// There are neither entries nor a file.
    #[error("say which descriptors lines stand for: --map 'user=%REQ(x-user)%', or --map-file")]
    Nothing,
    /// There is no domain.
    #[error("say which domain the requests are for: --domain")]
    NoDomain,
    /// The file is not YAML, or has a wrong value.
    #[error("the map file cannot be read: {0}")]
    File(Box<serde_saphyr::Error>),
    /// A descriptor of the file is wrong.
    #[error("rate_limits[{0}]: {1}")]
    Descriptor(usize, String),
    /// The log has other fields than Envoy's.
    #[error("--envoy needs a log of Envoy: text, or the JSON of the json_format in the configuration")]
    NoOperators,
    /// The log lacks what the choice of routes needs.
    #[error("{0}")]
    Routes(String),
    /// Nothing of Envoy's configuration can be replayed.
    #[error("by this configuration Envoy asks nothing that can be replayed{}", indented(.0))]
    AsksNothing(Vec<String>),
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// The reason why a line has no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unmapped {
    /// Every descriptor lacks a field, so Envoy would have sent none.
    NoDescriptor,
    /// The line is wrong.
    Wrong(String),
}

/// What Envoy asks about a request.
#[derive(Clone, Debug)]
struct Call {
    domain: Text,
    descriptors: Vec<DescriptorMap>,
}

/// A map file: a part of a route's configuration in Envoy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    domain: Option<String>,
    rate_limits: Vec<RateLimit>,
}

impl Mapping {
    /// Creates a mapping from options for logs of a format. `domain` is the default domain.
    ///
    /// # Errors
    /// Fails if options are missing or invalid.
    pub(super) fn new(options: &MappingOptions, domain: Option<&str>, log: &Format) -> Result<Mapping, MappingError> {
        let mut names = Names::default();
        let (mut calls, routing, left_out) = match &options.envoy {
            Some(config) => of_envoy(config, log, &mut names)?,
            None => (vec![of_map(options, domain, &mut names)?], None, Vec::new()),
        };
        if let Some(hits) = &options.hits {
            let hits = Template::parse(hits, &mut names)?;
            calls.iter_mut().flat_map(|call| &mut call.descriptors).for_each(|descriptor| {
                descriptor.hits.get_or_insert_with(|| hits.clone());
            });
        }
        let times = options.time.iter().map(|time| Template::parse(time, &mut names)).collect::<Result<_, _>>()?;
        let durations =
            options.duration.iter().map(|text| Template::parse(text, &mut names)).collect::<Result<Vec<_>, _>>()?;
        let is_duration_given = !durations.is_empty();
        let id = options.id.as_ref().map(|text| Template::parse(text, &mut names)).transpose()?;
        Ok(Mapping { calls, routing, left_out, times, durations, is_duration_given, id, names })
    }

    /// Returns the mapping for logs with the time in one of these fields, and the duration in one of those, unless
    /// options name them.
    pub(super) fn with_fields(&self, times: &[&str], durations: &[&str]) -> Mapping {
        let mut mapping = self.clone();
        let mut all = |fields: &[&str]| -> Vec<Template> {
            fields.iter().map(|field| Template::of_field(field, &mut mapping.names)).collect()
        };
        if mapping.times.is_empty() {
            mapping.times = all(times);
        }
        if mapping.durations.is_empty() {
            mapping.durations = all(durations);
        }
        mapping
    }

    /// Returns what of Envoy's configuration is not replayed, each with the reason.
    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns the names of all fields that it uses, first those that the user wrote.
    pub(super) fn names(&self) -> &[String] {
        self.names.as_slice()
    }

    /// Packs the request of a line with these fields, and returns its time. After an error, `packed` is incomplete.
    pub(super) fn pack(&self, values: &Values<'_>, packed: &mut Packed) -> Result<u64, Unmapped> {
        let wrong = |what: String| Unmapped::Wrong(what);
        let time = self.times.iter().find_map(|time| time.fill(values));
        let time = time.ok_or_else(|| wrong("has no time: --time '%FIELD%' says where it is".to_owned()))?;
        let at_ms = time::parse(&time).ok_or_else(|| wrong(format!("{time:?} is no time: RFC 3339, or seconds")))?;
        packed.push_number(self.duration(values).map_err(wrong)?);
        if let Some(id) = &self.id {
            packed.push_text(id.fill(values).as_deref());
        }
        let call = self.routing.as_ref().map_or(Some(0), |routing| routing.call(values));
        let call = call.ok_or(Unmapped::NoDescriptor)?;
        packed.push_number(Some(call as u64));
        let mut has_any = false;
        for descriptor in &self.calls[call].descriptors {
            has_any |= descriptor.pack(values, packed).map_err(wrong)?;
        }
        if has_any { Ok(at_ms) } else { Err(Unmapped::NoDescriptor) }
    }

    /// Returns how long the request of a line lasted, in milliseconds; `None` if the line does not tell.
    fn duration(&self, values: &Values<'_>) -> Result<Option<u64>, String> {
        let Some(text) = self.durations.iter().find_map(|duration| duration.fill(values)) else { return Ok(None) };
        // Longer ones are missing in `packed`.
        match text.parse().ok().filter(|ms| *ms < u64::MAX) {
            None if self.is_duration_given => Err(format!("{text:?} is no duration: milliseconds, a whole number")),
            duration => Ok(duration),
        }
    }

    /// Reads a packed request into `event`, whose memory is reused.
    pub(super) fn unpack(&self, at_ms: u64, packed: &mut Packed, event: &mut Event) {
        let Event { at_ms: time, request: Request { domain, descriptors }, outside, lasts_ms, id } = event;
        (*time, *lasts_ms) = (at_ms, packed.number());
        *id = self.id.as_ref().and_then(|_| packed.text()).map(str::to_owned);
        outside.clear();
        let Call { domain: of_call, descriptors: maps } = &self.calls[packed.count()];
        domain.clone_from(of_call);
        let mut len = 0;
        for map in maps {
            let Some(hits) = packed.number() else { continue };
            if len == descriptors.len() {
                let entries = Vec::with_capacity(map.entries.len());
                descriptors.push(Descriptor { entries, ask: Ask::Peek, limit: None });
            }
            map.unpack(hits, packed, &mut descriptors[len]);
            len += 1;
        }
        descriptors.truncate(len);
    }
}

/// Returns what is asked about each line, by entries and a map file.
fn of_map(options: &MappingOptions, domain: Option<&str>, names: &mut Names) -> Result<Call, MappingError> {
    let mut descriptors = Vec::new();
    if !options.entries.is_empty() {
        let entries = options.entries.iter().map(|entry| of_entry(entry, names));
        descriptors.push(DescriptorMap { entries: entries.collect::<Result<_, _>>()?, hits: None, needs_hits: false });
    }
    let file: Result<Option<MapFile>, _> = options.file.as_deref().map(serde_saphyr::from_str).transpose();
    let file = file.map_err(|error| MappingError::File(Box::new(error)))?;
    let (of_file, rate_limits) = file.map_or((None, Vec::new()), |file| (file.domain, file.rate_limits));
    let has_field = |_: &'_ str| true;
    let mut context = Context {
        names,
        has_field: &has_field,
        needs_hits: false,
        is_formatted: true,
        source_cluster: None,
        destination: None,
    };
    for (index, rate_limit) in rate_limits.into_iter().enumerate() {
        descriptors.push(rate_limit.descriptor(&mut context).map_err(|error| match error {
            NoDescriptor::Open(open) => MappingError::Open(open),
            error => MappingError::Descriptor(index, error.to_string()),
        })?);
    }
    if descriptors.is_empty() {
        return Err(MappingError::Nothing);
    }
    let domain = options.domain.clone().or(of_file).or_else(|| domain.map(str::to_owned));
    Ok(Call { domain: domain.ok_or(MappingError::NoDomain)?.into(), descriptors })
}

/// Returns the entry of an option.
fn of_entry(text: &str, names: &mut Names) -> Result<EntryMap, MappingError> {
    let entry = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = entry.ok_or_else(|| MappingError::Entry(text.to_owned()))?;
    Ok(EntryMap::new(key, Source::Text(Template::parse(value, names)?)))
}

/// What Envoy asks, the choice of it, and what is left out.
type OfEnvoy = (Vec<Call>, Option<Routing>, Vec<String>);

/// Returns what Envoy asks about each line, by its own configuration.
fn of_envoy(config: &EnvoyConfig, log: &Format, names: &mut Names) -> Result<OfEnvoy, MappingError> {
    let operators = log.operators().ok_or(MappingError::NoOperators)?;
    let has_field = |name: &'_ str| operators.iter().any(|operator| format::is_named(operator, name));
    let (routing, calls, left_out) = Routing::new(config, &has_field, names).map_err(MappingError::Routes)?;
    if calls.is_empty() {
        return Err(MappingError::AsksNothing(left_out));
    }
    let calls = calls.into_iter().map(|(domain, descriptors)| Call { domain: domain.into(), descriptors });
    Ok((calls.collect(), Some(routing), left_out))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::engine::descriptor::{Entry, Override};

    const FILE: &str = "
domain: shop
rate_limits:
  - actions:
      - generic_key: {descriptor_key: route, descriptor_value: 'r-%route%'}
      - remote_address: {}
  - actions:
      - request_headers: {header_name: x-user, descriptor_key: user}
      - request_headers: {header_name: x-team, descriptor_key: team, skip_if_absent: true}
    hits_addend: {format: '%bytes%'}
";

    fn event(mapping: &Mapping, fields: &[(&str, &str)]) -> Result<Event, Unmapped> {
        let value = |name: &String| fields.iter().find(|(field, _)| field == name).map(|(_, value)| Cow::from(*value));
        let mut packed = Packed::default();
        let at_ms = mapping.pack(&mapping.names().iter().map(value).collect(), &mut packed)?;
        let mut event = Event::empty();
        mapping.unpack(at_ms, &mut packed, &mut event);
        // Nothing of a former request is left in an event that is used again.
        let mut used = descriptor(&[("a", "b"), ("c", "d"), ("e", "f")], Ask::Take(9));
        used.limit = Override::parse("5/minute");
        let request = Request { domain: "longer than the other".into(), descriptors: vec![used; 3] };
        let mut used = Event { at_ms: 9, request, outside: vec![0], lasts_ms: Some(9), id: Some("another".into()) };
        let mut again = Packed::default();
        again.append(&packed);
        mapping.unpack(at_ms, &mut again, &mut used);
        assert_eq!(used, event);
        Ok(event)
    }

    fn descriptor(entries: &[(&str, &str)], ask: Ask) -> Descriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        Descriptor { entries: entries.iter().map(entry).collect(), ask, limit: None }
    }

    #[test]
    fn a_file_makes_several_descriptors_and_leaves_out_those_that_envoy_would() {
        let options = MappingOptions { file: Some(FILE.to_owned()), hits: Some("3".into()), ..Default::default() };
        let mapping = Mapping::new(&options, Some("other"), &Format::Json).unwrap().with_fields(&["t"], &["d"]);
        let address = ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "192.0.2.1");
        let all = [("t", "1"), ("route", "login"), address, ("REQ(x-user)", "ann"), ("bytes", "70")];
        let made = event(&mapping, &all).unwrap();
        let login = descriptor(&[("route", "r-login"), ("remote_address", "192.0.2.1")], Ask::Take(3));
        let user = descriptor(&[("user", "ann")], Ask::Take(70));
        let request = Request { domain: "shop".into(), descriptors: vec![login, user.clone()] };
        assert_eq!(made, Event::new(1_000, request));
        let team = event(&mapping, &[("t", "1"), ("REQ(x-user)", "ann"), ("REQ(x-team)", "a"), address]).unwrap();
        let with_team = descriptor(&[("user", "ann"), ("team", "a")], Ask::Take(1));
        assert_eq!(team.request.descriptors, [with_team], "without bytes it is one hit");
        assert_eq!(event(&mapping, &[("t", "1"), address]), Err(Unmapped::NoDescriptor));
        for wrong in
            [&[("route", "a")][..], &[("t", "x"), address], &[("t", "1"), ("REQ(x-user)", "ann"), ("bytes", "-1")]]
        {
            assert!(matches!(event(&mapping, wrong), Err(Unmapped::Wrong(_))), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_not_said_is_asked_for() {
        let map = |entries: &[&str], file: Option<&str>, domain| {
            let entries = entries.iter().map(|entry| (*entry).to_owned()).collect();
            let options = MappingOptions { entries, file: file.map(str::to_owned), ..MappingOptions::default() };
            Mapping::new(&options, domain, &Format::Json).map_err(|error| error.to_string()).err()
        };
        assert_eq!(map(&["user=%u%"], None, Some("shop")), None);
        assert_eq!(map(&["user=%u%"], None, None).unwrap(), "say which domain the requests are for: --domain");
        let wrong = [
            map(&[], None, Some("d")),
            map(&["user"], None, Some("d")),
            map(&["=%u%"], None, Some("d")),
            map(&["user=%u"], None, Some("d")),
            map(&[], Some("rate_limits: [{actions: []}]"), Some("d")),
            map(&[], Some("rate_limits: [{actions: [{remote_address: {}}], hits_addend: {}}]"), Some("d")),
            map(&[], Some("rate_limits: [{actions: [{destination_cluster: {}}]}]"), Some("d")),
            map(&[], Some("rate_limit: []"), Some("d")),
        ];
        assert!(wrong.iter().all(Option::is_some), "{wrong:#?}");
    }
}
