//! The files of `tests/conformance`; see the README next to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// The folder of the cases.
pub const FOLDER: &str = "tests/conformance";

/// The cases of one subject.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The subject.
    pub about: String,
    /// The environment of its servers.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// The destination of its servers' statistics.
    #[serde(default)]
    pub sink: Sink,
    pub cases: Vec<Case>,
}

/// The destination of a server's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    #[default]
    None,
    StatsdUdp,
    StatsdTcp,
    Dogstatsd,
    Prometheus,
}

/// A promise, and how to see it kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// Requires a separate server.
    #[serde(default)]
    pub alone: bool,
    /// Environment of its server, in addition to that of the file.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    #[serde(default)]
    pub rules: Rules,
    #[serde(default)]
    pub steps: Vec<Step>,
    /// For each path of `ratelimit.service.rate_limit`, all that is counted.
    #[serde(default)]
    pub stats: BTreeMap<String, BTreeMap<String, u64>>,
    /// Other statistics by their whole names.
    #[serde(default)]
    pub series: BTreeMap<String, f64>,
    /// The rules are refused, for this reason.
    pub refused: Option<String>,
    /// Tollgate's intended difference.
    #[serde(default)]
    pub tollgate: Otherwise,
    /// ID of a flaw of the reference, which answers differently.
    pub flaw: Option<String>,
    /// ID of an intended difference of Tollgate: see docs/differences.md.
    pub differs: Option<String>,
    /// Name of a missing feature, because of which Tollgate answers differently.
    pub pending: Option<String>,
    /// The reference can do this from a later version on than the one that can be installed.
    pub newer: Option<String>,
}

/// The rules of a case: one file, or several by their paths.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Rules {
    #[default]
    None,
    One(String),
    Files(BTreeMap<String, String>),
}

/// Another result of a whole case.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Otherwise {
    /// Its rules are rejected for this reason, or accepted, unlike by the reference.
    pub refused: Option<String>,
    /// It ends, but the reference serves without rules.
    #[serde(default)]
    pub ends: bool,
    /// It does these steps instead.
    pub steps: Option<Vec<Step>>,
    /// It has these statistics instead.
    pub stats: Option<BTreeMap<String, BTreeMap<String, u64>>>,
    pub series: Option<BTreeMap<String, f64>>,
}

/// A step and its expected result.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// A rate limit request of these descriptors.
    pub ask: Option<Vec<Asked>>,
    /// A body for `/json`.
    pub json: Option<String>,
    /// A path to get.
    pub get: Option<String>,
    /// A service whose health is checked over gRPC.
    pub health: Option<String>,
    /// Rules to put in place, or with null to take away.
    pub write: Option<BTreeMap<String, Option<String>>>,
    /// A command of Redis.
    pub redis: Option<String>,
    /// The domain of the requests, if it is not that of the rules.
    pub domain: Option<String>,
    /// The request's own hits.
    #[serde(default)]
    pub hits: u32,
    /// Number of repetitions; the last answer is compared.
    pub times: Option<u32>,
    /// Method of an HTTP request.
    pub method: Option<String>,
    /// Port of an HTTP request.
    #[serde(default)]
    pub port: HttpPort,
    /// Repeats the request until the server has read the written files.
    #[serde(default)]
    pub eventually: bool,
    /// Tollgate's answer, if it intentionally differs.
    pub tollgate: Option<Expected>,
    #[serde(flatten)]
    pub expected: Expected,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A port that speaks HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpPort {
    #[default]
    Http,
    Debug,
    Prometheus,
}

/// A descriptor.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Asked {
    /// `path=/a user=ann +3 @5/minute`: entries, hits, an override.
    Short(String),
    Long(LongDescriptor),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongDescriptor {
    pub entries: Vec<(String, String)>,
    pub hits: Option<u64>,
    #[serde(default)]
    pub negative: bool,
    /// A number, and a unit's number.
    pub limit: Option<(u32, i32)>,
}

/// An expected answer. In texts, `{day}` stands for the seconds until the end of the day, and so on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Expected {
    /// A status for each descriptor: `ok`, `ok unlimited`, `ok 4 of 5/day name`, `over 0 of 5/day`.
    pub answer: Option<Vec<String>>,
    /// The overall code: by default `over` if one of the statuses is.
    pub code: Option<String>,
    /// `Name: value`, in order.
    pub headers: Option<Vec<String>>,
    /// Dynamic metadata.
    pub metadata: Option<Value>,
    /// A gRPC error: `UNKNOWN: message`.
    pub error: Option<String>,
    /// HTTP status.
    pub status: Option<u16>,
    /// A text, or JSON.
    pub body: Option<Value>,
    /// The lines of a text, in any order.
    pub lines: Option<Vec<String>>,
    /// Texts that a body has.
    pub has: Option<Vec<String>>,
    /// Reply of Redis or of a health check.
    pub reply: Option<String>,
}

impl Case {
    /// The domain of the rules.
    pub fn domain(&self) -> Option<&str> {
        let text = match &self.rules {
            Rules::None => return None,
            Rules::One(text) => text,
            Rules::Files(files) => files.values().next()?,
        };
        text.lines().find_map(|line| line.strip_prefix("domain: "))
    }

    /// Returns whether it can share a server with others.
    pub fn shares(&self) -> bool {
        !self.alone && self.settings.is_empty() && self.refused.is_none() && self.tollgate.refused.is_none()
    }
}

/// Every file by its name.
pub fn files() -> Vec<(String, File)> {
    let mut paths: Vec<_> = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths.iter().map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), read(path))).collect()
}

fn read(path: &Path) -> File {
    let text = fs::read_to_string(path).unwrap();
    let value: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: File = serde_json::from_value(value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for case in &file.cases {
        for step in case.steps.iter().chain(case.tollgate.steps.iter().flatten()) {
            assert!(step.unknown.is_empty(), "{}: {}: unknown {:?}", path.display(), case.name, step.unknown);
        }
    }
    file
}
