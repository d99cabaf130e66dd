//! `tollgate promote`: replaces the rules by the candidate rules, and keeps the old ones.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use hyper::Method;

use crate::command::live::admin_port::{AdminPort, Service};
use crate::command::output::print;
use crate::engine::printable::printable_lines;
use crate::settings::{CandidateFiles, Reading, RulesSettings};
use crate::sources::files::promote::{Promoted, Promotion};

/// Replace the rules by the candidate rules, and keep the old ones next to them.
///
/// Works on files of the machine on which it runs; with --address, a running service does it with its own files, if it
/// has a PROMOTE_FOLDER, and only with --expect. Replaces a file by a file, or a folder by a folder, in one step, and
/// only if the candidates have no errors. The old rules are kept in the same folder under a name that no service reads:
/// .NAME.before-TIME. A service that reads the files loads the new rules by itself.
///
/// Copies only rules files: plain files named *.yaml, *.yml or *.json. Each gets the mode and the owner of the file
/// that it replaces.
///
/// Exits with 0 if the candidates are now the rules, or were before, and with 1 if not.
#[derive(Args)]
pub(crate) struct Promote {
    /// Promote only if the candidates have this version, as shown by GET /candidates. This protects against promoting a
    /// change that someone else has just made.
    #[arg(long, value_name = "VERSION")]
    expect: Option<String>,

    /// All paths that the service reads, if --rules names only some of them: the candidates must fit the rest. Unset:
    /// the paths in the variable RULES. May be given several times.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    served: Vec<PathBuf>,

    /// Reason, in a few words, for the audit trail of the service.
    #[arg(long, requires = "address")]
    why: Option<String>,

    /// Name of the person who promotes, for the audit trail of the service. Unset: $USER.
    #[arg(long, env = "USER", value_name = "NAME")]
    who: Option<String>,

    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    candidates: CandidateFiles,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,
}

impl Promote {
    /// Returns all paths that the service reads.
    fn served(&self) -> Vec<PathBuf> {
        if !self.served.is_empty() {
            return self.served.clone();
        }
        // The flag --rules has replaced the value of the variable.
        let named = std::env::var("RULES").unwrap_or_default();
        named.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
    }
}

pub(crate) fn run(promote: &Promote) -> anyhow::Result<ExitCode> {
    if let Some(port) = promote.service.port() {
        return by_service(promote, &port);
    }
    let Some(candidates) = promote.candidates.sources() else {
        bail!("no candidate rules: name a file or folder with --candidate-rules PATH (or CANDIDATE_RULES)");
    };
    let (rules, served) = (promote.rules.sources()?, promote.served());
    let promotion = Promotion { rules, candidates, served, options: promote.reading.load_options(), within: None };
    let Promoted { rules, candidates, kept, changes, .. } = promotion.run(promote.expect.as_deref())?;
    let (rules, candidates) = (rules.display(), candidates.display());
    print(&match kept.as_ref().map(|kept| kept.display()) {
        None => format!("{rules} and {candidates} are identical\n"),
        Some(kept) => {
            format!("{rules} now has the rules of {candidates}; the previous rules are in {kept}\n{changes}")
        }
    })
}

/// Asks a service to promote its own files.
#[tokio::main(flavor = "current_thread")]
async fn by_service(promote: &Promote, port: &AdminPort<'_>) -> anyhow::Result<ExitCode> {
    let (Some(expect), Some(why)) = (&promote.expect, &promote.why) else {
        bail!("with --address, promote needs --expect VERSION, which tollgate candidates shows, and --why");
    };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("expect", expect).append_pair("why", why);
    query.append_pair("who", promote.who.as_deref().unwrap_or_default());
    let answer = port.change(Method::POST, &format!("/candidates/promote?{}", query.finish()), String::new()).await?;
    let text = |field: &str| answer[field].as_str().map(printable_lines);
    let (rules, changes) = (text("rules").ok_or_else(|| anyhow!("{} sent no answer", port.address))?, text("changes"));
    print(&match text("kept") {
        None => format!("{rules} has these rules already\n"),
        Some(kept) => format!(
            "{rules} now has the rules of version {expect}; the previous rules are in {kept}\n{}",
            changes.unwrap_or_default()
        ),
    })
}
