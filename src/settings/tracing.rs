//! Settings of traces: the variables of `envoyproxy/ratelimit`, and those that OpenTelemetry has for all programs.
//!
//! The latter may be set for other programs, with values that this process does not support. So they are read as text
//! and checked only while traces are exported, and an unknown value in them causes a warning and no error. Settings for
//! this process (TRACING_*) take precedence over those for all programs.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use clap::{ArgAction, Args};

use super::otel::{self, Pairs};
use super::path::path;
use super::tolerated::share_or_nearest;
use super::{PeerTls, SettingsError, named, share, switch, whole};
use crate::spans::{Collector, Decider, Propagators, Protocol, Queue, Resource, Sampling, SpanOptions};
use crate::tls::{self, ClientFiles, Expected, NamedFile, Trusted};

/// Path that the OTLP exporter appends to an address for all signals.
const TRACES: &str = "/v1/traces";

/// Settings of traces.
#[derive(Args, Clone, Debug)]
pub struct TracingSettings {
    /// Export spans to an OpenTelemetry collector: one for each sampled call, with child spans for its calls to the
    /// store.
    #[arg(long, env = "TRACING_ENABLED", help_heading = "Tracing", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub tracing_enabled: bool,

    /// Protocol to the collector: http is OTLP in protobuf over HTTP, grpc is OTLP over gRPC. Unset:
    /// OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, or OTEL_EXPORTER_OTLP_PROTOCOL, or http.
    #[arg(long, env = "TRACING_EXPORTER_PROTOCOL", value_name = "PROTOCOL", help_heading = "Tracing",
        ignore_case = true, value_parser = named(&Protocol::ALL, Protocol::name))]
    pub tracing_exporter_protocol: Option<Protocol>,

    /// Share of calls to sample, from 0 to 1, if the caller has not decided: it sends no trace, or leaves the sampling
    /// of its trace open. Unset: OTEL_TRACES_SAMPLER decides, or all of these calls are sampled.
    #[arg(long, env = "TRACING_SAMPLING_RATE", value_name = "SHARE", help_heading = "Tracing",
        value_parser = share_or_nearest)]
    pub tracing_sampling_rate: Option<f64>,

    /// Name of the service in traces. Unset: OTEL_SERVICE_NAME, or service.name in OTEL_RESOURCE_ATTRIBUTES, or
    /// RateLimit.
    #[arg(long, env = "TRACING_SERVICE_NAME", value_name = "NAME", help_heading = "Tracing")]
    pub tracing_service_name: Option<String>,

    /// Namespace of the service in traces.
    #[arg(long, env = "TRACING_SERVICE_NAMESPACE", value_name = "NAME", help_heading = "Tracing")]
    pub tracing_service_namespace: Option<String>,

    /// Name of this process in traces. Unset: service.instance.id in OTEL_RESOURCE_ATTRIBUTES, or a random UUID.
    #[arg(long, env = "TRACING_SERVICE_INSTANCE_ID", value_name = "NAME", help_heading = "Tracing")]
    pub tracing_service_instance_id: Option<String>,

    /// URL of the collector. Over HTTP, /v1/traces is appended. https:// means TLS. Unset: http://localhost:4318, or
    /// http://localhost:4317 over gRPC.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "Tracing"
    )]
    pub otel_exporter_otlp_endpoint: Option<String>,

    /// URL of the collector for traces, used as written. It takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "Tracing"
    )]
    pub otel_exporter_otlp_traces_endpoint: Option<String>,

    /// Protocol to the collector if TRACING_EXPORTER_PROTOCOL is unset: http/protobuf or grpc.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_PROTOCOL", value_name = "PROTOCOL", help_heading = "Tracing")]
    pub otel_exporter_otlp_protocol: Option<String>,

    /// Protocol for traces. It takes precedence over OTEL_EXPORTER_OTLP_PROTOCOL.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", value_name = "PROTOCOL", help_heading = "Tracing")]
    pub otel_exporter_otlp_traces_protocol: Option<String>,

    /// File with the only authorities (PEM) to trust for the collector's certificate. Unset: public authorities and
    /// those of the machine. The files for TLS are read again for each new connection.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_certificate: Option<PathBuf>,

    /// File with the authorities for traces. It takes precedence over OTEL_EXPORTER_OTLP_CERTIFICATE.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_traces_certificate: Option<PathBuf>,

    /// File with the certificate (PEM) to send if the collector asks for one, followed by any intermediate
    /// certificates.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_client_certificate: Option<PathBuf>,

    /// File with the client's certificate for traces. It takes precedence over OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_traces_client_certificate: Option<PathBuf>,

    /// File with the private key (PEM) of OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, without a passphrase.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CLIENT_KEY", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_client_key: Option<PathBuf>,

    /// File with the private key for traces. It takes precedence over OTEL_EXPORTER_OTLP_CLIENT_KEY.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", value_name = "FILE", help_heading = "Tracing",
        value_parser = path)]
    pub otel_exporter_otlp_traces_client_key: Option<PathBuf>,

    /// Headers to send to the collector: NAME=VALUE, separated by commas, with percent-encoded values.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        value_name = "HEADERS",
        hide_env_values = true,
        help_heading = "Tracing"
    )]
    pub otel_exporter_otlp_headers: Option<String>,

    /// Headers for traces. They take precedence over OTEL_EXPORTER_OTLP_HEADERS.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        value_name = "HEADERS",
        hide_env_values = true,
        help_heading = "Tracing"
    )]
    pub otel_exporter_otlp_traces_headers: Option<String>,

    /// Compression of batches of spans: gzip or none.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_COMPRESSION", value_name = "KIND", help_heading = "Tracing")]
    pub otel_exporter_otlp_compression: Option<String>,

    /// Compression for traces. It takes precedence over OTEL_EXPORTER_OTLP_COMPRESSION.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", value_name = "KIND", help_heading = "Tracing")]
    pub otel_exporter_otlp_traces_compression: Option<String>,

    /// Longest time to send a batch of spans, including retries, in milliseconds.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TIMEOUT", value_name = "MILLISECONDS", default_value = "10000",
        help_heading = "Tracing", value_parser = whole(1..=600_000_u64))]
    pub otel_exporter_otlp_timeout: u64,

    /// Longest time for traces, in milliseconds. It takes precedence over OTEL_EXPORTER_OTLP_TIMEOUT.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", value_name = "MILLISECONDS", help_heading = "Tracing",
        value_parser = whole(1..=600_000_u64))]
    pub otel_exporter_otlp_traces_timeout: Option<u64>,

    /// Name of the service in traces if TRACING_SERVICE_NAME is unset.
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME", help_heading = "Tracing")]
    pub otel_service_name: Option<String>,

    /// Attributes of this process in traces: NAME=VALUE, separated by commas, with percent-encoded values.
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES", value_name = "ATTRIBUTES", help_heading = "Tracing")]
    pub otel_resource_attributes: Option<String>,

    /// Sampler if TRACING_SAMPLING_RATE is unset: always_on, always_off or traceidratio ignore the caller's decision;
    /// with the prefix parentbased_ they apply only to calls without a decision of the caller.
    #[arg(long, env = "OTEL_TRACES_SAMPLER", value_name = "SAMPLER", help_heading = "Tracing")]
    pub otel_traces_sampler: Option<String>,

    /// Share that traceidratio samples, from 0 to 1. Unset: all.
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", value_name = "SHARE", help_heading = "Tracing")]
    pub otel_traces_sampler_arg: Option<String>,

    /// Headers that identify a caller's trace, separated by commas: tracecontext (W3C), b3 and b3multi (each reads both
    /// forms), or none. Unset: all of them.
    #[arg(long, env = "OTEL_PROPAGATORS", value_name = "NAMES", help_heading = "Tracing")]
    pub otel_propagators: Option<String>,

    /// Longest time for which a span waits for others to be sent with it, in milliseconds.
    #[arg(long, env = "OTEL_BSP_SCHEDULE_DELAY", value_name = "MILLISECONDS", default_value = "5000",
        help_heading = "Tracing", value_parser = whole(1..=600_000_u64))]
    pub otel_bsp_schedule_delay: u64,

    /// Most spans that may wait for the collector. Further spans are dropped.
    #[arg(long, env = "OTEL_BSP_MAX_QUEUE_SIZE", value_name = "NUMBER", default_value = "2048",
        help_heading = "Tracing", value_parser = whole(1..=1_000_000_usize))]
    pub otel_bsp_max_queue_size: usize,

    /// Most spans in a batch.
    #[arg(long, env = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", value_name = "NUMBER", default_value = "512",
        help_heading = "Tracing", value_parser = whole(1..=1_000_000_usize))]
    pub otel_bsp_max_export_batch_size: usize,

    /// Turn off the export, whatever TRACING_ENABLED says.
    #[arg(long, env = "OTEL_SDK_DISABLED", help_heading = "Tracing", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub otel_sdk_disabled: bool,
}

impl TracingSettings {
    /// Returns the options of the export; `None` if it is off.
    ///
    /// # Errors
    /// Fails if a setting of the collector or an attribute is invalid.
    pub fn exporting(&self) -> Result<Option<SpanOptions>, SettingsError> {
        if !self.is_on() {
            return Ok(None);
        }
        let headers = match self.headers() {
            Some((name, headers)) => Some(otel::headers(headers).map_err(|reason| SettingsError::Otel(name, reason))?),
            None => None,
        };
        let timeout = self.otel_exporter_otlp_traces_timeout.unwrap_or(self.otel_exporter_otlp_timeout);
        Ok(Some(SpanOptions {
            sampling: self.sampling(),
            resource: self.resource()?,
            collector: Collector {
                protocol: self.protocol(),
                endpoint: self.endpoint()?.to_string(),
                headers: headers.map(|Pairs(headers)| headers.into_iter().collect()).unwrap_or_default(),
                compression: self.compression().and_then(|(_, word)| otel::compression(word)).unwrap_or_default(),
                timeout: Duration::from_millis(timeout),
            },
            handshake: None,
            queue: Queue {
                capacity: self.otel_bsp_max_queue_size,
                batch: self.otel_bsp_max_export_batch_size,
                delay: Duration::from_millis(self.otel_bsp_schedule_delay),
            },
        }))
    }

    /// Returns the files for TLS with the collector; `None` without TLS.
    ///
    /// # Errors
    /// Fails if only one of the two files is set, or if the collector's URL is invalid.
    pub fn tls(&self) -> Result<Option<PeerTls>, SettingsError> {
        if !self.is_on() {
            return Ok(None);
        }
        let endpoint = self.endpoint()?;
        let Some(host) = endpoint.host().filter(|_| endpoint.scheme_str() == Some("https")) else { return Ok(None) };
        let [authorities, chain, key] = self.files();
        let identity = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err(SettingsError::Otel(one.name, otel::HALF_IDENTITY.to_owned()));
            }
        };
        let trusted = match authorities {
            Some(file) => Trusted::Only(file, Expected::Name),
            None => Trusted::Machine(Expected::Name),
        };
        let protocol = match self.protocol() {
            Protocol::Http => tls::Protocol::Unnamed,
            Protocol::Grpc => tls::Protocol::Grpc,
        };
        let name = host.trim_matches(['[', ']']).to_owned();
        Ok(Some(PeerTls { files: ClientFiles { trusted, identity, protocol }, name }))
    }

    /// Returns the files of the authorities, the certificate and its key, with the settings that name them.
    fn files(&self) -> [Option<NamedFile>; 3] {
        let file = |name, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { name, path });
        [
            file("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &self.otel_exporter_otlp_traces_certificate)
                .or_else(|| file("OTEL_EXPORTER_OTLP_CERTIFICATE", &self.otel_exporter_otlp_certificate)),
            file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", &self.otel_exporter_otlp_traces_client_certificate)
                .or_else(|| file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &self.otel_exporter_otlp_client_certificate)),
            file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", &self.otel_exporter_otlp_traces_client_key)
                .or_else(|| file("OTEL_EXPORTER_OTLP_CLIENT_KEY", &self.otel_exporter_otlp_client_key)),
        ]
    }

    fn is_on(&self) -> bool {
        self.tracing_enabled && !self.otel_sdk_disabled
    }

    fn protocol(&self) -> Protocol {
        let otel = || self.otel_protocol().and_then(|(_, word)| otel::protocol(word));
        self.tracing_exporter_protocol.or_else(otel).unwrap_or_default()
    }

    fn otel_protocol(&self) -> Option<(&'static str, &str)> {
        first([
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", &self.otel_exporter_otlp_traces_protocol),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", &self.otel_exporter_otlp_protocol),
        ])
    }

    fn compression(&self) -> Option<(&'static str, &str)> {
        first([
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &self.otel_exporter_otlp_traces_compression),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", &self.otel_exporter_otlp_compression),
        ])
    }

    fn headers(&self) -> Option<(&'static str, &str)> {
        first([
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", &self.otel_exporter_otlp_traces_headers),
            ("OTEL_EXPORTER_OTLP_HEADERS", &self.otel_exporter_otlp_headers),
        ])
    }

    fn endpoint(&self) -> Result<Uri, SettingsError> {
        let (default, path) = match self.protocol() {
            Protocol::Http => ("http://localhost:4318", TRACES),
            Protocol::Grpc => ("http://localhost:4317", ""),
        };
        let (setting, whole) = match (&self.otel_exporter_otlp_traces_endpoint, &self.otel_exporter_otlp_endpoint) {
            (Some(endpoint), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.clone()),
            (None, base) => {
                let base = base.as_deref().unwrap_or(default);
                ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{}{path}", base.trim_end_matches('/')))
            }
        };
        otel::endpoint(&whole).map_err(|reason| SettingsError::Otel(setting, reason))
    }

    fn sampling(&self) -> Sampling {
        let sampler = self.otel_traces_sampler.as_deref().and_then(otel::sampler);
        let (decider, share) = match (self.tracing_sampling_rate, sampler) {
            (Some(rate), _) => (Decider::Caller, rate),
            (None, None) => (Decider::Caller, 1.0),
            (None, Some((decider, Some(share)))) => (decider, share),
            (None, Some((decider, None))) => (decider, self.sampler_share().unwrap_or(1.0)),
        };
        let propagators = match &self.otel_propagators {
            Some(names) => otel::propagators(names).0,
            None => Propagators { trace_context: true, b3: true },
        };
        Sampling { decider, share, propagators }
    }

    fn sampler_share(&self) -> Option<f64> {
        share(self.otel_traces_sampler_arg.as_deref()?).ok()
    }

    fn resource(&self) -> Result<Resource, SettingsError> {
        let attributes = otel::pairs(self.otel_resource_attributes.as_deref().unwrap_or_default());
        let Pairs(mut attributes) =
            attributes.map_err(|reason| SettingsError::Otel("OTEL_RESOURCE_ATTRIBUTES", reason))?;
        let mut take = |name: &str| {
            let place = attributes.iter().rposition(|(known, _)| known == name)?;
            let (_, value) = attributes.swap_remove(place);
            attributes.retain(|(known, _)| known != name);
            Some(value)
        };
        let (service, instance) = (take("service.name"), take("service.instance.id"));
        let namespace = take("service.namespace");
        let service = self.tracing_service_name.clone().or_else(|| self.otel_service_name.clone()).or(service);
        let namespace = self.tracing_service_namespace.clone().or(namespace);
        attributes.extend(namespace.map(|namespace| ("service.namespace".to_owned(), namespace)));
        Ok(Resource {
            service: service.unwrap_or_else(|| "RateLimit".to_owned()),
            instance: self.tracing_service_instance_id.clone().or(instance),
            attributes,
        })
    }

    /// Returns the settings that are not in force as written, each with what applies instead. While the export is off,
    /// OpenTelemetry's settings are left out: they may be meant for other programs.
    pub fn remarks(&self) -> Vec<(&'static str, String)> {
        if self.is_on() { self.of_sampling().chain(self.of_the_way()).collect() } else { Vec::new() }
    }

    fn of_sampling(&self) -> impl Iterator<Item = (&'static str, String)> {
        const ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
        let said = self.otel_traces_sampler.as_deref();
        let known = said.and_then(otel::sampler);
        let sampler = match (said, known) {
            (Some(_), _) if self.tracing_sampling_rate.is_some() => {
                Some("does nothing: TRACING_SAMPLING_RATE decides".to_owned())
            }
            (Some(_), None) => Some(format!("is unknown, parentbased_always_on is used instead: {}", otel::SAMPLERS)),
            _ => None,
        };
        let arg = self.otel_traces_sampler_arg.as_ref().and_then(|_| match known {
            _ if self.tracing_sampling_rate.is_some() => Some("does nothing: TRACING_SAMPLING_RATE decides".to_owned()),
            Some((_, None)) if self.sampler_share().is_none() => {
                Some("is not a number from 0 to 1: all traces are sampled, as with 1".to_owned())
            }
            Some((_, None)) => None,
            _ => Some("does nothing: OTEL_TRACES_SAMPLER is not traceidratio".to_owned()),
        });
        let propagators = self.otel_propagators.as_deref().map(|names| otel::propagators(names).1);
        let propagators = propagators.filter(|unknown| !unknown.is_empty()).map(|unknown| {
            format!("names {}, which is ignored: tracecontext, b3 and b3multi are supported", unknown.join(", "))
        });
        let all = [("OTEL_TRACES_SAMPLER", sampler), (ARG, arg), ("OTEL_PROPAGATORS", propagators)];
        all.into_iter().filter_map(|(name, remark)| Some((name, remark?)))
    }

    /// Returns remarks on settings of the connection to the collector.
    fn of_the_way(&self) -> impl Iterator<Item = (&'static str, String)> {
        let protocol = self.otel_protocol().and_then(|(name, word)| {
            let taken = self.protocol().name();
            match (self.tracing_exporter_protocol, otel::protocol(word)) {
                (Some(ours), known) if known != Some(ours) => {
                    Some((name, format!("does nothing: TRACING_EXPORTER_PROTOCOL={taken} takes precedence")))
                }
                (None, None) => Some((name, format!("is unknown, {taken} is used instead: {}", otel::PROTOCOLS))),
                _ => None,
            }
        });
        let compression = self.compression().filter(|(_, word)| otel::compression(word).is_none());
        let compression =
            compression.map(|(name, _)| (name, "is unknown, none is used instead: write gzip or none".into()));
        let is_plain = self.endpoint().is_ok_and(|endpoint| endpoint.scheme_str() != Some("https"));
        let idle = self.files().into_iter().flatten().filter(move |_| is_plain);
        let idle = idle.map(|file| (file.name, "does nothing: the collector's URL is not https://".to_owned()));
        protocol.into_iter().chain(compression).chain(idle)
    }
}

/// Returns the first value that is set, with its name.
fn first<'s, const N: usize>(all: [(&'static str, &'s Option<String>); N]) -> Option<(&'static str, &'s str)> {
    all.into_iter().find_map(|(name, value)| Some((name, value.as_deref()?)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        tracing: TracingSettings,
    }

    fn settings(flags: &[&str]) -> TracingSettings {
        Alone::parse_from(["tollgate", "--tracing-enabled"].iter().chain(flags)).tracing
    }

    fn options(flags: &[&str]) -> SpanOptions {
        settings(flags).exporting().unwrap().unwrap()
    }

    #[test]
    fn the_endpoint_of_traces_is_taken_as_it_is_and_the_one_of_all_gets_its_path() {
        for (flags, endpoint) in [
            (&[][..], "http://localhost:4318/v1/traces"),
            (&["--tracing-exporter-protocol", "GRPC"], "http://localhost:4317/"),
            (&["--otel-exporter-otlp-protocol=grpc"], "http://localhost:4317/"),
            (&["--otel-exporter-otlp-endpoint", "http://c:1/"], "http://c:1/v1/traces"),
            (&["--otel-exporter-otlp-endpoint=http://c:1", "--tracing-exporter-protocol=grpc"], "http://c:1/"),
            (
                &["--otel-exporter-otlp-endpoint=http://c:1", "--otel-exporter-otlp-traces-endpoint=http://d"],
                "http://d/",
            ),
        ] {
            assert_eq!(options(flags).collector.endpoint, endpoint, "{flags:?}");
        }
    }

    #[test]
    fn what_is_for_traces_comes_before_what_is_for_all() {
        let all = ["--otel-exporter-otlp-headers", "a=1,b=2%2C3", "--otel-exporter-otlp-timeout", "7"];
        let both = options(&all);
        assert_eq!((both.collector.headers["a"].as_str(), both.collector.headers["b"].as_str()), ("1", "2,3"));
        assert_eq!(both.collector.timeout, Duration::from_millis(7));
        let traces = ["--otel-exporter-otlp-traces-headers", "c=4", "--otel-exporter-otlp-traces-timeout", "9"];
        let traces = options(&[all, traces].concat());
        assert_eq!((traces.collector.headers.len(), traces.collector.headers["c"].as_str()), (1, "4"));
        assert_eq!(traces.collector.timeout, Duration::from_millis(9));
    }

    #[test]
    fn the_names_of_the_service_are_ours_then_opentelemetrys_then_the_references() {
        let attributes = "--otel-resource-attributes=service.name=c,service.instance.id=i,service.namespace=n,zone=z";
        let resource = |flags: &[&str]| options(flags).resource;
        assert_eq!(resource(&[]).service, "RateLimit");
        let of_attributes = resource(&[attributes]);
        assert_eq!((of_attributes.service.as_str(), of_attributes.instance.as_deref()), ("c", Some("i")));
        assert_eq!(resource(&[attributes, "--otel-service-name=b"]).service, "b");
        let ours = ["--tracing-service-name=a", "--tracing-service-namespace=m", "--tracing-service-instance-id=j"];
        let ours = resource(&[&[attributes, "--otel-service-name=b"], &ours[..]].concat());
        assert_eq!((ours.service.as_str(), ours.instance.as_deref()), ("a", Some("j")));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(ours.attributes, [pair("zone", "z"), pair("service.namespace", "m")]);
    }

    #[test]
    fn what_cannot_be_is_refused_but_only_while_spans_are_exported() {
        for (setting, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ] {
            let flag = format!("--{}={value}", setting.to_lowercase().replace('_', "-"));
            let error = settings(&[&flag]).exporting().err();
            assert_eq!(error.and_then(|error| error.setting()), Some(setting), "{flag}");
            assert!(settings(&[&flag, "--otel-sdk-disabled"]).exporting().unwrap().is_none(), "{flag}");
        }
    }

    #[test]
    fn tls_is_spoken_with_https_and_needs_both_or_neither_of_what_it_shows() {
        const HTTPS: &str = "--otel-exporter-otlp-endpoint=https://[::1]:4318";
        let tls = |flags: &[&str]| settings(flags).tls();
        assert_eq!(tls(&["--otel-exporter-otlp-certificate=ca"]).unwrap(), None);
        let PeerTls { files, name } = tls(&[HTTPS]).unwrap().unwrap();
        assert_eq!((name.as_str(), files.trusted, files.identity), ("::1", Trusted::Machine(Expected::Name), None));
        assert_eq!(files.protocol, tls::Protocol::Unnamed);
        let all = [
            HTTPS,
            "--otel-exporter-otlp-certificate=all",
            "--otel-exporter-otlp-traces-certificate=ca",
            "--otel-exporter-otlp-client-certificate=cert",
            "--otel-exporter-otlp-client-key=key",
            "--tracing-exporter-protocol=grpc",
        ];
        let files = tls(&all).unwrap().unwrap().files;
        let file = |name, path: &str| NamedFile { name, path: path.into() };
        let authorities = file("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "ca");
        assert_eq!(files.trusted, Trusted::Only(authorities, Expected::Name));
        let chain = file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert");
        assert_eq!(files.identity, Some((chain, file("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key"))));
        assert_eq!(files.protocol, tls::Protocol::Grpc);
        let half = tls(&[HTTPS, "--otel-exporter-otlp-client-key=key"]).unwrap_err();
        assert_eq!(half.setting(), Some("OTEL_EXPORTER_OTLP_CLIENT_KEY"));
    }

    #[test]
    fn samplers_are_those_of_opentelemetry_and_the_rate_of_the_reference_comes_first() {
        use Decider::{Caller, Share};
        const ARG: &str = "--otel-traces-sampler-arg=0.25";
        for (flags, decider, share) in [
            (&[][..], Caller, 1.0),
            (&["--tracing-sampling-rate=0.5"], Caller, 0.5),
            (&["--otel-traces-sampler=always_on"], Share, 1.0),
            (&["--otel-traces-sampler=always_off"], Share, 0.0),
            (&["--otel-traces-sampler=traceidratio", ARG], Share, 0.25),
            (&["--otel-traces-sampler=parentbased_always_on"], Caller, 1.0),
            (&["--otel-traces-sampler=parentbased_always_off"], Caller, 0.0),
            (&["--otel-traces-sampler=parentbased_traceidratio", ARG], Caller, 0.25),
            (&["--otel-traces-sampler=parentbased_traceidratio"], Caller, 1.0),
            (&["--otel-traces-sampler=always_off", "--tracing-sampling-rate=0.5"], Caller, 0.5),
            (&["--otel-traces-sampler=xray", ARG], Caller, 1.0),
        ] {
            let sampling = options(flags).sampling;
            assert_eq!((sampling.decider, sampling.share), (decider, share), "{flags:?}");
        }
    }

    #[test]
    fn what_is_not_done_as_it_says_is_told_by_its_name() {
        let told = |flags: &[&str]| -> Vec<_> { settings(flags).remarks().into_iter().map(|(name, _)| name).collect() };
        assert_eq!(told(&["--otel-traces-sampler=always_on", "--otel-propagators=tracecontext,baggage,b3"]), [""; 0]);
        assert_eq!(told(&["--otel-traces-sampler=xray"]), ["OTEL_TRACES_SAMPLER"]);
        assert_eq!(told(&["--otel-traces-sampler=traceidratio", "--otel-traces-sampler-arg=0.1"]), [""; 0]);
        for sampler in [&["--otel-traces-sampler=traceidratio"][..], &["--otel-traces-sampler=always_on"], &[]] {
            let flags = [sampler, &["--otel-traces-sampler-arg=x"]].concat();
            assert_eq!(told(&flags), ["OTEL_TRACES_SAMPLER_ARG"], "{sampler:?}");
        }
        let both = ["--tracing-sampling-rate=1", "--otel-traces-sampler=always_off", "--otel-traces-sampler-arg=1"];
        assert_eq!(told(&both), ["OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"]);
        assert_eq!(told(&["--otel-propagators=jaeger"]), ["OTEL_PROPAGATORS"]);
        assert_eq!(told(&["--otel-exporter-otlp-protocol=http/json"]), ["OTEL_EXPORTER_OTLP_PROTOCOL"]);
        assert_eq!(told(&["--otel-exporter-otlp-traces-protocol=http/protobuf"]), [""; 0]);
        let ours = ["--tracing-exporter-protocol=http", "--otel-exporter-otlp-protocol=grpc"];
        assert_eq!(told(&ours), ["OTEL_EXPORTER_OTLP_PROTOCOL"]);
        assert_eq!(told(&["--otel-exporter-otlp-compression=zstd"]), ["OTEL_EXPORTER_OTLP_COMPRESSION"]);
        assert_eq!(told(&["--otel-exporter-otlp-certificate=ca"]), ["OTEL_EXPORTER_OTLP_CERTIFICATE"]);
        assert_eq!(told(&["--otel-sdk-disabled", "--otel-propagators=jaeger"]), [""; 0]);
    }
}
