//! Candidate rules: where they are, and what to compare them costs.

use std::path::PathBuf;

use clap::Args;

use super::{share, whole};
use crate::rules::load::Sources;

/// Where candidate rules are.
#[derive(Args, Clone, Debug)]
pub struct CandidateFiles {
    /// A file or folder of candidate rules, which are compared with the rules in force on what clients ask, and deny
    /// nobody. Read again when they change. May be given several times; in the environment, separated by commas.
    #[arg(long, env = "CANDIDATE_RULES", value_name = "PATH", value_delimiter = ',', help_heading = "Candidate rules")]
    pub candidate_rules: Vec<PathBuf>,
}

/// Candidate rules, and what to compare them costs.
#[derive(Args, Clone, Debug)]
pub struct CandidateSettings {
    /// Where they are.
    #[command(flatten)]
    pub files: CandidateFiles,

    /// The share of keys on which they are compared, from 0 to 1. A key is wholly in it or not at all, on every
    /// replica alike.
    #[arg(long, env = "CANDIDATE_SAMPLE", value_name = "SHARE", default_value = "0.1",
        help_heading = "Candidate rules", value_parser = share)]
    pub candidate_sample: f64,

    /// The most that the counters of the comparison may take, in memory. At the bound it begins anew with half of the
    /// sample.
    #[arg(long, env = "CANDIDATE_STORE_SIZE_IN_BYTES", value_name = "BYTES", default_value = "33554432",
        help_heading = "Candidate rules", value_parser = whole(1 << 20..=u32::MAX))]
    pub candidate_store_size_in_bytes: u32,
}

impl CandidateFiles {
    /// As the loader takes it. `None`: there are no candidates.
    pub fn sources(&self) -> Option<Sources> {
        (!self.candidate_rules.is_empty()).then(|| Sources { paths: self.candidate_rules.clone() })
    }
}
