//! The commands and outputs in the documentation work when followed step by step from a fresh start.

pub mod block;
mod terminal;
mod unrun;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use block::{Block, Class, Page};
use terminal::Terminal;

use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate};

/// The standard output of a command of ours.
fn printed(arguments: &[&str]) -> String {
    let output = tollgate::command().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_a_page_says_happens() {
    let mut wrong = Vec::new();
    for page in Page::all() {
        let mut terminal = Terminal::open();
        for block in page.blocks() {
            wrong.extend(follow(&mut terminal, &block));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Does what a block tells the reader to do, and returns the differences from the page.
fn follow(terminal: &mut Terminal, block: &Block) -> Vec<String> {
    if block.is_fresh {
        terminal.end_services();
    }
    if let Some(file) = &block.file {
        terminal.save(file, &block.text);
    }
    let mut wrong = Vec::new();
    if !matches!(block.class, Class::Commands | Class::Screen) {
        return wrong;
    }
    for (command, shown) in block.commands() {
        if let Some(trial) = unrun::trial(&command).filter(|_| !is_run(&command)) {
            trial(&unrun::words(&command));
            continue;
        }
        let Some(output) = terminal.run(&command) else { continue };
        let text = String::from_utf8(output.stdout).unwrap();
        let (place, status) = (&block.place, output.status);
        if block.class == Class::Screen && !is_shown(&text, &shown) {
            wrong.push(format!("{place}: $ {command}\nprints\n{text}and the page says\n{shown}"));
        }
        if block.class == Class::Commands && !status.success() {
            wrong.push(format!("{place}: {command}: {status}\n{text}"));
        }
    }
    wrong
}

/// `make run` is the one target that serves.
fn is_run(command: &str) -> bool {
    command.split('#').next().unwrap().trim() == "make run"
}

/// Returns whether the output matches the page: `...` matches any lines, and times may differ.
fn is_shown(printed: &str, shown: &str) -> bool {
    let lines = |text: &str| -> Vec<String> { text.lines().map(without_times).collect() };
    matches(&lines(printed), &lines(shown))
}

fn matches(printed: &[String], shown: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [dots, shown @ ..] if dots == "..." => (0..=printed.len()).any(|from| matches(&printed[from..], shown)),
        [first, shown @ ..] => printed.first() == Some(first) && matches(&printed[1..], shown),
    }
}

/// A number of seconds or milliseconds becomes `#`, in JSON by the name of its field.
fn without_times(line: &str) -> String {
    let is_number = |char: char| char.is_ascii_digit() || char == '.';
    let mut kept = String::new();
    let mut rest = line.trim_end();
    while let Some(start) = rest.find(|char: char| char.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let end = number.find(|char| !is_number(char)).unwrap_or(number.len());
        let (number, after) = number.split_at(end);
        let unit: String = after.chars().take_while(char::is_ascii_alphabetic).collect();
        let is_word = before.ends_with(|char: char| char.is_alphanumeric());
        kept.push_str(before);
        let is_time = ["s", "ms"].contains(&&*unit) && !is_word || before.ends_with("_ms\":");
        kept.push_str(if is_time { "#" } else { number });
        rest = after;
    }
    kept + rest
}

#[test]
fn times_are_told_from_other_numbers() {
    let line = "user=u1: 5 per minute (v2s), 4 left, resets in 65s, after 1.5ms, 3 stars";
    assert_eq!(without_times(line), "user=u1: 5 per minute (v2s), 4 left, resets in #s, after #ms, 3 stars");
    assert_eq!(without_times("{\"limit\":5,\"reset_after_ms\":65522}"), "{\"limit\":5,\"reset_after_ms\":#}");
    assert!(is_shown("a\nb\nc 7s\n", "a\n...\nc 8s\n"));
    assert!(!is_shown("a\nb\n", "a\n"));
    assert!(!is_shown("a 5\n", "a 6\n"));
}

#[test]
fn rules_load_without_a_warning() {
    let mut tried = 0;
    for block in Page::all().iter().flat_map(Page::blocks).filter(|block| block.class == Class::Rules) {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        fs::write(&file, &block.text).unwrap();
        let output = tollgate::command().args(["check", "--strict"]).arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", block.place);
        tried += 1;
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn parts_of_files_are_in_them() {
    let lines = |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    for block in Page::all().iter().flat_map(Page::blocks) {
        if let Class::PartOf(file) = &block.class {
            let whole = fs::read_to_string(file).unwrap();
            assert!(lines(&whole).contains(&lines(&block.text)), "{}: not in {}", block.place, file.display());
        }
    }
}

#[test]
fn commands_in_the_text_are_known() {
    for page in Page::all() {
        for (place, code) in page.code_spans() {
            println!("{place}: {code}"); // a trial that fails says what it tried
            match &unrun::words(code)[..] {
                ["tollgate" | "target/quick/tollgate", arguments @ ..] => unrun::tollgate_knows(arguments),
                words => {
                    if let Some(trial) = unrun::trial(code).filter(|_| words.len() > 1) {
                        trial(words);
                    }
                }
            }
        }
    }
}

#[test]
fn settings_and_metrics_in_the_text_are_there() {
    // Words of gRPC and of Envoy that look like settings.
    const OTHERS: &str = "INVALID_ARGUMENT NOT_SERVING RESOURCE_EXHAUSTED DEADLINE_EXCEEDED OVER_LIMIT STRICT_DNS \
                          RST_STREAM SO_REUSEPORT SOURCE_DATE_EPOCH TOLLGATE_COMMIT REDIS_ULR REDIS_HOST \
                          RUST_BACKTRACE SSL_CERT_FILE SSL_CERT_DIR";
    let known = [
        printed(&["settings"]),
        fs::read_to_string("tests/settings/envoyproxy-ratelimit.txt").unwrap(),
        fs::read_to_string("Makefile").unwrap(),
        OTHERS.to_owned(),
    ]
    .concat();
    let settings = words(&known, |char| char.is_ascii_uppercase() || char.is_ascii_digit() || char == '_');
    let page_on_metrics = printed(&["metrics"]);
    let metrics = words(&page_on_metrics, |char| char.is_ascii_lowercase() || char == '_');
    for page in Page::all() {
        for (place, code) in page.code_spans() {
            let name = code.split(['=', '{', ' ']).next().unwrap();
            let is_setting = name.contains('_') && name.len() > 3 && name.chars().all(is_of_a_setting);
            assert!(!is_setting || settings.contains(name), "{place}: {name} is no setting");
            let is_metric = name.starts_with("tollgate_");
            assert!(!is_metric || metrics.contains(name), "{place}: {name} is no metric");
            let row = page_on_metrics.lines().find(|row| row.starts_with(&format!("| `{name}` "))).unwrap_or_default();
            // `label="value"` of a series that the process has, whatever the rules are.
            for word in code.split(['{', ',', '}']).skip(1).filter_map(|pair| pair.split_once('=')).flat_map(both) {
                assert!(!is_metric || row.contains(&format!("`{word}`")), "{place}: {name} has no {word}");
            }
        }
    }
}

/// A label and its value, without the quotes.
fn both((label, value): (&str, &str)) -> [String; 2] {
    [label, value].map(|word| word.trim_matches('"').to_owned())
}

fn is_of_a_setting(char: char) -> bool {
    char.is_ascii_uppercase() || char.is_ascii_digit() || char == '_'
}

/// The words of these characters.
fn words(text: &str, is_of_one: impl Fn(char) -> bool) -> BTreeSet<&str> {
    text.split(|char| !is_of_one(char)).collect()
}

#[test]
fn the_reference_pages_are_current() {
    for page in ["settings", "metrics", "command-line"] {
        let kept = fs::read_to_string(format!("docs/{page}.md")).unwrap_or_default();
        let refresh = format!("cargo run -- {page} > docs/{page}.md");
        assert!(printed(&[page]) == kept, "docs/{page}.md is stale; refresh it: {refresh}");
    }
}

#[test]
fn the_table_of_options_that_do_not_go_together_is_current() {
    let page = fs::read_to_string("docs/rules.md").unwrap();
    let table = ::tollgate::engine::rules::pairs::page();
    assert!(page.contains(&table), "docs/rules.md is stale; refresh it: make pages");
}

#[tokio::test]
async fn every_metric_is_explained() {
    let redis = Redis::stopped();
    let rules = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let tollgate = Tollgate::start(rules, &[&format!("REDIS_URL={}", redis.tcp_address())]);
    tollgate.passes("shop", &[("user", "ann")]).await;
    let page = fs::read_to_string("docs/metrics.md").unwrap();
    let (_, text) = tollgate.get("/metrics");
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let name = if name.starts_with("process_") { "`process_*`".to_owned() } else { format!("| `{name}` |") };
        assert!(page.contains(&name), "docs/metrics.md does not have {name}");
    }
}

#[test]
fn every_key_of_a_rules_file_is_explained() {
    let schema = ::tollgate::sources::files::schema();
    let rules = fs::read_to_string("docs/rules.md").unwrap();
    let explained: String = rules.lines().filter(|line| line.starts_with("| `")).collect();
    let mappings = schema["definitions"].as_object().unwrap().values().chain([&schema]);
    let keys: BTreeSet<&String> =
        mappings.flat_map(|mapping| mapping["properties"].as_object().unwrap().keys()).collect();
    assert!(keys.len() > 20, "{keys:?}");
    for key in keys {
        let is_there = [format!("`{key}`"), format!("`{key}: "), format!("{{{key}: "), format!(" {key}: ")];
        assert!(is_there.iter().any(|form| explained.contains(form)), "docs/rules.md does not explain {key}");
    }
}

#[test]
fn links_lead_somewhere() {
    for page in Page::all() {
        for link in page.text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if !target.starts_with("http") {
                assert!(leads_somewhere(&page.path, target), "{}: {target}", page.name());
            }
        }
    }
}

/// Returns whether the target of a link exists, including its heading.
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

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string("docs/README.md").unwrap();
    for page in Page::all() {
        let name = page.path.file_name().unwrap().to_str().unwrap();
        let is_listed = index.contains(&format!("]({name})"));
        assert!(page.path.parent() != Some(Path::new("docs")) || name == "README.md" || is_listed, "{}", page.name());
    }
}
