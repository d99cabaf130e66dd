//! The conformance of a replacement for `envoyproxy/ratelimit`: the cases of `tests/conformance`, run against our own
//! command, or any other (`make conformance SERVER=/path/to/it`).

mod case;
mod http;
mod judge;
mod server;
mod sink;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use case::{Case, File, Otherwise, Rules};
use judge::{Judged, Side};
use server::{Given, Server};
use steps::Client;
use tokio::sync::Semaphore;
use tonic::transport::Endpoint;

use crate::support::drop_in::Ended;
use crate::support::{SOON, tollgate};

/// Names another server.
const SERVER: &str = "CONFORMANCE_SERVER";
/// The marks to use: `reference`, which is the default, or `tollgate`.
const SIDE: &str = "CONFORMANCE_SIDE";
/// Number of servers that run at a time.
const SERVERS: usize = 4;
/// Number of attempts for cases that may have crossed the end of a window.
const TRIES: usize = 3;
/// Rules that every server gets for the runner's own request, which shows when statistics have been delivered.
const MARKER: &str =
    "domain: conformance-marker\ndescriptors: [{key: marker, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n";

/// The cases that one server serves.
#[derive(Clone)]
struct Group {
    file: String,
    about: File,
    cases: Vec<Case>,
}

/// The result of a case.
struct Outcome {
    file: String,
    case: Case,
    judged: Judged,
}

/// `make` has variables of its own, such as `AS`, which a default in the Makefile does not replace.
#[test]
fn make_judges_our_own_server_as_tollgate_and_another_as_the_reference() {
    let judged_as = |server: Option<&str>| {
        let mut make = Command::new("make");
        make.args(["--dry-run", "conformance"]).args(server.map(|path| format!("SERVER={path}")));
        let output = make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("SIDE").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let side = text.split_once(&format!("{SIDE}=")).unwrap_or_else(|| panic!("{text}")).1;
        side.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!([None, Some("/bin/ratelimit")].map(judged_as), ["tollgate", "reference"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_is_answered_as_it_says() {
    // `make` names an empty one where none is given.
    let other = std::env::var_os(SERVER).filter(|server| !server.is_empty());
    let side = match std::env::var(SIDE).as_deref() {
        Ok("tollgate") => Side::Tollgate,
        Ok("reference") => Side::Reference,
        Ok(other) => panic!("{SIDE} must be tollgate or reference, not {other}"),
        Err(_) if other.is_some() => Side::Reference,
        Err(_) => Side::Tollgate,
    };
    // Starts it in a separate folder.
    let binary = other.map_or_else(|| PathBuf::from(tollgate::BINARY), |server| std::fs::canonicalize(server).unwrap());
    let (permits, binary) = (Arc::new(Semaphore::new(SERVERS)), Arc::new(binary));
    let begin = |group: Group| {
        let (permits, binary, judged) = (Arc::clone(&permits), Arc::clone(&binary), group.clone());
        let task = tokio::spawn(async move {
            let _permit = permits.acquire().await.unwrap();
            judged.judge(&binary, side).await
        });
        (group, task)
    };
    let tasks: Vec<_> = groups().into_iter().map(begin).collect();
    let mut outcomes = Vec::new();
    for (group, task) in tasks {
        // A server that cannot be started fails its own cases.
        outcomes.extend(task.await.unwrap_or_else(|error| group.wrong(&error.to_string())));
    }
    let wrong = judge::report(&outcomes);
    assert!(wrong.is_empty(), "{} cases are not as they say:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Cases without special requirements share a server.
fn groups() -> Vec<Group> {
    let wanted = std::env::var("CONFORMANCE_CASES").unwrap_or_default();
    let mut groups = Vec::new();
    for (name, about) in case::files() {
        let group = |cases| Group { file: name.clone(), about: about.clone(), cases };
        let is_wanted = |case: &Case| format!("{name}: {}", case.name).contains(&wanted);
        let (shared, alone): (Vec<Case>, Vec<Case>) =
            about.cases.iter().filter(|case| is_wanted(case)).cloned().partition(Case::shares);
        groups.extend((!shared.is_empty()).then(|| group(shared)));
        groups.extend(alone.into_iter().map(|case| group(vec![case])));
    }
    groups
}

impl Group {
    async fn judge(self, binary: &std::path::Path, side: Side) -> Vec<Outcome> {
        let mut results = Vec::new();
        for _ in 0..TRIES {
            let begun = steps::minute();
            results = self.run(binary, side).await;
            let is_unsure = |(case, result): (&Case, &Result<(), String>)| judge::judge(case, side, result).is_wrong();
            if begun == steps::minute() || !self.cases.iter().zip(&results).any(is_unsure) {
                break;
            }
        }
        let cases = self.cases.into_iter().zip(results);
        let outcome = |(case, result): (Case, _)| {
            let judged = judge::judge(&case, side, &result);
            Outcome { file: self.file.clone(), case, judged }
        };
        cases.map(outcome).collect()
    }

    fn wrong(self, why: &str) -> Vec<Outcome> {
        let outcome = |case| Outcome { file: self.file.clone(), case, judged: Judged::Wrong(why.to_owned()) };
        self.cases.into_iter().map(outcome).collect()
    }

    /// Runs the cases of the group.
    async fn run(&self, binary: &std::path::Path, side: Side) -> Vec<Result<(), String>> {
        let mut settings = self.about.settings.clone();
        settings.extend(self.cases.iter().flat_map(|case| case.settings.clone()));
        let rules = rules(&self.cases);
        let given = Given { binary, settings: &settings, sink: self.about.sink, rules: &rules };
        let started = Server::start(&given);
        if let [case] = &self.cases[..]
            && let Some(reason) = refusal(case, side)
        {
            let must_end = side == Side::Tollgate && case.tollgate.ends;
            let ended = started.is_err() || !must_end;
            let refused = refused(started, &reason).await;
            return vec![refused.and(if ended { Ok(()) } else { Err("it must end".to_owned()) })];
        }
        let server = match started {
            Ok(server) => server,
            Err(Ended(output)) => {
                let ended = format!("the server has ended, or opens no port:\n{output}");
                return self.cases.iter().map(|_| Err(ended.clone())).collect();
            }
        };
        let channel = Endpoint::from_shared(server.grpc()).unwrap().timeout(SOON).connect_lazy();
        let client = Client { server: &server, channel };
        let mut results = Vec::new();
        for case in &self.cases {
            results.push(take(&client, case, side).await);
        }
        if server.statistics.is_open() {
            let settled = settle(&client).await;
            let sums = server.statistics.sums(&server);
            for (case, result) in self.cases.iter().zip(&mut results) {
                let counted = settled.clone().and_then(|()| judge::counted(case, side, &sums));
                *result = std::mem::replace(result, Ok(())).and(counted);
            }
        }
        results
    }
}

/// All rules of these cases by the paths of their files.
fn rules(cases: &[Case]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for (place, case) in cases.iter().enumerate() {
        match &case.rules {
            Rules::None => {}
            Rules::One(text) => drop(files.insert(format!("case{place}.yaml"), text.clone())),
            Rules::Files(named) => files.extend(named.clone()),
        }
        if let Rules::One(_) | Rules::None = case.rules {
            files.insert("marker.yaml".to_owned(), MARKER.to_owned());
        }
    }
    files
}

/// Why the rules are refused, where they are to be.
fn refusal(case: &Case, side: Side) -> Option<String> {
    let own = case.tollgate.refused.clone();
    match side {
        // Tollgate can accept rules that the reference rejects, with its own steps.
        Side::Tollgate => own.or_else(|| case.refused.clone().filter(|_| case.tollgate.steps.is_none())),
        Side::Reference => case.refused.clone(),
    }
}

/// A server that rejects its rules at the start either ends or serves without rules, and logs the reason.
async fn refused(started: Result<Server, Ended>, reason: &str) -> Result<(), String> {
    let (output, serves) = match started {
        Err(Ended(output)) => (output, None),
        Ok(server) => {
            let channel = Endpoint::from_shared(server.grpc()).unwrap().timeout(SOON).connect_lazy();
            let client = Client { server: &server, channel };
            let error = Some("Unknown: no rate limit configuration loaded".to_owned());
            let step = serde_json::from_value(serde_json::json!({"ask": ["marker=x"]})).unwrap();
            let expected = case::Expected { error, ..case::Expected::default() };
            let serves = client.take(&step, "conformance-marker", &expected).await.err();
            (server.process.output(), serves)
        }
    };
    match serves {
        Some(serves) => Err(format!("the rules must be refused:\n{serves}")),
        None if output.contains(reason) => Ok(()),
        None => Err(format!("the rules are rejected, but the reason must be {reason:?}:\n{output}")),
    }
}

async fn take(client: &Client<'_>, case: &Case, side: Side) -> Result<(), String> {
    let domain = case.domain().unwrap_or_default();
    let own = case.tollgate.steps.as_ref().filter(|_| side == Side::Tollgate);
    for step in own.unwrap_or(&case.steps) {
        let own = step.tollgate.as_ref().filter(|_| side == Side::Tollgate);
        client.take(step, domain, own.unwrap_or(&step.expected)).await?;
    }
    Ok(())
}

/// Waits until all statistics have arrived: a flush sends everything, and the second marker comes with a later flush.
async fn settle(client: &Client<'_>) -> Result<(), String> {
    let name = if client.server.statistics.is_prometheus() {
        "ratelimit_service_rate_limit_total_hits{domain=\"conformance-marker\",key1=\"marker\"}"
    } else {
        "ratelimit.service.rate_limit.conformance-marker.marker.total_hits"
    };
    let step = serde_json::from_value(serde_json::json!({"ask": ["marker=x"], "code": "ok"})).unwrap();
    for marks in [1.0, 2.0] {
        client.take(&step, "conformance-marker", &step.expected).await?;
        let start = std::time::Instant::now();
        while client.server.statistics.sums(client.server).get(name).copied().unwrap_or_default() < marks {
            if start.elapsed() > Duration::from_secs(5) {
                let names: Vec<String> = client.server.statistics.sums(client.server).into_keys().take(20).collect();
                return Err(format!("no statistics come: {names:?}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// The subjects of the cases, and so many of them.
#[test]
fn there_are_as_many_cases_as_promised_and_no_two_of_one_name() {
    let files = case::files();
    let names: BTreeSet<String> = files
        .iter()
        .flat_map(|(file, about)| about.cases.iter().map(move |case| format!("{file}: {}", case.name)))
        .collect();
    let cases: usize = files.iter().map(|(_, file)| file.cases.len()).sum();
    assert_eq!(names.len(), cases, "two cases of a file have one name");
    assert!(cases >= 300, "{cases} cases");
    assert!(files.iter().all(|(_, file)| !file.about.is_empty()));
}

/// A case that checks nothing would pass anywhere.
#[test]
fn every_case_expects_something() {
    for (file, about) in case::files() {
        for case in &about.cases {
            let answers = case.steps.iter().filter(|step| step.expected != case::Expected::default()).count();
            let expects = answers + case.stats.len() + case.series.len() + usize::from(case.refused.is_some());
            assert!(expects > 0, "{file}: {}: expects nothing", case.name);
            let marks = [&case.flaw, &case.differs].into_iter().flatten().count();
            assert!(marks <= 1, "{file}: {}: is it a flaw, or does Tollgate differ?", case.name);
            let Otherwise { refused, ends, steps, stats, series } = &case.tollgate;
            // The words of a refusal are its own everywhere.
            let refuses_alone = refused.is_some() && case.refused.is_none();
            let has_own = refuses_alone || *ends || steps.is_some() || stats.is_some() || series.is_some();
            assert_eq!(
                has_own || case.steps.iter().any(|step| step.tollgate.is_some()),
                case.differs.is_some(),
                "{file}: {}: what Tollgate answers instead, and why it differs, go together",
                case.name
            );
        }
    }
}

/// The page on differences has every difference that a case shows, and no other.
#[test]
fn the_page_lists_every_difference_and_every_flaw() {
    let page = std::fs::read_to_string("docs/differences.md").unwrap();
    let marked = |mark: fn(&Case) -> &Option<String>| -> BTreeSet<String> {
        case::files().iter().flat_map(|(_, file)| &file.cases).filter_map(|case| mark(case).clone()).collect()
    };
    assert_eq!(listed(&page, "Differences on purpose"), marked(|case| &case.differs));
    assert_eq!(listed(&page, "Flaws that are not copied"), marked(|case| &case.flaw));
}

/// Returns the first cells of the table in a section.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).expect(heading);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(id, _)| id.to_owned()).collect()
}
