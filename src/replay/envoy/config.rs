//! The parts of a configuration that decide what Envoy asks: a bootstrap file, or the config dump of a running Envoy.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::replay::format::Format;
use crate::replay::template::{self, Part};

/// The setting of Envoy's runtime that allows fields in the values of descriptors.
const FORMATS_VALUES: &str = "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value";

/// What a connection manager of Envoy asks, about which requests, and how it logs them.
#[derive(Clone, Debug)]
pub struct EnvoyConfig {
    pub(super) filter: Filter,
    pub(super) routes: RouteConfiguration,
    /// The format of the access log; `None` if the configuration has none.
    pub(in crate::replay) format: Option<Format>,
    /// The name of Envoy's own cluster.
    pub(super) cluster: Option<String>,
    /// Whether the values of descriptors may have fields.
    pub(super) formats_values: bool,
}

/// The reason why a configuration does not say what Envoy asks.
#[derive(Debug, thiserror::Error)]
pub enum EnvoyError {
    /// The file is neither YAML nor JSON.
    #[error("it is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// A part has another form than Envoy's.
    #[error("{0} cannot be read: {1}")]
    Form(&'static str, serde_json::Error),
    /// No connection manager has a rate limit filter.
    #[error("no listener has an HTTP connection manager with the filter envoy.filters.http.ratelimit")]
    NoFilter,
    /// No rate limit filter is in this listener and asks this domain.
    #[error("no rate limit filter is the one that --listener and --domain name; there are: {0}")]
    Other(String),
    /// Several are.
    #[error("there are several rate limit filters, --listener NAME or --domain NAME says which: {0}")]
    Several(String),
    /// The routes are not in the file.
    #[error(
        "its routes ({0:?}) are not in the file: give the config dump of a running Envoy, \
         curl http://HOST:ADMIN_PORT/config_dump > dump.json"
    )]
    Elsewhere(String),
}

/// A rate limit filter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filter {
    /// Its name, under which routes configure it.
    pub(super) name: String,
    pub(super) config: FilterConfig,
}

/// `RateLimit` of the rate limit filter.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct FilterConfig {
    pub(super) domain: String,
    #[serde(default)]
    pub(super) stage: u64,
    pub(super) request_type: Option<String>,
    pub(super) filter_enabled: Option<Value>,
    #[serde(default)]
    pub(super) rate_limits: Vec<Value>,
}

pub(super) type PerFilter = BTreeMap<String, Value>;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RouteConfiguration {
    pub(super) name: String,
    pub(super) virtual_hosts: Vec<VirtualHost>,
    pub(super) typed_per_filter_config: PerFilter,
    pub(super) ignore_port_in_host_matching: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct VirtualHost {
    pub(super) name: String,
    pub(super) domains: Vec<String>,
    pub(super) routes: Vec<Route>,
    /// A tree of routes, which replaces the list.
    pub(super) matcher: Option<Value>,
    pub(super) rate_limits: Vec<Value>,
    pub(super) typed_per_filter_config: PerFilter,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Route {
    #[serde(default)]
    pub(super) name: String,
    #[serde(rename = "match")]
    pub(super) matches: Value,
    pub(super) route: Option<RouteAction>,
    #[serde(default)]
    pub(super) typed_per_filter_config: PerFilter,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RouteAction {
    pub(super) cluster: Option<String>,
    pub(super) cluster_header: Option<String>,
    pub(super) rate_limits: Vec<Value>,
    pub(super) include_vh_rate_limits: bool,
}

/// What a listener's connection manager has.
#[derive(Debug)]
struct Manager<'d> {
    listener: String,
    config: &'d Value,
    filter: Filter,
}

impl EnvoyConfig {
    /// Reads a bootstrap file or a config dump. If there are several rate limit filters, the listener and the domain
    /// say which.
    ///
    /// # Errors
    /// Fails if the text does not say what Envoy asks, or says it for several filters.
    pub fn parse(text: &str, listener: Option<&str>, domain: Option<&str>) -> Result<EnvoyConfig, EnvoyError> {
        let document: Value = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| EnvoyError::Syntax(error.to_string()))?
        } else {
            serde_saphyr::from_str(text).map_err(|error| EnvoyError::Syntax(error.to_string()))?
        };
        let document = Document::new(&document);
        let managers = document.managers()?;
        if managers.is_empty() {
            return Err(EnvoyError::NoFilter);
        }
        let is_meant = |manager: &&Manager<'_>| {
            listener.is_none_or(|name| manager.listener == name)
                && domain.is_none_or(|domain| manager.filter.config.domain == domain)
        };
        let meant: Vec<_> = managers.iter().filter(is_meant).collect();
        let Some(first) = meant.first() else { return Err(EnvoyError::Other(named(managers.iter()))) };
        let routes = document.routes(first)?;
        for other in &meant[1..] {
            if other.filter != first.filter || document.routes(other)? != routes {
                return Err(EnvoyError::Several(named(meant.iter().copied())));
            }
        }
        let bootstrap = document.bootstrap;
        Ok(EnvoyConfig {
            filter: first.filter.clone(),
            routes,
            format: list(first.config, "/access_log").find_map(log_format),
            cluster: bootstrap.and_then(|bootstrap| text_at(bootstrap, "/node/cluster")).map(str::to_owned),
            formats_values: bootstrap.is_some_and(formats_values),
        })
    }
}

/// Returns the listeners and domains of filters, for an error.
fn named<'m>(managers: impl Iterator<Item = &'m Manager<'m>>) -> String {
    let name = |Manager { listener, filter, .. }: &Manager<'_>| {
        format!("listener {listener} asks domain {}", filter.config.domain)
    };
    managers.map(name).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// The parts of a bootstrap file or of a config dump.
struct Document<'d> {
    bootstrap: Option<&'d Value>,
    listeners: Vec<&'d Value>,
    route_configs: Vec<&'d Value>,
}

impl<'d> Document<'d> {
    fn new(document: &'d Value) -> Document<'d> {
        if document.get("configs").is_none() {
            let listeners = list(document, "/static_resources/listeners").collect();
            return Document { bootstrap: Some(document), listeners, route_configs: Vec::new() };
        }
        let each = |path: &'static str| list(document, "/configs").flat_map(move |config| list(config, path));
        let fixed = each("/static_listeners").filter_map(|one| one.get("listener"));
        let dynamic = each("/dynamic_listeners").filter_map(|one| one.pointer("/active_state/listener"));
        let route_configs = each("/static_route_configs").chain(each("/dynamic_route_configs"));
        Document {
            bootstrap: list(document, "/configs").find_map(|config| config.get("bootstrap")),
            listeners: fixed.chain(dynamic).collect(),
            route_configs: route_configs.filter_map(|one| one.get("route_config")).collect(),
        }
    }

    /// Returns each rate limit filter with its connection manager.
    fn managers(&self) -> Result<Vec<Manager<'d>>, EnvoyError> {
        let mut managers = Vec::new();
        for listener in &self.listeners {
            let name = text_at(listener, "/name").unwrap_or("without a name");
            let chains = list(listener, "/filter_chains").chain(listener.get("default_filter_chain"));
            let filters = chains.flat_map(|chain| list(chain, "/filters"));
            for config in filters.filter_map(|filter| typed(filter, "HttpConnectionManager")) {
                for filter in list(config, "/http_filters") {
                    let Some(of_filter) = typed(filter, "ratelimit.v3.RateLimit") else { continue };
                    let filter = Filter {
                        name: text_at(filter, "/name").unwrap_or_default().to_owned(),
                        config: read("the rate limit filter", of_filter)?,
                    };
                    managers.push(Manager { listener: name.to_owned(), config, filter });
                }
            }
        }
        Ok(managers)
    }

    /// Returns the routes of a connection manager.
    fn routes(&self, manager: &Manager<'_>) -> Result<RouteConfiguration, EnvoyError> {
        if let Some(routes) = manager.config.get("route_config") {
            return read("route_config", routes);
        }
        let name = text_at(manager.config, "/rds/route_config_name").unwrap_or_default();
        let routes = self.route_configs.iter().find(|routes| text_at(routes, "/name").unwrap_or_default() == name);
        read("the route configuration", routes.ok_or_else(|| EnvoyError::Elsewhere(name.to_owned()))?)
    }
}

pub(super) fn read<T: for<'d> Deserialize<'d>>(what: &'static str, value: &Value) -> Result<T, EnvoyError> {
    T::deserialize(value).map_err(|error| EnvoyError::Form(what, error))
}

/// Returns the items of the list at a path, if there is one.
fn list<'v>(value: &'v Value, path: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

fn text_at<'v>(value: &'v Value, path: &str) -> Option<&'v str> {
    value.pointer(path)?.as_str()
}

/// Returns the configuration of a filter, if its type has this name at the end.
fn typed<'v>(filter: &'v Value, name: &str) -> Option<&'v Value> {
    filter.get("typed_config").filter(|config| is_of_type(config, name))
}

/// Returns whether a message has a type with this name at the end.
pub(super) fn is_of_type(message: &Value, name: &str) -> bool {
    text_at(message, "/@type").and_then(|named| named.strip_suffix(name)).is_some_and(|before| before.ends_with('.'))
}

/// Returns the format of an access log that writes lines.
fn log_format(log: &Value) -> Option<Format> {
    let config = log.get("typed_config")?;
    if !["FileAccessLog", "StdoutAccessLog", "StderrAccessLog"].iter().any(|name| is_of_type(config, name)) {
        return None;
    }
    let of_json = |json: &Value| {
        let mut fields = Vec::new();
        add_fields("", json, &mut fields);
        Format::Keyed(fields)
    };
    let paths = ["/log_format/text_format_source/inline_string", "/log_format/text_format", "/format"];
    let text = paths.iter().find_map(|path| text_at(config, path));
    let json = ["/log_format/json_format", "/json_format", "/typed_json_format"];
    let json = json.iter().find_map(|path| config.pointer(path));
    Some(match (text, json) {
        (Some(text), _) => Format::Text(text.to_owned()),
        (None, Some(json)) => of_json(json),
        (None, None) => Format::envoy(),
    })
}

/// Adds the operators of a JSON format that are values of their own, each with its key.
fn add_fields(key: &str, value: &Value, fields: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                add_fields(&key, value, fields);
            }
        }
        Value::String(text) => {
            if let Ok([Part::Field(operator)]) = template::parts(text).as_deref() {
                fields.push(((*operator).to_owned(), key.to_owned()));
            }
        }
        _ => {}
    }
}

/// Returns whether the runtime of a bootstrap allows fields in the values of descriptors.
fn formats_values(bootstrap: &Value) -> bool {
    let is_set = |layer: &Value| {
        let flat = layer.get(FORMATS_VALUES);
        let nested = || layer.pointer(&format!("/{}", FORMATS_VALUES.replace('.', "/")));
        flat.or_else(nested).and_then(Value::as_bool)
    };
    let layers = list(bootstrap, "/layered_runtime/layers").filter_map(|layer| layer.get("static_layer"));
    layers.filter_map(is_set).last().unwrap_or(false)
}
