//! Asks the nodes of a cluster for its layout.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use tokio::time::timeout;

use super::access::Access;
use super::address::Place;
use super::config::RedisConfig;
use super::dial::Dialed;
use super::layout::Layout;
use super::node_dialer;
use super::route::KnownNodes;
use crate::store::redis::doctor::cause::{Cause, Rights};

/// Asks these places for the layout, one after the other, until one answers. Returns the connection too.
///
/// # Errors
/// If none of them answers.
pub(crate) async fn ask_any(
    places: &[Place],
    access: &Arc<Access>,
    config: &RedisConfig,
) -> Result<(Dialed, Layout), Cause> {
    let mut causes = Vec::new();
    for place in places {
        match dial_and_ask(place.clone(), access, config.timeout).await {
            Ok(answer) => return Ok(answer),
            Err(Cause::Lacks(rights)) => {
                let grant = Some(access.grant(&config.key_prefix));
                causes.push(Cause::Lacks(Rights { grant, ..rights }));
            }
            Err(cause) => causes.push(cause),
        }
    }
    // A permanent cause says more than one that may pass.
    Err(causes.iter().find(|cause| cause.is_unfit()).or(causes.first()).cloned().unwrap_or(Cause::Mute))
}

async fn dial_and_ask(place: Place, access: &Arc<Access>, patience: Duration) -> Result<(Dialed, Layout), Cause> {
    let dialed = node_dialer(place, access).connect(patience).await?;
    let layout = ask_one(&dialed, patience).await?;
    Ok((dialed, layout))
}

pub(crate) async fn ask_one(dialed: &Dialed, patience: Duration) -> Result<Layout, Cause> {
    let mut ask = cmd("CLUSTER");
    ask.arg("SLOTS");
    let mut redis = dialed.redis.clone();
    let said = async { redis.send_packed_command(&ask).await?.extract_error() };
    let said = timeout(patience, said).await.map_err(|_| Cause::Silent(patience))?;
    Layout::read(&said.map_err(|error| Cause::of_error(&error))?, &dialed.place)
}

/// Returns the layout that one of these nodes reports.
///
/// # Errors
/// If none of them does.
pub(crate) async fn survey(known: &KnownNodes, access: &Arc<Access>, config: &RedisConfig) -> Result<Layout, Cause> {
    let (_, layout) = ask_any(&known.places(), access, config).await?;
    known.note(&layout);
    Ok(layout)
}
