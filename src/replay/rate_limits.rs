//! `rate_limits` in the form of Envoy's routes: what a request's descriptors are made of.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::condition::{Condition, RegexMatcher, StringMatcher, Subject, Test, TextTest};
use super::entry::{Address, DescriptorMap, EntryMap, Source};
use super::template::{self, Names, OpenField, Part, Template};

/// The actions of one descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    actions: Vec<Action>,
    hits_addend: Option<HitsAddend>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Action {
    SourceCluster {},
    DestinationCluster {},
    RequestHeaders {
        header_name: String,
        descriptor_key: String,
        #[serde(default)]
        skip_if_absent: bool,
    },
    RemoteAddress {},
    MaskedRemoteAddress {
        #[serde(default = "all_of_v4")]
        v4_prefix_mask_len: u8,
        #[serde(default = "all_of_v6")]
        v6_prefix_mask_len: u8,
    },
    GenericKey {
        #[serde(default = "generic_key")]
        descriptor_key: String,
        descriptor_value: String,
    },
    HeaderValueMatch {
        #[serde(default = "header_match")]
        descriptor_key: String,
        descriptor_value: String,
        #[serde(default = "yes")]
        expect_match: bool,
        headers: Vec<HeaderMatcher>,
    },
    QueryParameters {
        query_parameter_name: String,
        descriptor_key: String,
        #[serde(default)]
        skip_if_absent: bool,
    },
    QueryParameterValueMatch {
        #[serde(default = "query_match")]
        descriptor_key: String,
        descriptor_value: String,
        #[serde(default = "yes")]
        expect_match: bool,
        query_parameters: Vec<QueryParameterMatcher>,
    },
    Metadata {
        descriptor_key: String,
        metadata_key: MetadataKey,
        #[serde(default)]
        default_value: String,
        #[serde(default)]
        source: MetadataSource,
        #[serde(default)]
        skip_if_absent: bool,
    },
    DynamicMetadata {
        descriptor_key: String,
        metadata_key: MetadataKey,
        #[serde(default)]
        default_value: String,
    },
    Extension {
        #[serde(rename = "name")]
        _name: Option<String>,
        typed_config: Expression,
    },
}

/// `HeaderMatcher` in Envoy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderMatcher {
    name: String,
    exact_match: Option<String>,
    prefix_match: Option<String>,
    suffix_match: Option<String>,
    contains_match: Option<String>,
    safe_regex_match: Option<RegexMatcher>,
    range_match: Option<Int64Range>,
    present_match: Option<bool>,
    string_match: Option<StringMatcher>,
    #[serde(default)]
    invert_match: bool,
    #[serde(default)]
    treat_missing_header_as_empty: bool,
}

/// `QueryParameterMatcher` in Envoy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryParameterMatcher {
    name: String,
    string_match: Option<StringMatcher>,
    present_match: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Int64Range {
    #[serde(default, deserialize_with = "number")]
    start: i64,
    #[serde(default, deserialize_with = "number")]
    end: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetadataKey {
    key: String,
    path: Vec<MetadataSegment>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetadataSegment {
    key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum MetadataSource {
    #[default]
    Dynamic,
    RouteEntry,
}

/// The descriptor of `envoy.rate_limit_descriptors.expr`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    #[serde(rename = "@type")]
    _type: String,
    descriptor_key: String,
    text: String,
    #[serde(default)]
    skip_if_error: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HitsAddend {
    #[serde(default, deserialize_with = "some_number")]
    number: Option<i64>,
    format: Option<String>,
}

fn generic_key() -> String {
    "generic_key".to_owned()
}

fn header_match() -> String {
    "header_match".to_owned()
}

fn query_match() -> String {
    "query_match".to_owned()
}

fn yes() -> bool {
    true
}

fn all_of_v4() -> u8 {
    32
}

fn all_of_v6() -> u8 {
    128
}

/// Reads a number of 64 bits, which is a text in the JSON of a message.
fn number<'d, D: Deserializer<'d>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Number(i64),
        Text(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(|_| D::Error::custom(format!("{text:?} is no whole number"))),
    }
}

fn some_number<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    number(deserializer).map(Some)
}

/// The reason why a descriptor cannot be made from a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoDescriptor {
    #[error(transparent)]
    Open(#[from] OpenField),
    #[error("has no actions")]
    NoActions,
    #[error("hits_addend: has either a number or a format")]
    Hits,
    #[error("{0}")]
    Other(String),
}

/// What actions refer to.
pub(super) struct Context<'c> {
    /// The fields that are used.
    pub(super) names: &'c mut Names,
    /// Returns whether lines have the field of an operator.
    pub(super) has_field: &'c dyn Fn(&str) -> bool,
    /// Whether there is no descriptor without its hits.
    pub(super) needs_hits: bool,
    /// Whether a descriptor's value may contain fields.
    pub(super) is_formatted: bool,
    /// The name of Envoy's own cluster, if it is known.
    pub(super) source_cluster: Option<&'c str>,
    /// The cluster that a route leads to, if it is known.
    pub(super) destination: Option<Destination>,
}

/// The cluster that a route leads to.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    /// This one.
    Cluster(String),
    /// The one that a field names.
    Field(String),
}

impl Context<'_> {
    /// Returns the field of an operator.
    pub(super) fn field(&mut self, operator: &str) -> Result<Template, NoDescriptor> {
        if !(self.has_field)(operator) {
            return Err(NoDescriptor::Other(format!("the log has no %{operator}%")));
        }
        Ok(Template::of_field(operator, self.names))
    }

    /// Returns a text with fields.
    fn format(&mut self, text: &str) -> Result<Template, NoDescriptor> {
        for part in template::parts(text)? {
            if let Part::Field(operator) = part
                && !(self.has_field)(operator)
            {
                return Err(NoDescriptor::Other(format!("the log has no %{operator}%")));
            }
        }
        Ok(Template::parse(text, self.names)?)
    }

    /// Returns the value that a configuration gives a descriptor.
    fn value(&mut self, text: &str) -> Result<Template, NoDescriptor> {
        if self.is_formatted { self.format(text) } else { Ok(Template::of_text(text)) }
    }

    /// Returns the path with its query.
    fn path(&mut self) -> Result<Template, NoDescriptor> {
        self.field("REQ(:PATH)")
    }

    fn address(&mut self, mask: Option<(u8, u8)>) -> Result<Source, NoDescriptor> {
        const ALONE: &str = "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT";
        const WITH_PORT: &str = "DOWNSTREAM_REMOTE_ADDRESS";
        let has_port = !(self.has_field)(ALONE) && (self.has_field)(WITH_PORT);
        let field = self.field(if has_port { WITH_PORT } else { ALONE })?;
        Ok(Source::Address(Address { field, has_port, mask }))
    }

    /// Returns the conditions of matchers of headers.
    pub(super) fn headers(&mut self, headers: Vec<HeaderMatcher>) -> Result<Vec<Condition>, NoDescriptor> {
        headers.into_iter().map(|matcher| matcher.condition(self)).collect()
    }

    /// Returns the conditions of matchers of the query's parameters.
    pub(super) fn parameters(
        &mut self,
        all: Vec<QueryParameterMatcher>,
        subject: fn(Template, String) -> Subject,
    ) -> Result<Vec<Condition>, NoDescriptor> {
        let condition = |QueryParameterMatcher { name, string_match, present_match }| {
            let test = match string_match {
                Some(matcher) => Test::Text(matcher.test().map_err(NoDescriptor::Other)?),
                None => Test::Present(present_match.unwrap_or(true)),
            };
            let subject = subject(self.path()?, name);
            Ok(Condition { subject, test, is_inverted: false, is_missing_empty: false })
        };
        all.into_iter().map(condition).collect()
    }
}

impl RateLimit {
    /// Returns the descriptor that it makes.
    pub(super) fn descriptor(self, context: &mut Context<'_>) -> Result<DescriptorMap, NoDescriptor> {
        if self.actions.is_empty() {
            return Err(NoDescriptor::NoActions);
        }
        let entries = self.actions.into_iter().map(|action| action.entry(context)).collect::<Result<_, _>>()?;
        let hits = match self.hits_addend {
            None => None,
            Some(HitsAddend { number: Some(number), format: None }) => Some(Template::of_text(&number.to_string())),
            Some(HitsAddend { number: None, format: Some(format) }) => Some(context.format(&format)?),
            Some(_) => return Err(NoDescriptor::Hits),
        };
        Ok(DescriptorMap { entries, hits, needs_hits: context.needs_hits })
    }
}

impl Action {
    fn entry(self, context: &mut Context<'_>) -> Result<EntryMap, NoDescriptor> {
        let unknown = |what: &str| NoDescriptor::Other(what.to_owned());
        Ok(match self {
            Action::SourceCluster {} => {
                let cluster = context.source_cluster;
                let cluster =
                    cluster.ok_or_else(|| unknown("source_cluster: the configuration has no node.cluster"))?;
                EntryMap::new("source_cluster", Source::Text(Template::of_text(cluster)))
            }
            Action::DestinationCluster {} => {
                let value = match context.destination.clone() {
                    None => return Err(unknown("destination_cluster: it is not known here")),
                    Some(Destination::Cluster(name)) => Template::of_text(&name),
                    Some(Destination::Field(operator)) => context.field(&operator)?,
                };
                EntryMap::new("destination_cluster", Source::Text(value))
            }
            Action::RequestHeaders { header_name, descriptor_key: key, skip_if_absent: is_optional } => {
                let value = Source::Text(context.field(&format!("REQ({header_name})"))?);
                EntryMap { is_optional, ..EntryMap::new(&key, value) }
            }
            Action::RemoteAddress {} => EntryMap::new("remote_address", context.address(None)?),
            Action::MaskedRemoteAddress { v4_prefix_mask_len, v6_prefix_mask_len } => {
                let mask = (v4_prefix_mask_len, v6_prefix_mask_len);
                EntryMap::new("masked_remote_address", context.address(Some(mask))?)
            }
            Action::GenericKey { descriptor_key, descriptor_value } => {
                EntryMap::new(&descriptor_key, Source::Text(context.value(&descriptor_value)?))
            }
            Action::HeaderValueMatch { descriptor_key, descriptor_value, expect_match, headers } => {
                let conditions = context.headers(headers)?;
                EntryMap::new(&descriptor_key, Source::If(conditions, expect_match, context.value(&descriptor_value)?))
            }
            Action::QueryParameters { query_parameter_name, descriptor_key, skip_if_absent: is_optional } => {
                let value = Source::Part(Subject::Query(context.path()?, query_parameter_name));
                EntryMap { is_optional, ..EntryMap::new(&descriptor_key, value) }
            }
            Action::QueryParameterValueMatch { descriptor_key, descriptor_value, expect_match, query_parameters } => {
                let conditions = context.parameters(query_parameters, Subject::Query)?;
                EntryMap::new(&descriptor_key, Source::If(conditions, expect_match, context.value(&descriptor_value)?))
            }
            Action::Metadata { source: MetadataSource::RouteEntry, .. } => {
                return Err(unknown("metadata of a route is not read"));
            }
            Action::Metadata { descriptor_key, metadata_key, default_value, skip_if_absent, .. } => {
                metadata_key.entry(context, &descriptor_key, (default_value, skip_if_absent))?
            }
            Action::DynamicMetadata { descriptor_key, metadata_key, default_value } => {
                metadata_key.entry(context, &descriptor_key, (default_value, false))?
            }
            Action::Extension { typed_config, .. } => typed_config.entry(context)?,
        })
    }
}

impl HeaderMatcher {
    fn condition(self, context: &mut Context<'_>) -> Result<Condition, NoDescriptor> {
        let texts = [
            self.exact_match.map(TextTest::exact),
            self.prefix_match.map(TextTest::prefix),
            self.suffix_match.map(TextTest::suffix),
            self.contains_match.map(TextTest::contains),
            self.safe_regex_match.as_ref().map(TextTest::regex).transpose().map_err(NoDescriptor::Other)?,
            self.string_match.map(StringMatcher::test).transpose().map_err(NoDescriptor::Other)?,
        ];
        let test = match (texts.into_iter().flatten().next(), self.range_match) {
            (Some(test), _) => Test::Text(test),
            (None, Some(Int64Range { start, end })) => Test::Number(start..end),
            (None, None) => Test::Present(self.present_match.unwrap_or(true)),
        };
        let subject = Subject::Field(context.field(&format!("REQ({})", self.name))?);
        let (is_inverted, is_missing_empty) = (self.invert_match, self.treat_missing_header_as_empty);
        Ok(Condition { subject, test, is_inverted, is_missing_empty })
    }
}

impl MetadataKey {
    fn entry(
        &self,
        context: &mut Context<'_>,
        key: &str,
        (default, is_optional): (String, bool),
    ) -> Result<EntryMap, NoDescriptor> {
        let path = self.path.iter().map(|segment| format!(":{}", segment.key)).collect::<String>();
        let field = context.field(&format!("DYNAMIC_METADATA({}{path})", self.key))?;
        let value = if default.is_empty() { Source::Text(field) } else { Source::OrElse(field, default) };
        Ok(EntryMap { is_optional, ..EntryMap::new(key, value) })
    }
}

impl Expression {
    fn entry(&self, context: &mut Context<'_>) -> Result<EntryMap, NoDescriptor> {
        let header = |rest: &'_ str| {
            let quoted = rest.strip_prefix('[')?.strip_suffix(']')?.trim();
            let name = ['\'', '"'].iter().find_map(|quote| quoted.strip_prefix(*quote)?.strip_suffix(*quote))?;
            (!name.contains(['\'', '"', '\\'])).then(|| format!("REQ({name})"))
        };
        let text = self.text.trim();
        let value = match text {
            "request.url_path" => Source::Part(Subject::Path(context.path()?)),
            "request.path" => Source::Text(context.path()?),
            "request.host" => Source::Text(context.field("REQ(:AUTHORITY)")?),
            "request.method" => Source::Text(context.field("REQ(:METHOD)")?),
            "request.useragent" => Source::Text(context.field("REQ(USER-AGENT)")?),
            "request.referer" => Source::Text(context.field("REQ(REFERER)")?),
            _ => match text.strip_prefix("request.headers").and_then(header) {
                Some(operator) => Source::Text(context.field(&operator)?),
                None => return Err(NoDescriptor::Other(format!("the expression {text:?} is not evaluated here"))),
            },
        };
        Ok(EntryMap { is_optional: self.skip_if_error, ..EntryMap::new(&self.descriptor_key, value) })
    }
}
