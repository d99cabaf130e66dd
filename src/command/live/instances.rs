//! Changes of adjustments through the HTTP ports of running services: of one, or of each instance.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use futures_util::future::join_all;
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::admin_port::{AdminPort, http_address};
use crate::command::output::{NOTHING_APPLIES, print};
use crate::engine::adjustment::{Id, OnlyHere, Shown, Written};
use crate::engine::descriptor::counted;
use crate::engine::printable::printable;
use crate::observe::what_if::{Preview, Previewable};
use crate::shared::adjustment::AdjustmentError;

/// Path of adjustments.
const PATH: &str = "/adjustments";

/// Running services to ask instead of Redis.
#[derive(Args)]
pub(crate) struct Instances {
    /// Ask the service with this HTTP port instead of Redis: HOST:PORT, or a URL such as http://localhost:8080. Needs
    /// ADMIN_API=true at the service, and a token here. With --all-instances, may be given several times.
    #[arg(long, short, value_name = "HOST:PORT", value_parser = http_address)]
    address: Vec<String>,

    /// Ask each instance, and say which took the change. Each address is looked up: a name of several addresses, such
    /// as that of a headless Service in Kubernetes, stands for all of them.
    #[arg(long, requires = "address")]
    all_instances: bool,

    /// The service's ADMIN_TOKEN, or a token of its ADMIN_TOKENS_FILE.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// Longest wait for a service.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// What one instance answered.
#[derive(Serialize)]
pub(crate) struct Told {
    /// The address that was asked.
    address: String,
    /// Its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Instances {
    /// Returns whether services are asked instead of Redis.
    pub(crate) fn are_given(&self) -> bool {
        !self.address.is_empty()
    }

    /// Returns whether each instance is asked.
    pub(crate) fn all(&self) -> bool {
        self.all_instances
    }

    /// Begins an adjustment. It must have an ID, by which an instance knows it if it is asked again.
    ///
    /// # Errors
    /// Fails if an address is unknown, or if the only instance that is asked refuses.
    pub(crate) async fn begin(&self, written: &Written, fleet: bool, is_json: bool) -> anyhow::Result<ExitCode> {
        let path = if fleet { format!("{PATH}?fleet=true") } else { PATH.to_owned() };
        let id = written.id.as_deref().unwrap_or_default();
        let told = self.ask(&Method::POST, &path, &serde_json::to_string(written)?).await;
        let told = told.with_context(|| format!("no answer about the adjustment with the id {}", printable(id)))?;
        let unmatched = |told: &Told| told.answer.as_ref().is_some_and(|answer| answer["unmatched"].is_string());
        let is_unmatched = told.iter().any(unmatched);
        let again = format!("repeat the command with --id {}", printable(id));
        let code = self.report(told, (is_json, &again), |answer| Ok(format!("{}\n", shown(answer.clone())?)))?;
        Ok(if code == ExitCode::SUCCESS && is_unmatched { ExitCode::from(NOTHING_APPLIES) } else { code })
    }

    /// Shows what an adjustment would have done to the recorded requests, without beginning it.
    ///
    /// # Errors
    /// As those of [`begin`](Self::begin).
    pub(crate) async fn preview(&self, written: &Written, is_json: bool) -> anyhow::Result<ExitCode> {
        let told = self.ask(&Method::POST, &format!("{PATH}/preview"), &serde_json::to_string(written)?).await?;
        let again = "nothing was changed";
        self.report(told, (is_json, again), |answer| Ok(preview(&serde_json::from_value(answer.clone())?)))
    }

    /// Ends an adjustment.
    ///
    /// # Errors
    /// As those of [`begin`](Self::begin).
    pub(crate) async fn end(&self, id: &str, by: (&str, &str), fleet: bool, is_json: bool) -> anyhow::Result<ExitCode> {
        let (who, why) = by;
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("who", who).append_pair("why", why);
        if fleet {
            query.append_pair("fleet", "true");
        }
        let mut told = self.ask(&Method::DELETE, &format!("{PATH}/{id}?{}", query.finish()), "").await?;
        // Once one instance has ended it for all, the others do not know it any more.
        if told.iter().any(|told| told.answer.is_some()) {
            let gone = Id::parse(id).map(|id| AdjustmentError::Unknown(id).to_string());
            for one in told.iter_mut().filter(|told| told.error.is_some() && told.error == gone) {
                (one.answer, one.error) = (Some(json!({ "ended": id })), None);
            }
        }
        self.report(told, (is_json, "repeat the command"), |answer| {
            let here = serde_json::from_value::<Option<OnlyHere>>(answer["only_here"].clone())?;
            Ok(here.map_or(format!("ended {id}\n"), |here| format!("ended {id}\n  {here}\n")))
        })
    }

    /// Returns the adjustments in force, of each instance that is asked.
    ///
    /// # Errors
    /// As those of [`begin`](Self::begin).
    pub(crate) async fn list(&self) -> anyhow::Result<Vec<Told>> {
        self.ask(&Method::GET, PATH, "").await
    }

    /// Asks each instance at once. If only one is asked, its refusal is the error.
    async fn ask(&self, method: &Method, path: &str, body: &str) -> anyhow::Result<Vec<Told>> {
        let addresses = match &*self.address {
            _ if self.all_instances => self.resolved().await?,
            [one] => BTreeSet::from([one.clone()]),
            several => bail!("{} addresses: add --all-instances to ask each of them", several.len()),
        };
        let ask = async |address: String| {
            let port = AdminPort { address: &address, token: self.admin_token.as_deref(), timeout: self.timeout };
            match port.change(method.clone(), path, body.to_owned()).await {
                Ok(answer) => Told { address, answer: Some(answer), error: None },
                Err(error) => Told { address, answer: None, error: Some(format!("{error:#}")) },
            }
        };
        let mut told = join_all(addresses.into_iter().map(ask)).await;
        match &mut *told {
            [Told { error, .. }] if !self.all_instances && error.is_some() => {
                Err(anyhow!(error.take().unwrap_or_default()))
            }
            _ => Ok(told),
        }
    }

    /// Returns every IP address of the given addresses, each once.
    async fn resolved(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for address in &self.address {
            let host = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
            let found = timeout(self.timeout, lookup_host(host)).await;
            let found = found.map_err(|_| anyhow!("looking up {host} takes too long"))?;
            let found = found.map_err(|error| anyhow!("{host} cannot be looked up: {error}"))?;
            all.extend(found.map(|address| format!("http://{address}")));
        }
        Ok(all)
    }

    /// Prints what was answered, as text by this function. Fails the command if an instance refused.
    fn report(
        &self,
        told: Vec<Told>,
        (is_json, again): (bool, &str),
        text: impl Fn(&Value) -> anyhow::Result<String>,
    ) -> anyhow::Result<ExitCode> {
        let failed = told.iter().filter(|told| told.error.is_some()).count();
        print(&match (&*told, is_json) {
            ([Told { answer: Some(answer), .. }], true) if !self.all_instances => answer.to_string() + "\n",
            ([Told { answer: Some(answer), .. }], false) if !self.all_instances => text(answer)?,
            (_, true) => serde_json::to_string(&told)? + "\n",
            (_, false) => by_instance(&told, text)?,
        })?;
        if failed > 0 && !is_json {
            bail!("{failed} of {} instances failed: {again}", told.len());
        }
        Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Says what an adjustment would do.
fn preview(told: &Previewable) -> String {
    let Previewable { limits, note, preview } = told;
    let Preview { keys, keys_denied, keys_allowed, requests_per_s, denied_per_s, allowed_per_s, .. } = preview;
    let mut text = format!("nothing was changed; it would reach {}", counted(*limits as u64, "limit"));
    if let (Some(keys), Some(requests)) = (keys, requests_per_s) {
        text += &format!(", {}, {requests:.1} requests a second", counted(*keys, "key"));
    }
    text.push('\n');
    text.extend(note.iter().map(|note| format!("  {}\n", printable(note))));
    for (rate, keys, what) in
        [(denied_per_s, keys_denied, "more denied than now"), (allowed_per_s, keys_allowed, "more allowed than now")]
    {
        if let (Some(rate), Some(keys)) = (rate.filter(|rate| *rate > 0.0), keys) {
            text += &format!("  {rate:.1} requests a second {what}, of {}\n", counted(*keys, "key"));
        }
    }
    if !preview.examples.is_empty() {
        let examples = preview.examples.iter().map(|example| printable(example));
        text += &format!("  such as {}\n", examples.collect::<Vec<_>>().join(", "));
    }
    text += &match (requests_per_s, preview.seconds) {
        (None, _) | (_, 0) => "  its effect is not known: no recorded requests show it\n".to_owned(),
        (Some(_), seconds) => {
            let sample = (preview.sample * 10_000.0).round() / 100.0;
            format!("  by the recorded requests of the last {seconds} s, of {sample} % of the keys\n")
        }
    };
    text
}

/// Formats what each instance answered.
pub(crate) fn by_instance(told: &[Told], text: impl Fn(&Value) -> anyhow::Result<String>) -> anyhow::Result<String> {
    let mut all = String::new();
    for Told { address, answer, error } in told {
        let said = match answer {
            Some(answer) => text(answer)?,
            None => format!("failed: {}\n", error.as_deref().unwrap_or_default()),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(all, "{}:", address.strip_prefix("http://").unwrap_or(address));
        said.lines().for_each(|line| {
            let _ = writeln!(all, "  {line}");
        });
    }
    Ok(all)
}

impl Told {
    /// Returns whether the instance answered, and did not refuse.
    pub(crate) fn is_answered(&self) -> bool {
        self.error.is_none()
    }

    /// Returns the list that the instance answered.
    ///
    /// # Errors
    /// Fails if this version of the command cannot read it.
    pub(crate) fn adjustments(&self) -> anyhow::Result<Vec<Shown>> {
        let list = self.answer.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
        list.into_iter().map(shown).collect()
    }
}

/// Reads an adjustment as a service shows it.
pub(crate) fn shown(mut answer: Value) -> anyhow::Result<Shown> {
    let mut take = |name: &str| answer.as_object_mut().and_then(|fields| fields.remove(name)).unwrap_or(json!(null));
    let (since, until) = (serde_json::from_value(take("since"))?, serde_json::from_value(take("until"))?);
    let paused_until = serde_json::from_value(take("paused_until"))?;
    let (unmatched, only_here) =
        (serde_json::from_value(take("unmatched"))?, serde_json::from_value(take("only_here"))?);
    Ok(Shown { written: serde_json::from_value(answer)?, since, until, paused_until, unmatched, only_here })
}
