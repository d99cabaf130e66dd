//! The report on candidates for `GET /candidates`.

use serde::{Deserialize, Serialize};

use super::trial::Trial;
use crate::engine::clock::timestamp;
use crate::evaluate::Differences;

/// The results for candidates. Times are in RFC 3339 format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Paths of the candidate files.
    pub files: Vec<String>,
    /// The error in the present files. The previous candidates are then still compared.
    pub refused: Option<String>,
    /// Version of the candidates under comparison; `None` if there are none.
    pub version: Option<String>,
    /// Start of the comparison.
    pub since: Option<String>,
    /// The share of keys in the settings.
    pub sample: f64,
    /// The share of keys that there is memory for.
    pub sample_now: f64,
    /// How many limits the candidates add, remove and change, in words.
    pub changed: String,
    /// The changes for each limit; the first of them if there are many.
    pub changes: Vec<String>,
    /// The requests that the rules in force and the candidates decide differently.
    #[serde(flatten)]
    pub differences: Differences,
}

impl Report {
    pub(super) fn new(files: &[String], sample: f64, refused: Option<String>, trial: Option<&Trial>) -> Report {
        let none = Report {
            files: files.to_vec(),
            refused,
            version: None,
            since: None,
            sample,
            sample_now: 0.0,
            changed: String::new(),
            changes: Vec::new(),
            differences: Differences::default(),
        };
        let Some(Trial { sampling, summary, begin_ms, comparison, .. }) = trial else { return none };
        Report {
            version: Some((*sampling.rules()[1]).as_ref().version().to_owned()),
            since: Some(timestamp(*begin_ms)),
            sample_now: sampling.share().as_ratio(),
            changed: summary.totals.to_string(),
            changes: summary.to_string().lines().map(str::to_owned).collect(),
            differences: comparison.report(),
            ..none
        }
    }
}
