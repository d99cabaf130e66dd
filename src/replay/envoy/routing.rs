//! The routes of a configuration, and what Envoy asks about a request that takes one of them.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::{EnvoyConfig, PerFilter, Route, RouteAction, VirtualHost, is_of_type};
use crate::replay::condition::{Condition, RegexMatcher, Subject, TextTest};
use crate::replay::entry::DescriptorMap;
use crate::replay::rate_limits::{Context, Destination, HeaderMatcher, NoDescriptor, QueryParameterMatcher, RateLimit};
use crate::replay::template::{Names, Template, Values};

/// The operator of the host that a request asks.
const HOST: &str = "REQ(:AUTHORITY)";

/// What Envoy asks about the requests of a route.
pub(in crate::replay) type Calls = Vec<(String, Vec<DescriptorMap>)>;

/// The choice of a route for a line.
#[derive(Clone, Debug)]
pub(in crate::replay) struct Routing {
    /// The host of a line; `None` if all have the same routes.
    host: Option<Template>,
    /// The virtual hosts, each with its domains and routes.
    hosts: Vec<(Vec<String>, Vec<RouteOf>)>,
    ignores_port: bool,
}

/// A route.
#[derive(Clone, Debug)]
struct RouteOf {
    /// All of them hold for its requests.
    conditions: Vec<Condition>,
    /// The index of what Envoy asks, if it asks.
    call: Option<usize>,
}

/// `RouteMatch` in Envoy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteMatch {
    prefix: Option<String>,
    path: Option<String>,
    safe_regex: Option<RegexMatcher>,
    path_separated_prefix: Option<String>,
    #[serde(default = "yes")]
    case_sensitive: bool,
    #[serde(default)]
    headers: Vec<HeaderMatcher>,
    #[serde(default)]
    query_parameters: Vec<QueryParameterMatcher>,
    grpc: Option<Value>,
}

fn yes() -> bool {
    true
}

/// `RateLimitPerRoute` of the rate limit filter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PerRoute {
    domain: String,
    vh_rate_limits: HostLimits,
    rate_limits: Vec<Value>,
    /// Whether the filter is off for the route.
    disabled: bool,
}

/// When the `rate_limits` of a virtual host apply beside those of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum HostLimits {
    /// If the route has none.
    #[default]
    Override,
    Include,
    Ignore,
}

/// Reads a configuration.
struct Reader<'c> {
    config: &'c EnvoyConfig,
    has_field: &'c dyn Fn(&str) -> bool,
    names: &'c mut Names,
    calls: Calls,
    left_out: Vec<String>,
}

impl Routing {
    /// Creates the choice of a configuration's routes, with what Envoy asks, and what of both is left out, each with
    /// the reason.
    ///
    /// # Errors
    /// Fails if the log does not tell the virtual hosts apart.
    pub(in crate::replay) fn new(
        config: &EnvoyConfig,
        has_field: &dyn Fn(&str) -> bool,
        names: &mut Names,
    ) -> Result<(Routing, Calls, Vec<String>), String> {
        let mut reader = Reader { config, has_field, names, calls: Calls::new(), left_out: Vec::new() };
        reader.tell_of_the_filter();
        let all = &config.routes.virtual_hosts;
        let hosts: Vec<_> = all.iter().map(|host| (host.domains.clone(), reader.routes(host))).collect();
        let is_one = matches!(&all[..], [host] if host.domains == ["*"]);
        if !is_one && !has_field(HOST) {
            return Err(format!("the log has no %{HOST}%, which says whose routes a request takes"));
        }
        let Reader { calls, left_out, names, .. } = reader;
        let host = (!is_one).then(|| Template::of_field(HOST, names));
        Ok((Routing { host, hosts, ignores_port: config.routes.ignore_port_in_host_matching }, calls, left_out))
    }

    /// Returns the index of what Envoy asks about the request of a line; `None` if it asks nothing.
    pub(in crate::replay) fn call(&self, values: &Values<'_>) -> Option<usize> {
        let routes = match &self.host {
            None => self.hosts.first().map(|(_, routes)| routes),
            Some(field) => self.routes_of(&field.fill(values)?),
        };
        let mut routes = routes?.iter();
        routes.find(|route| route.conditions.iter().all(|condition| condition.holds(values)))?.call
    }

    /// Returns the routes of a host: those of its name, of the longest suffix, of the longest prefix, or of all.
    fn routes_of(&self, host: &str) -> Option<&Vec<RouteOf>> {
        let host = host.to_ascii_lowercase();
        let host = match host.rsplit_once(':') {
            Some((name, port)) if self.ignores_port && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        let rank = |domain: &String| {
            let domain = domain.to_ascii_lowercase();
            if domain == host {
                return Some((3, 0));
            }
            if domain == "*" {
                return Some((0, 0));
            }
            let is_longer = host.len() >= domain.len();
            if let Some(suffix) = domain.strip_prefix('*') {
                return (is_longer && host.ends_with(suffix)).then_some((2, suffix.len()));
            }
            let prefix = domain.strip_suffix('*')?;
            (is_longer && host.starts_with(prefix)).then_some((1, prefix.len()))
        };
        let ranked = self
            .hosts
            .iter()
            .filter_map(|(domains, routes)| domains.iter().filter_map(rank).max().map(|rank| (rank, routes)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, routes)| routes)
    }
}

impl Reader<'_> {
    /// Tells what of the filter a replay does not do.
    fn tell_of_the_filter(&mut self) {
        let filter = &self.config.filter.config;
        if let Some(kind) = filter.request_type.as_deref().filter(|kind| !kind.is_empty() && *kind != "both") {
            self.left_out.push(format!("the filter's request_type {kind}: all requests are replayed"));
        }
        if filter.filter_enabled.is_some() {
            self.left_out.push("the filter's filter_enabled: all requests are replayed".to_owned());
        }
    }

    fn routes(&mut self, host: &VirtualHost) -> Vec<RouteOf> {
        if host.matcher.is_some() {
            self.left_out.push(format!("virtual host {}: its matcher is not read: none of its routes is", host.name));
        }
        let mut routes = Vec::new();
        for (index, route) in host.routes.iter().enumerate() {
            let name = if route.name.is_empty() { index.to_string() } else { route.name.clone() };
            let place = format!("virtual host {}, route {name}", host.name);
            match self.conditions(&route.matches) {
                Ok(conditions) => {
                    let call = route.route.as_ref().and_then(|action| self.call(&place, host, route, action));
                    routes.push(RouteOf { conditions, call });
                }
                Err(why) => self.left_out.push(format!("{place}: {why}: no request takes it")),
            }
        }
        routes
    }

    /// Returns the index of what Envoy asks about requests of a route, if it asks.
    fn call(&mut self, place: &str, host: &VirtualHost, route: &Route, action: &RouteAction) -> Option<usize> {
        let filter = &self.config.filter;
        let per_filter = [&route.typed_per_filter_config, &host.typed_per_filter_config];
        let per_filter = per_filter.into_iter().chain([&self.config.routes.typed_per_filter_config]);
        let per_route = match per_filter.filter_map(|all: &PerFilter| all.get(&filter.name)).next() {
            None => PerRoute::default(),
            Some(config) => PerRoute::read(config).unwrap_or_else(|error| {
                self.left_out.push(format!("{place}: typed_per_filter_config cannot be read: {error}"));
                PerRoute::default()
            }),
        };
        if per_route.disabled {
            return None;
        }
        let destination = match (&action.cluster, &action.cluster_header) {
            (Some(cluster), _) => Destination::Cluster(cluster.clone()),
            (None, Some(header)) => Destination::Field(format!("REQ({header})")),
            (None, None) => Destination::Field("UPSTREAM_CLUSTER".to_owned()),
        };
        let mut descriptors = Vec::new();
        let of_filter = ("the filter's rate_limits", &filter.config.rate_limits);
        let lists = [("rate_limits", &per_route.rate_limits), of_filter];
        if let Some((what, list)) = lists.into_iter().find(|(_, list)| !list.is_empty()) {
            self.add(place, what, list, Stage::All, &destination, &mut descriptors);
        } else {
            let stage = Stage::Of(filter.config.stage);
            self.add(place, "rate_limits", &action.rate_limits, stage, &destination, &mut descriptors);
            let is_host_asked = match per_route.vh_rate_limits {
                _ if action.include_vh_rate_limits => true,
                HostLimits::Override => action.rate_limits.is_empty(),
                HostLimits::Include => true,
                HostLimits::Ignore => false,
            };
            if is_host_asked {
                self.add(place, "its host's rate_limits", &host.rate_limits, stage, &destination, &mut descriptors);
            }
        }
        if descriptors.is_empty() {
            return None;
        }
        let domain = Some(per_route.domain).filter(|domain| !domain.is_empty());
        self.calls.push((domain.unwrap_or_else(|| filter.config.domain.clone()), descriptors));
        Some(self.calls.len() - 1)
    }

    /// Adds the descriptors of a list of `rate_limits`.
    fn add(
        &mut self,
        place: &str,
        what: &str,
        list: &[Value],
        stage: Stage,
        destination: &Destination,
        descriptors: &mut Vec<DescriptorMap>,
    ) {
        for (index, rate_limit) in list.iter().enumerate() {
            match self.descriptor(rate_limit, stage, destination) {
                Ok(descriptor) => descriptors.extend(descriptor),
                Err(why) => self.left_out.push(format!("{place}, {what}[{index}]: {why}")),
            }
        }
    }

    /// Returns the descriptor of one of `rate_limits`; `None` if it is of another stage.
    fn descriptor(
        &mut self,
        rate_limit: &Value,
        stage: Stage,
        destination: &Destination,
    ) -> Result<Option<DescriptorMap>, String> {
        let mut rate_limit: Map<String, Value> = Map::deserialize(rate_limit).map_err(|error| error.to_string())?;
        let of = rate_limit.remove("stage").as_ref().and_then(Value::as_u64).unwrap_or(0);
        if let Stage::Of(stage) = stage {
            if of != stage {
                return Ok(None);
            }
            // Envoy reads it in the lists of the filter alone.
            rate_limit.remove("hits_addend");
        }
        rate_limit.remove("disable_key");
        if rate_limit.remove("apply_on_stream_done").is_some_and(|done| done == Value::Bool(true)) {
            return Err("apply_on_stream_done: what is asked when a request ends is not replayed".to_owned());
        }
        if rate_limit.contains_key("limit") {
            return Err("limit: a limit from metadata is not replayed".to_owned());
        }
        let rate_limit: RateLimit =
            serde_json::from_value(Value::Object(rate_limit)).map_err(|error| error.to_string())?;
        let descriptor = rate_limit.descriptor(&mut self.context(Some(destination.clone())));
        descriptor.map(Some).map_err(|error| error.to_string())
    }

    fn context(&mut self, destination: Option<Destination>) -> Context<'_> {
        Context {
            names: self.names,
            has_field: self.has_field,
            needs_hits: true,
            is_formatted: self.config.formats_values,
            source_cluster: self.config.cluster.as_deref(),
            destination,
        }
    }

    /// Returns the conditions of a route.
    fn conditions(&mut self, matches: &Value) -> Result<Vec<Condition>, String> {
        let matches = RouteMatch::deserialize(matches).map_err(|error| format!("its match is not read: {error}"))?;
        let RouteMatch { prefix, path, safe_regex, path_separated_prefix, case_sensitive, .. } = matches;
        let path = prefix
            .map(TextTest::prefix)
            .or(path.map(TextTest::exact))
            .or(path_separated_prefix.map(TextTest::folder))
            .map(|test| test.ignoring_case(!case_sensitive));
        let path = match (path, safe_regex) {
            (Some(path), _) => Some(path),
            (None, Some(regex)) => Some(TextTest::regex(&regex)?),
            (None, None) => None,
        };
        let mut context = self.context(None);
        let why = |error: NoDescriptor| error.to_string();
        let mut conditions = Vec::new();
        if let Some(path) = path.filter(|path| !path.is_of_any_path()) {
            conditions.push(Condition::of_text(Subject::Path(context.field("REQ(:PATH)").map_err(why)?), path));
        }
        conditions.extend(context.headers(matches.headers).map_err(why)?);
        conditions.extend(context.parameters(matches.query_parameters, Subject::RawQuery).map_err(why)?);
        if matches.grpc.is_some() {
            let content_type = Subject::Field(context.field("REQ(CONTENT-TYPE)").map_err(why)?);
            let is_grpc = RegexMatcher::new(r"application/grpc(\+.*)?");
            conditions.push(Condition::of_text(content_type, TextTest::regex(&is_grpc)?));
        }
        Ok(conditions)
    }
}

/// Which of `rate_limits` apply.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// All: the lists of the filter itself have no stages.
    All,
    /// Those of this stage.
    Of(u64),
}

impl PerRoute {
    fn read(config: &Value) -> Result<PerRoute, serde_json::Error> {
        let is_wrapped = is_of_type(config, "route.v3.FilterConfig");
        let is_disabled = is_wrapped && config.get("disabled").and_then(Value::as_bool).unwrap_or(false);
        let per_route = match config.get("config") {
            Some(config) if is_wrapped => PerRoute::deserialize(config)?,
            None if is_wrapped => PerRoute::default(),
            _ => PerRoute::deserialize(config)?,
        };
        Ok(PerRoute { disabled: is_disabled, ..per_route })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    /// Returns the domain that Envoy asks for each host, with these virtual hosts: a name and its domains.
    fn asked(hosts: &[(&str, &str)], options: &str, asked: &[&str]) -> Vec<Option<String>> {
        let host = |(name, domains): &(&str, &str)| {
            format!(
                "{{name: {name}, domains: [{domains}], routes: [{{match: {{prefix: /}}, route: {{cluster: c}},
                 typed_per_filter_config: {{limit: {{domain: {name}, rate_limits: [{{actions: [
                 {{generic_key: {{descriptor_value: v}}}}]}}]}}}}}}]}}"
            )
        };
        let hosts: Vec<String> = hosts.iter().map(host).collect();
        let text = format!(
            "static_resources: {{listeners: [{{name: l, filter_chains: [{{filters: [{{typed_config: {{
             '@type': a.HttpConnectionManager, http_filters: [{{name: limit, typed_config: {{
             '@type': a.ratelimit.v3.RateLimit, domain: d}}}}],
             route_config: {{{options} virtual_hosts: [{}]}}}}}}]}}]}}]}}",
            hosts.join(",")
        );
        let config = EnvoyConfig::parse(&text, None, None).unwrap();
        let mut names = Names::default();
        let (routing, calls, left_out) = Routing::new(&config, &|_| true, &mut names).unwrap();
        assert_eq!(left_out, [""; 0]);
        let domain = |host: &&str| {
            let values = std::iter::once(Some(Cow::Borrowed(*host))).collect();
            Some(calls[routing.call(&values)?].0.clone())
        };
        asked.iter().map(domain).collect()
    }

    #[test]
    fn the_host_is_that_of_the_name_the_longest_suffix_the_longest_prefix_or_all() {
        let hosts = [
            ("all", "'*'"),
            ("prefix", "api.*, api.eu.*"),
            ("suffix", "'*.example'"),
            ("longer", "'*.eu.example'"),
            ("exact", "api.example, API.org"),
        ];
        let cases = [
            ("api.example", "exact"),
            ("api.ORG", "exact"),
            ("a.eu.example", "longer"),
            ("b.example", "suffix"),
            ("api.com", "prefix"),
            ("example", "all"),
            ("api.example:80", "prefix"),
        ];
        let told = asked(&hosts, "", &cases.map(|(host, _)| host));
        assert_eq!(told, cases.map(|(_, domain)| Some(domain.to_owned())));
        let told = asked(&hosts, "ignore_port_in_host_matching: true,", &["api.example:80", "[::1]", "x:y"]);
        assert_eq!(told, [Some("exact".to_owned()), Some("all".to_owned()), Some("all".to_owned())]);
        assert_eq!(asked(&hosts[3..], "", &["example", ".eu.example"]), [None, None]);
    }
}
