//! The runbook, `docs/operations.md`: each alert has its section, with a command and a page of the console to look at
//! first. `tests/it/pages.rs` checks that the command line knows the commands of all pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use regex::Regex;

use super::monitoring::alerts;
use crate::pages::block::Page;
use crate::support::redis::Redis;
use crate::support::tollgate;

const RUNBOOK: &str = "docs/operations.md";

/// The sections of the alerts, by their names.
fn sections() -> BTreeMap<String, String> {
    let page = fs::read_to_string(RUNBOOK).unwrap();
    let (_, alerts) = page.split_once("\n## Alerts\n").unwrap();
    let sections = alerts.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// The text in backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_alert_has_its_section_with_a_command_and_a_page_of_the_console() {
    let sections = sections();
    let alerts = alerts();
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        let section = sections.get(name).unwrap_or_else(|| panic!("{RUNBOOK} has no section {name}"));
        let places = ["**Meaning.** ", "**In ten seconds.** ", "**Do.**"].map(|part| section.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {places:?}");
        assert!(code(section).iter().any(|code| code.starts_with("tollgate ")), "{name} has no command");
        let annotations = &alert["annotations"];
        assert_eq!(annotations["runbook"], format!("{RUNBOOK}#{}", name.to_lowercase()));
        // The alert may add what it knows: the domain.
        let page = annotations["console"].as_str().unwrap_or_else(|| panic!("{name} has no annotation console"));
        let (page, _) = page.split_once("&domain={{").unwrap_or((page, ""));
        assert!(code(section).contains(&page), "{name}: its section does not have {page}");
    }
    let names: BTreeSet<_> = alerts.iter().map(|alert| alert["alert"].as_str().unwrap()).collect();
    assert_eq!(sections.keys().map(String::as_str).collect::<BTreeSet<_>>(), names, "sections, and alerts");
}

/// The pages of the console, each with its script and that of the addresses of all pages. `PAGES = { keys, adjust:
/// adjustPage }` declares them, and each has a file of its name.
fn console() -> BTreeMap<String, String> {
    let script = |name: &str| fs::read_to_string(format!("src/http/console/assets/{name}.js")).unwrap();
    let frame = script("page");
    let declaration = Regex::new(r"PAGES = \{([^}]*)\}").unwrap();
    let names = declaration.captures(&frame).expect("the console declares its PAGES").get(1).unwrap().as_str();
    let name = |declared: &str| declared.split(':').next().unwrap().trim().to_owned();
    names.split(',').map(name).map(|name| (name.clone(), script(&name) + &script("address"))).collect()
}

/// Returns why the console does not have this address, `/console#keys?by=denied`.
fn slip(address: &str, console: &BTreeMap<String, String>) -> Option<String> {
    let (name, query) = address.strip_prefix("/console#")?.split_once('?').unwrap_or((&address[9..], ""));
    let Some(script) = console.get(name) else {
        return Some(format!("no page {name}: there are {:?}", console.keys()));
    };
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.into_owned().find_map(|(key, value)| {
        let reads = ["value", ".get", ".getAll"].map(|read| format!("{read}('{key}')"));
        let is_read = reads.iter().any(|read| script.contains(read));
        // A name that the reader fills in, or an alert.
        let is_open = value.starts_with("{{") || value.chars().all(|char| char.is_ascii_uppercase());
        let is_name = ["domain", "rule", "in", "limit", "key"].contains(&&*key) || value.parse::<u64>().is_ok();
        // A page lists the values of a parameter as the keys of an object, or as texts.
        let is_known = script.contains(&format!("\t{value}: [")) || script.contains(&format!("'{value}'"));
        (!is_read || !(is_open || is_name || is_known)).then(|| format!("the page {name} has no {key}={value}"))
    })
}

#[test]
fn the_console_has_the_addresses_that_pages_and_alerts_name() {
    let console = console();
    let mut links = Vec::new();
    for page in Page::all() {
        let spans = page.code_spans().into_iter().filter(|(_, code)| code.contains("/console#"));
        links.extend(spans.map(|(place, code)| (place, code.to_owned())));
    }
    let of_alert = |alert: &serde_json::Value| alert["annotations"]["console"].as_str().unwrap().to_owned();
    links.extend(alerts().iter().map(|alert| (alert["alert"].to_string(), of_alert(alert))));
    assert!(links.len() > 40, "{links:?}");
    for (place, link) in links {
        let address = &link[link.find("/console#").unwrap()..];
        assert_eq!(slip(address, &console), None, "{place}: {link}");
    }
    let wrong =
        ["/console#nowhere", "/console#keys?rank=denied", "/console#keys?by=denials", "/console#adjust?domain=shop"];
    assert!(wrong.iter().all(|address| slip(address, &console).is_some()), "{console:?}");
}

#[test]
fn the_commands_to_run_first_of_all_do_what_they_say() {
    let page = fs::read_to_string(RUNBOOK).unwrap();
    let (_, first) = page.split_once("\n## First of all\n").unwrap();
    let table = first.lines().filter(|line| line.starts_with("| "));
    let commands: Vec<&str> = table.flat_map(code).filter(|code| code.starts_with("tollgate ")).collect();
    let ["tollgate adjustments", "tollgate adjust end ID"] = commands[commands.len() - 2..] else {
        panic!("the table does not end with the way back: {commands:?}")
    };
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let rules =
        "{domain: DOMAIN, descriptors: [{key: user, rate_limit: {name: RULE, unit: day, requests_per_unit: 1}}]}";
    fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let run = |words: &str, more: &[&str]| {
        let mut command = tollgate::command();
        command.args(words.split(' ').skip(1)).args(more);
        command.env("RULES", folder.path()).env("REDIS_URL", redis.url()).env("REDIS_TIMEOUT", "20s");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let by = ["--who", "ann", "--why", "a test"];
    let begun = &commands[..commands.len() - 2];
    assert!(begun.len() > 3, "{begun:?}");
    for (number, command) in begun.iter().enumerate() {
        run(command, &[&by[..], &["--id", &number.to_string()]].concat());
    }
    assert_eq!(run("tollgate adjustments", &[]).lines().filter(|line| !line.starts_with(' ')).count(), begun.len());
    for number in 0..begun.len() {
        run(&format!("tollgate adjust end {number}"), &by);
    }
}
