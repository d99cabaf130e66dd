//! The README tells the truth.

use crate::support;

use ::tollgate::algorithm::Algorithm;
use support::redis::Redis;
use support::tollgate::{self, Tollgate};

fn readme() -> String {
    std::fs::read_to_string("README.md").unwrap()
}

/// The fenced blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    readme().split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
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
fn its_rules_load_without_a_warning() {
    let blocks = blocks("yaml");
    assert_eq!(blocks.len(), 1);
    for block in blocks {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, block).unwrap();
        let output = tollgate::command().args(["check", "--strict"]).arg(file.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn its_screens_show_what_happens() {
    let screens = blocks("console");
    let tollgate = Tollgate::start_from(&["RULES=config/rules"]);
    let mut said = String::new();
    for _ in 0..6 {
        let address = format!("localhost:{}", tollgate.grpc_port);
        let ask = ["ask", "--address", &address, "--domain", "shop", "user=ann"];
        let output = tollgate::command().args(ask).output().unwrap();
        said.push_str(std::str::from_utf8(&output.stdout).unwrap());
    }
    let (_, shown) = screens[0].split_once('\n').unwrap();
    assert_eq!(without_seconds(&said), without_seconds(shown));

    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rules")).unwrap();
    let rules =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: minuets\n      requests_per_unit: 5\n";
    std::fs::write(folder.path().join("rules/shop.yaml"), rules).unwrap();
    let output = tollgate::command().args(["check", "rules"]).current_dir(folder.path()).output().unwrap();
    let (_, shown) = screens[1].split_once('\n').unwrap();
    assert_eq!(std::str::from_utf8(&output.stderr).unwrap(), shown);
}

#[tokio::test]
async fn the_commands_that_it_names_are_all_that_a_user_of_redis_needs() {
    let readme = readme();
    let (_, sentence) = readme.split_once("Its user needs ").unwrap();
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
fn what_it_points_to_is_there() {
    for link in readme().split("](").skip(1) {
        let target = link.split(')').next().unwrap();
        if target.starts_with("http") {
            continue;
        }
        let (path, section) = target.split_once('#').unwrap_or((target, ""));
        assert!(std::path::Path::new(path).exists(), "{target}");
        if !section.is_empty() {
            let page = std::fs::read_to_string(path).unwrap();
            let mut headings = page.lines().filter_map(|line| line.strip_prefix('#'));
            let anchor = |heading: &str| {
                let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
                words.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect::<String>()
            };
            assert!(headings.any(|heading| anchor(heading) == section), "{target}");
        }
    }
}
