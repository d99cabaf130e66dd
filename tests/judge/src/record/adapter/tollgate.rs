//! Tollgate, and its own count of what a key has used, which it tells at `/usage`.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;

use super::rls::{self, Rls};
use super::{Answer, Asked};
use crate::history::{Ask, Told};

/// A service with `usage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tollgate {
    /// How it is asked.
    pub rls: Rls,
    /// Where the usage is read.
    pub usage: Usage,
}

/// A connection to one instance.
#[derive(Clone, Debug)]
pub struct Client {
    rls: rls::Client,
    domain: String,
    usage: Usage,
}

/// Where the usage is read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// HOST:PORT of an instance over HTTP.
    pub address: String,
    /// A token that may read it.
    pub token: String,
}

/// A part of the usage.
#[derive(Debug, Deserialize)]
struct Batch {
    store: String,
    pages: Vec<Page>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    page: String,
    records: Vec<Record>,
}

#[derive(Debug, Deserialize)]
struct Record {
    cost: i64,
}

impl Tollgate {
    pub(super) fn connect(&self, caller: usize) -> anyhow::Result<Client> {
        let (domain, usage) = (self.rls.domain.clone(), self.usage.clone());
        Ok(Client { rls: self.rls.connect(caller)?, domain, usage })
    }
}

impl Client {
    pub(super) async fn ask(&mut self, ask: Ask, asked: &[Asked], deadline: Duration) -> Result<Answer, String> {
        match asked {
            [asked] if ask == Ask::Total => {
                let total = Some(self.usage.total(&self.domain, asked, deadline).await?);
                Ok(Answer { told: Told::Allowed, remaining: None, wait: None, total, by: None })
            }
            _ => self.rls.ask(ask, asked, deadline).await,
        }
    }
}

impl Usage {
    /// Returns the hits that passed, without those that were given back.
    async fn total(&self, domain: &str, asked: &Asked, deadline: Duration) -> Result<i64, String> {
        let (usage, domain, asked) = (self.clone(), domain.to_owned(), asked.clone());
        let read = tokio::task::spawn_blocking(move || usage.read(&domain, &asked, deadline));
        read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    fn read(&self, domain: &str, asked: &Asked, deadline: Duration) -> Result<i64, ureq::Error> {
        let agent: Agent = Agent::config_builder().timeout_global(Some(deadline)).build().into();
        let entry = format!("{}={}", asked.entry, asked.key);
        let (mut total, mut seen, mut cursor) = (0, HashSet::new(), None);
        loop {
            let request = agent.get(format!("http://{}/usage", self.address));
            let request = request.header("Authorization", format!("Bearer {}", self.token));
            let request = request.query("domain", domain).query("key", &entry).query("exact", "true");
            // Of a budget, the descriptor names some stream.
            let stream = asked.holder.as_ref().map(|stream| ("key", format!("hold={stream}")));
            let request = request.query_pairs(stream);
            let request = request.query_pairs(cursor.as_ref().map(|cursor: &String| ("cursor", &**cursor)));
            let text = request.call()?.body_mut().read_to_string()?;
            let batch: Batch = serde_json::from_str(&text).map_err(std::io::Error::from)?;
            // A page may come twice.
            let new = batch.pages.into_iter().filter(|page| seen.insert((batch.store.clone(), page.page.clone())));
            total += new.flat_map(|page| page.records).map(|record| record.cost).sum::<i64>();
            cursor = batch.cursor;
            if cursor.is_none() {
                return Ok(total);
            }
        }
    }
}
