//! The README and the pages of `docs/` tell the truth.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support;
use ::tollgate::algorithm::Algorithm;
use support::redis::Redis;
use support::tollgate::{self, Tollgate};

/// The README and every page of `docs/`.
fn pages() -> Vec<PathBuf> {
    let pages = fs::read_dir("docs").unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.sort();
    pages.insert(0, "README.md".into());
    pages
}

fn page(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

/// The fenced blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Seconds differ from run to run.
fn without_seconds(text: &str) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let words = ["resets in ", "try again in "].iter().find(|words| line.contains(**words));
        kept.push_str(words.map_or(line, |words| line.split_inclusive(words).next().unwrap()));
        kept.push('\n');
    }
    kept
}

#[test]
fn their_rules_load_without_a_warning() {
    let pages = pages().into_iter().map(|path| fs::read_to_string(path).unwrap());
    let blocks: Vec<_> = pages.flat_map(|page| blocks(&page, "yaml")).collect();
    assert!(blocks.len() > 1);
    for block in blocks {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        fs::write(&file, block).unwrap();
        let output = tollgate::command().args(["check", "--strict"]).arg(file.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

fn shows_six_requests(screen: &str) {
    let tollgate = Tollgate::start_from(&["RULES=config/rules"]);
    let mut said = String::new();
    for _ in 0..6 {
        let address = format!("localhost:{}", tollgate.grpc_port);
        let ask = ["ask", "--address", &address, "--domain", "shop", "user=ann"];
        let output = tollgate::command().args(ask).output().unwrap();
        said.push_str(std::str::from_utf8(&output.stdout).unwrap());
    }
    let (_, shown) = screen.split_once('\n').unwrap();
    assert_eq!(without_seconds(&said), without_seconds(shown));
}

#[test]
fn their_screens_show_what_happens() {
    for path in ["README.md", "docs/start.md"] {
        let screens = blocks(&page(path), "console");
        assert_eq!(screens.len(), 1, "{path}");
        shows_six_requests(&screens[0]);
    }

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("rules")).unwrap();
    let rules =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: minuets\n      requests_per_unit: 5\n";
    fs::write(folder.path().join("rules/shop.yaml"), rules).unwrap();
    let output = tollgate::command().args(["check", "rules"]).current_dir(folder.path()).output().unwrap();
    let screens = blocks(&page("docs/rules.md"), "console");
    let (_, shown) = screens[0].split_once('\n').unwrap();
    assert_eq!(std::str::from_utf8(&output.stderr).unwrap(), shown);
}

#[tokio::test]
async fn the_commands_that_they_name_are_all_that_a_user_of_redis_needs() {
    let page = page("docs/running.md");
    let (_, sentence) = page.split_once("Its user needs ").unwrap();
    let (commands, _) = sentence.split_once(" on keys").unwrap();
    let commands: Vec<String> =
        commands.split('`').skip(1).step_by(2).map(|name| format!("+{}", name.replace(' ', "|"))).collect();
    let redis = Redis::start();
    redis.command::<()>(&format!("ACL SETUSER tollgate on >secret ~p:* -@all {}", commands.join(" "))).await;

    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for algorithm in Algorithm::ALL {
        let (key, period) = if algorithm.has_holders() { ("stream", "") } else { ("user", "unit: day, ") };
        let limit = format!("{{{period}requests_per_unit: 1, algorithm: {algorithm}, failure_mode: closed}}");
        rules += &format!("- {{key: of, value: {algorithm}, descriptors: [{{key: {key}, rate_limit: {limit}}}]}}\n");
    }
    let settings = [&*format!("REDIS_URL={}", redis.url()), "REDIS_AUTH=tollgate:secret", "CACHE_KEY_PREFIX=p:"];
    let tollgate = Tollgate::start(&rules, &settings);
    for algorithm in Algorithm::ALL {
        let key = if algorithm.has_holders() { "stream" } else { "user" };
        let entries = [("of", algorithm.name()), (key, "ann")];
        assert!(tollgate.passes("shop", &entries).await, "{algorithm}");
        assert!(!tollgate.passes("shop", &entries).await, "{algorithm}");
    }
    for kind in ["refused", "counter"] {
        assert_eq!(tollgate.metric(&format!("tollgate_store_errors_total{{kind=\"{kind}\"}}")), 0.0, "{kind}");
    }
}

#[test]
fn what_they_point_to_is_there() {
    for path in pages() {
        for link in fs::read_to_string(&path).unwrap().split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if !target.starts_with("http") {
                assert!(leads_somewhere(&path, target), "{}: {target}", path.display());
            }
        }
    }
}

/// Whether what a page links to is there, and has the heading that the link names.
fn leads_somewhere(page: &Path, target: &str) -> bool {
    let (path, section) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    if section.is_empty() {
        return path.exists();
    }
    let Ok(page) = fs::read_to_string(path) else { return false };
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect::<String>()
    };
    page.lines().filter_map(|line| line.strip_prefix('#')).any(|heading| anchor(heading) == section)
}
