//! `tollgate ask`: one question to a running service, and its answer for people or for scripts.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::client::{Service, ServiceAddress};
use crate::counters;
use crate::descriptor::Entry;
use crate::settings;
use crate::wire::rate_limit_response::rate_limit::Unit;
use crate::wire::rate_limit_response::{Code, DescriptorStatus};
use crate::wire::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient, rate_limit_descriptor,
};

/// Ask a running service whether a request would pass; the question counts.
///
/// Exits with 0 if the request passes, 2 if it is limited, and 1 if no answer could be had.
#[derive(Args)]
pub(super) struct Ask {
    /// The entries of the descriptor; a lone + begins another descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// The domain of the rules.
    #[arg(long, short)]
    domain: String,

    /// How much to count; 0 is a peek.
    #[arg(long, default_value = "1", value_parser = settings::whole(0..=u64::MAX))]
    hits: u64,

    /// Refund the hits instead of taking them.
    #[arg(long)]
    refund: bool,

    #[command(flatten)]
    service: ServiceAddress,

    /// How long to wait for the answer. A request that would be delayed for longer is limited.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Print the answer as one JSON object.
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(ask: Ask) -> anyhow::Result<ExitCode> {
    let descriptors = descriptors(&ask)?;
    let request = RateLimitRequest { domain: ask.domain.clone(), descriptors: descriptors.clone(), hits_addend: 0 };
    let mut request = tonic::Request::new(request);
    // The service knows the deadline, too: as with Envoy, it denies a request at once that would be delayed for longer.
    request.set_timeout(ask.timeout);
    let service = Service::connect(&ask.service, ask.timeout).await?;
    let response = match RateLimitServiceClient::new(service.channel.clone()).should_rate_limit(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Err(service.refusal(&status).await),
    };
    print!("{}", if ask.json { as_json(&response) } else { for_people(&descriptors, &response) });
    Ok(match response.overall_code() {
        Code::OverLimit => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    })
}

fn descriptors(ask: &Ask) -> anyhow::Result<Vec<RateLimitDescriptor>> {
    ask.entries
        .split(|argument| argument == "+")
        .map(|entries| {
            let entries = counters::entries(entries)?.into_iter();
            Ok(RateLimitDescriptor {
                entries: entries.map(|Entry { key, value }| rate_limit_descriptor::Entry { key, value }).collect(),
                hits_addend: Some(ask.hits),
                is_negative_hits: ask.refund,
                ..RateLimitDescriptor::default()
            })
        })
        .collect()
}

fn for_people(descriptors: &[RateLimitDescriptor], response: &RateLimitResponse) -> String {
    let mut text = match response.overall_code() {
        Code::OverLimit => String::from("LIMITED\n"),
        _ => String::from("passed\n"),
    };
    for (descriptor, status) in descriptors.iter().zip(&response.statuses) {
        let entries: Vec<_> = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let _ = writeln!(text, "  {}: {}", entries.join(" "), status_for_people(status));
    }
    for header in &response.response_headers_to_add {
        let _ = writeln!(text, "  {}: {}", header.key, header.value);
    }
    text
}

fn status_for_people(status: &DescriptorStatus) -> String {
    let Some(limit) = &status.current_limit else {
        return if status.limit_remaining == u32::MAX { "unlimited" } else { "no limit applies" }.to_owned();
    };
    let mut text = String::from(if status.code() == Code::OverLimit { "over the limit" } else { "within the limit" });
    let _ = write!(text, " of {}", limit.requests_per_unit);
    if limit.unit() != Unit::Unknown {
        let unit = limit.unit().as_str_name().to_lowercase();
        let _ = match limit.unit_multiplier {
            Some(multiplier) if multiplier > 1 => write!(text, " per {multiplier} {unit}s"),
            _ => write!(text, " per {unit}"),
        };
    }
    if !limit.name.is_empty() {
        let _ = write!(text, " ({})", limit.name);
    }
    let _ = write!(text, ", {} left", status.limit_remaining);
    if let Some(reset) = &status.duration_until_reset {
        let what = if status.code() == Code::OverLimit { "try again" } else { "resets" };
        let _ = write!(text, ", {what} in {}s", reset.seconds);
    }
    text
}

fn as_json(response: &RateLimitResponse) -> String {
    let statuses: Vec<_> = response
        .statuses
        .iter()
        .map(|status| {
            json!({
                "code": status.code().as_str_name(),
                "limit": status.current_limit.as_ref().map(|limit| json!({
                    "requests_per_unit": limit.requests_per_unit,
                    "unit": limit.unit().as_str_name(),
                    "unit_multiplier": limit.unit_multiplier.unwrap_or(1),
                    "name": limit.name,
                })),
                "limit_remaining": status.limit_remaining,
                "reset_after_seconds": status.duration_until_reset.as_ref().map(|reset| reset.seconds),
            })
        })
        .collect();
    let headers: serde_json::Map<_, _> = response
        .response_headers_to_add
        .iter()
        .map(|header| (header.key.clone(), header.value.clone().into()))
        .collect();
    let answer = json!({
        "code": response.overall_code().as_str_name(),
        "statuses": statuses,
        "headers": headers,
    });
    format!("{answer}\n")
}
