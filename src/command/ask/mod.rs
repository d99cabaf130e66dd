//! `tollgate ask`: one question to a running service.

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod connector;
pub(crate) mod explain;
pub(crate) mod health;
pub(crate) mod secrecy;
pub(crate) mod why;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tonic::metadata::MetadataValue;

use self::answer::{Answer, Outcome};
use self::client::{Service, ServiceAddress};
use crate::command::output::{NOTHING_APPLIES, Output, print};
use crate::engine::descriptor::{Entry, Override, Unit};
use crate::inspect;
use crate::wire::details::REQUEST_KEY;
use crate::wire::rate_limit_descriptor::RateLimitOverride;
use crate::wire::rate_limit_response::rate_limit::Unit as WireUnit;
use crate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient, rate_limit_descriptor};

/// Ask a running service whether a request passes; the request is counted.
///
/// Exits with 0 if the request passes, 2 if it is limited, 3 if it passes because no limit applies, and 1 if there is
/// no answer. A peek (--hits 0) exits with 0 if one more hit would pass, and with 2 if not. A refund exits with 1 if
/// the store has not confirmed it.
#[derive(Args)]
pub(crate) struct Ask {
    /// Entries of the descriptor; a lone + starts another descriptor.
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<String>,

    /// Domain of the rules.
    #[arg(long, short)]
    domain: String,

    /// Number of hits; 0 is a peek.
    #[arg(long, default_value = "1", allow_negative_numbers = true, value_parser = hits)]
    hits: u64,

    /// Refund the hits instead of taking them.
    #[arg(long)]
    refund: bool,

    /// Limit that the request brings along for each descriptor, in place of the rules: 5/minute, or 5/30second.
    #[arg(long, value_name = "N/UNIT", value_parser = limit)]
    limit: Option<Override>,

    #[command(flatten)]
    service: ServiceAddress,

    /// Longest wait for the answer. A request that would be delayed for longer is limited.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    output: Output,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(ask: Ask) -> anyhow::Result<ExitCode> {
    let descriptors = descriptors(&ask)?;
    let request =
        RateLimitRequest { domain: ask.domain.as_str().into(), descriptors: descriptors.clone(), hits_addend: 0 };
    let mut request = tonic::Request::new(request);
    // The service learns the deadline as well. As with Envoy, it denies at once a request that would be delayed for
    // longer.
    request.set_timeout(ask.timeout);
    request.metadata_mut().insert(REQUEST_KEY, MetadataValue::from_static("1"));
    let service = Service::connect(&ask.service, ask.timeout).await?;
    let response = match RateLimitServiceClient::new(service.channel.clone()).should_rate_limit(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Err(service.refusal(&status).await),
    };
    let answer = Answer::new(&descriptors, response);
    print(&if ask.output.is_json() { answer.json() } else { answer.text() })?;
    Ok(match answer.outcome() {
        Outcome::Passed | Outcome::WouldPass | Outcome::NothingToRefund if !answer.applies() => {
            ExitCode::from(NOTHING_APPLIES)
        }
        Outcome::Passed | Outcome::WouldPass | Outcome::Refunded | Outcome::NothingToRefund => ExitCode::SUCCESS,
        Outcome::NotRefunded => ExitCode::FAILURE,
        Outcome::Limited | Outcome::WouldBeLimited => ExitCode::from(2),
    })
}

fn hits(text: &str) -> Result<u64, String> {
    if let Some(hits) = text.strip_prefix('-') {
        return Err(format!("hits cannot be negative: to refund them, write --refund --hits {hits}"));
    }
    text.parse().map_err(|error: std::num::ParseIntError| error.to_string())
}

/// Parses a limit that a request brings along.
pub(crate) fn limit(text: &str) -> Result<Override, String> {
    let units = Unit::ALL.map(Unit::name).join(", ");
    Override::parse(text).ok_or_else(|| format!("write N/UNIT, for example 5/minute or 5/30second; units are {units}"))
}

fn on_the_wire(Override { number, period }: Override) -> Option<RateLimitOverride> {
    let (unit, multiplier) = Unit::multiple_of(period)?;
    let unit = WireUnit::from(unit).into();
    Some(RateLimitOverride { requests_per_unit: number, unit, unit_multiplier: Some(multiplier) })
}

fn descriptors(ask: &Ask) -> anyhow::Result<Vec<RateLimitDescriptor>> {
    ask.entries
        .split(|argument| argument == "+")
        .map(|entries| {
            let entries = inspect::entries(entries)?.into_iter();
            Ok(RateLimitDescriptor {
                entries: entries.map(|Entry { key, value }| rate_limit_descriptor::Entry { key, value }).collect(),
                hits_addend: Some(ask.hits),
                is_negative_hits: ask.refund,
                limit: ask.limit.and_then(on_the_wire),
            })
        })
        .collect()
}
