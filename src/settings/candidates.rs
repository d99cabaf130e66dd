//! Settings of candidate rules: their files, and the cost of the comparison.

use std::path::PathBuf;

use clap::Args;

use super::path::path;
use super::{share, whole};
use crate::sources::files::load::{NamedText, Sources};

/// Files of candidate rules.
#[derive(Args, Clone, Debug)]
pub struct CandidateFiles {
    /// File or folder of candidate rules. They are compared with the rules in force on the requests of clients, and
    /// deny no request. Read again when they change. May be given several times; in the environment, separated by
    /// commas.
    #[arg(long, env = "CANDIDATE_RULES", value_name = "PATH", value_delimiter = ',', help_heading = "Candidate rules",
        value_parser = path)]
    pub candidate_rules: Vec<PathBuf>,

    /// Rules in the binary, in addition to the files. Only `tollgate demo` has some.
    #[arg(skip)]
    pub built_in: Vec<NamedText>,
}

/// Settings of candidate rules: their files, and the cost of the comparison.
#[derive(Args, Clone, Debug)]
pub struct CandidateSettings {
    /// Their files.
    #[command(flatten)]
    pub files: CandidateFiles,

    /// Folder below which a request of an administrator may put candidate rules in place of the rules (POST
    /// /candidates/promote, tollgate promote --address). Unset: no request may.
    #[arg(long, env = "PROMOTE_FOLDER", value_name = "PATH", help_heading = "Candidate rules", value_parser = path)]
    pub promote_folder: Option<PathBuf>,

    /// Share of keys for which candidate rules are compared, from 0 to 1. All instances compare the same keys, with all
    /// requests of each key.
    #[arg(long, env = "CANDIDATE_SAMPLE", value_name = "SHARE", default_value = "0.1",
        help_heading = "Candidate rules", value_parser = share)]
    pub candidate_sample: f64,

    /// Most bytes of memory for the counters of the comparison. When they are used up, the comparison restarts with
    /// half of the sample.
    #[arg(long, env = "CANDIDATE_STORE_SIZE_IN_BYTES", value_name = "BYTES", default_value = "33554432",
        help_heading = "Candidate rules", value_parser = whole(1 << 20..=u32::MAX))]
    pub candidate_store_size_in_bytes: u32,
}

impl CandidateFiles {
    /// Returns the sources for the loader. `None` without candidates.
    pub fn sources(&self) -> Option<Sources> {
        let is_any = !self.candidate_rules.is_empty() || !self.built_in.is_empty();
        is_any.then(|| Sources { paths: self.candidate_rules.clone() })
    }
}
