//! `tollgate health`: asks a running service for its health, for places without a gRPC client, such as a container's
//! health check.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::{Service, ServiceAddress};
use crate::command::output::{Output, print};

/// Ask a running service whether it answers by rules; exits with 0 if it is SERVING, and with 1 if not.
#[derive(Args)]
pub(crate) struct Health {
    #[command(flatten)]
    service: ServiceAddress,

    /// Longest wait for the answer.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    output: Output,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(health: Health) -> anyhow::Result<ExitCode> {
    let service = Service::connect(&health.service, health.timeout).await?;
    let response = match HealthClient::new(service.channel.clone()).check(HealthCheckRequest::default()).await {
        Ok(response) => response,
        Err(status) => return Err(service.refusal(&status).await),
    };
    let serving = response.into_inner().status() == ServingStatus::Serving;
    let status = if serving { "SERVING" } else { "NOT_SERVING" };
    print(&match health.output.is_json() {
        true => format!("{}\n", json!({ "status": status })),
        false => format!("{status}\n"),
    })?;
    Ok(if serving { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
