//! All commands of the command line alike: their help, their formats, and readers that stop early.

use std::io;
use std::process::{Command, Stdio};

use crate::process::{RULES, text};
use crate::support::terminal::Terminal;
use crate::support::tollgate::{self, Tollgate};

/// Runs a command whose standard output, and its standard error as well, have no reader. Returns its exit code, and
/// what it has written to standard error while that had one.
fn unread(command: impl Fn() -> Command) -> (Option<i32>, String) {
    let gone = || io::pipe().unwrap().1;
    let output = command().stdout(gone()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let status = command().stdout(gone()).stderr(gone()).status().unwrap();
    assert_eq!(output.status.code(), status.code(), "{:?}", command());
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let service = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let rules = service.rules.path().join("rules.yaml");
    let rules = rules.to_str().unwrap();
    let log = service.rules.path().join("log.csv");
    std::fs::write(&log, "time,user\n2026-01-02T03:04:05Z,ann\n").unwrap();
    let log = log.to_str().unwrap();
    let (grpc, http) = (format!("localhost:{}", service.grpc_port), format!("http://localhost:{}", service.http_port));
    for (words, code) in [
        (&["--help"][..], 0),
        (&["serve", "--help"], 0),
        (&["--version"], 0),
        (&["check", "--env"], 0),
        (&["check", "--env", "--format", "json"], 0),
        (&["check", rules], 0),
        (&["check", rules, "--format", "json"], 0),
        (&["check", "nowhere"], 1),
        (&["ask", "-a", &grpc, "-d", "shop", "user=ann"], 0),
        (&["ask", "-a", &grpc, "-d", "shop", "usr=ann"], 3),
        (&["explain", "-a", &http, "-d", "shop", "user=bob"], 0),
        (&["health", "-a", &grpc], 0),
        (&["replay", "--rules", rules, "--map", "user=%user%", log], 0),
        (&["top", "-a", &http], 0),
        (&["bans", "-a", &http], 0),
        (&["replicas", "-a", &http], 0),
        (&["usage", "-a", &http], 0),
        (&["counter", "get", "-d", "shop", "user=ann"], 1),
        (&["schema"], 0),
        (&["settings"], 0),
        (&["metrics"], 0),
        (&["command-line"], 0),
        (&["completions", "bash"], 0),
        (&["man"], 0),
    ] {
        let command = || {
            let mut command = tollgate::command();
            command.args(words).envs([("ADMIN_TOKEN", "a token of some length"), ("RULES", rules)]);
            command
        };
        let (exit, said) = unread(command);
        assert_eq!(exit, Some(code), "{words:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("pipe") && !said.contains("error: Br"), "{said}");
    }
}

/// Returns the names of all commands, as the reference page lists them.
fn commands() -> Vec<String> {
    let page = text(&tollgate::command().arg("command-line").output().unwrap().stdout);
    let name = |line: &str| Some(line.strip_prefix("| [`tollgate ")?.split('`').next()?.to_owned());
    page.lines().filter_map(name).collect()
}

fn help(words: &str, flag: &str) -> String {
    let output = tollgate::command().args(words.split_whitespace()).arg(flag).output().unwrap();
    assert!(output.status.success(), "{words} {flag}: {output:?}");
    text(&output.stdout)
}

#[test]
fn the_help_of_every_command_is_short_and_has_an_example() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for command in ["", "counter", "adjust"].into_iter().chain(commands.iter().map(String::as_str)) {
        let help = help(command, "--help");
        assert!(help.lines().count() < 60, "{command}: {} lines: {help}", help.lines().count());
        assert!(help.contains("\nExamples:\n  # "), "{command}: {help}");
        assert!(!help.contains("REDIS_TIMEOUT"), "{command}: {help}");
    }
    let overview = help("", "--help");
    for group in ["Serve:", "Ask:", "See:", "Change:", "Work with files:", "Look up:"] {
        assert!(overview.contains(&format!("\n{group}\n  ")), "{group} is not in {overview}");
    }
}

#[test]
fn the_settings_that_help_leaves_out_are_shown_on_request() {
    for command in ["serve", "explain", "counter get", "scale", "adjustments"] {
        assert!(help(command, "--help").contains("--help-settings"), "{command}");
        let settings = help(command, "--help-settings");
        assert!(settings.contains("[env: REDIS_TIMEOUT=]") && settings.contains("Store:"), "{command}: {settings}");
        assert!(!settings.contains("Examples:") && !settings.contains("--domain "), "{command}: {settings}");
    }
    assert_eq!(help("", "--help-settings"), help("serve", "--help-settings"));
}

#[test]
fn manual_pages_have_examples() {
    let folder = tempfile::tempdir().unwrap();
    let output = tollgate::command().arg("man").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for command in commands() {
        let name = format!("tollgate-{}.1", command.replace(' ', "-"));
        let page = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        assert!(page.contains(".SH EXAMPLES\n") && page.contains("tollgate "), "{name}: {page}");
    }
}

#[test]
fn every_command_that_prints_data_takes_a_format_and_json() {
    let printing = ["ask", "explain", "health", "counter get", "counter reset", "top", "bans", "replicas", "usage"];
    let changing = ["scale", "adjust number", "adjust pass", "adjust end", "adjustments", "replay"];
    for command in printing.into_iter().chain(changing) {
        let help = help(command, "--help");
        assert!(help.contains("--format <FORMAT>") && help.contains("--json"), "{command}: {help}");
        assert!(help.contains("text or json") || help.contains("text, json or csv"), "{command}: {help}");
        let output =
            tollgate::command().args(command.split(' ')).args(["--json", "--format", "text"]).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("cannot be used with"), "{command}: {said}");
        let output = tollgate::command().args(command.split(' ')).args(["--format", "xml"]).output().unwrap();
        assert!(output.status.code() == Some(1), "{command}: {output:?}");
    }
}

#[test]
fn formats_agree() {
    let token = ("ADMIN_TOKEN", "a token of some length");
    let service = Tollgate::start(RULES, &["ADMIN_API=true", &format!("{}={}", token.0, token.1)]);
    let (grpc, http) = (format!("localhost:{}", service.grpc_port), format!("http://localhost:{}", service.http_port));
    let log = service.rules.path().join("log.csv");
    std::fs::write(&log, "time,user\n2026-01-02T03:04:05Z,=ann\n").unwrap();
    let (rules, log) = (service.rules.path().join("rules.yaml"), log.to_str().unwrap().to_owned());
    let rules = rules.to_str().unwrap();
    for _ in 0..3 {
        tollgate::command().args(["ask", "-a", &grpc, "-d", "shop", "user=ann"]).output().unwrap();
    }
    let replay = ["replay", "--rules", rules, "--map", "user=%user%", &log];
    for (words, heading) in [
        (&["top", "-a", &http][..], "\"domain\",\"rule\",\"descriptor\",\"hits\""),
        (&["bans", "-a", &http], "\"domain\",\"rule\",\"descriptor\",\"banned_ms\""),
        (&["usage", "-a", &http], "\"from\",\"for\",\"domain\""),
        (&replay, "\"domain\",\"rule\",\"limit\""),
        (&["ask", "-a", &grpc, "-d", "shop", "--hits", "0", "user=bob"], ""),
        (&["health", "-a", &grpc], ""),
    ] {
        let printed = |more: &[&str]| {
            let output = tollgate::command().args(words).args(more).envs([token]).output().unwrap();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        let (code, json, said) = printed(&["--format", "json"]);
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{words:?}: {json}{said}");
        let (same, alias, _) = printed(&["--json"]);
        assert_eq!((code, same), (Some(0), Some(0)), "{words:?}: {said}");
        // Rates change with time.
        assert_eq!(alias.len() / 10, json.len() / 10, "{alias}{json}");
        let (code, csv, said) = printed(&["--format", "csv"]);
        match heading {
            "" => assert!(code == Some(1) && said.contains("csv"), "{words:?}: {said}"),
            heading => assert!(code == Some(0) && csv.starts_with(heading), "{words:?}: {csv}{said}"),
        }
    }
}

#[test]
fn a_terminal_that_wants_colors_gets_them() {
    let service = Tollgate::start(RULES, &[]);
    let ask = format!("{} ask -a localhost:{} -d shop user=ann", tollgate::BINARY, service.grpc_port);
    for (variables, is_colored) in [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("TERM", "dumb")], false)] {
        let mut terminal = Terminal::start(&format!("{ask}; echo done"), variables);
        terminal.wait_for("done");
        assert_eq!(terminal.shown().contains("\u{1b}["), is_colored, "{variables:?}: {}", terminal.shown());
    }
    let mut terminal = Terminal::start(&format!("{ask} | cat; {ask}; echo done"), &[]);
    terminal.wait_for("done");
    let shown = terminal.shown();
    assert!(shown.starts_with("LIMITED\r\n") && shown.contains("\u{1b}[31mLIMITED\u{1b}[0m\r\n"), "{shown}");
    let wrong = service.rules.path().join("wrong.yaml");
    std::fs::write(&wrong, "domain: shop\nlimits: []\n").unwrap();
    let mut terminal = Terminal::start(&format!("{} check {}; echo done", tollgate::BINARY, wrong.display()), &[]);
    terminal.wait_for("\u{1b}[31mrefused\u{1b}[0m: 1 error");
}

#[test]
fn a_misspelt_command_is_told_from_the_public_ones() {
    for (given, meant) in [("command-lin", None), ("explan", Some("'explain'")), ("overrid", Some("'overrides'"))] {
        let output = tollgate::command().arg(given).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(!said.contains("'command-line'") && meant.is_none_or(|meant| said.contains(meant)), "{said}");
    }
    assert!(tollgate::command().arg("command-line").output().unwrap().status.success());
}
