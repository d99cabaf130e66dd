//! Reports about settings: every mistake, every variable without effect, and the values in use.

use crate::support;

use std::process::Output;

use support::tollgate::{self, Tollgate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 20}
";

/// Runs the command to its end.
fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    tollgate::command().args(arguments).envs(settings.iter().copied()).output().unwrap()
}

/// Returns the lines of standard error of a service that fails to start.
fn refusal(arguments: &[&str], settings: &[(&str, &str)]) -> Vec<String> {
    let output = run(arguments, settings);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect()
}

fn messages(tollgate: &Tollgate, level: &str) -> Vec<String> {
    let lines = tollgate.logs().into_iter().filter(|line| line["level"] == level);
    lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

/// A file of rules that lives as long as its folder.
fn rules() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.yaml");
    std::fs::write(&path, RULES).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn all_mistakes_are_told_together_each_by_the_name_that_was_used() {
    let mut arguments = vec!["--grpc-port", "99999", "--failure-mode=opne", "--redis-auth", "hidden"];
    arguments.extend(["--max-entries=0", "--gprc-port", "1", "--redis-aut=hidden", "--redis-pass", "hidden", "-x"]);
    let settings = [
        ("LOG_FORMAT", "json"),
        ("REDIS_TIMEOUT", "100"),
        ("SHADOW_MODE", "ture"),
        ("BACKEND_TYPE", "redis"),
        ("ADMIN_API", "T"),
        ("ADMIN_TOKEN", "hidden"),
        ("LIMIT_LIMIT_HEADER", "a b"),
        ("LIMIT_RESET_HEADER", "a:b"),
        ("REDIS_TYPE", "clustered"),
        ("WORKER_THREADS", ""),
    ];
    let lines: Vec<serde_json::Value> =
        refusal(&arguments, &settings).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors = lines.iter().filter(|line| line["level"] == "ERROR");
    let errors: Vec<_> = errors.map(|line| line["message"].as_str().unwrap()).collect();
    let expected = [
        "--gprc-port (command line): unknown flag; did you mean --grpc-port?",
        "--redis-aut (command line): unknown flag; did you mean --redis-auth?",
        "--redis-pass (command line): unknown flag; did you mean --redis-tls?",
        "-x (command line): unknown flag",
        "--failure-mode=opne (command line): must be one of open, closed, local, error; did you mean open?",
        "SHADOW_MODE=ture (environment): must be one of true, false; did you mean true?",
        "REDIS_TYPE=clustered (environment): must be one of SINGLE, SENTINEL, CLUSTER",
        "REDIS_TIMEOUT=100 (environment): a duration has units, such as 150us, 20ms, 1h30m",
        "--grpc-port=99999 (command line): must be a whole number from 0 to 65535",
        "--max-entries=0 (command line): must be a whole number from 1 to 4294967295",
        "no rules: name a file or folder with --rules PATH (or RULES), or the layout of envoyproxy/ratelimit with \
         RUNTIME_SUBDIRECTORY",
        "BACKEND_TYPE=redis (environment): needs REDIS_URL, for example REDIS_URL=localhost:6379",
        "ADMIN_TOKEN=*** (environment): has 6 characters, which is too easy to guess: it needs at least 16",
        "LIMIT_LIMIT_HEADER=a b (environment): not a header name: use letters, digits and dashes",
        "LIMIT_RESET_HEADER=a:b (environment): not a header name: use letters, digits and dashes",
    ];
    assert_eq!(errors, expected);
    assert!(!format!("{lines:?}").contains("hidden"), "{lines:?}");
}

#[test]
fn every_command_tells_all_mistakes_of_its_own_settings_and_of_no_others() {
    let (_folder, path) = rules();
    let wrong = [("FAILURE_MODE", "shut"), ("DEFAULT_ALGORITHM", "gcra"), ("REDIS_TIMEOUT", "soon"), ("PORT", "http")];
    let settings_of = |arguments: &[&str]| -> Vec<String> {
        let lines = refusal(arguments, &wrong);
        lines.iter().filter_map(|line| Some(line.strip_prefix("error: ")?.split('=').next()?.to_owned())).collect()
    };
    assert_eq!(settings_of(&["check", &path]), ["DEFAULT_ALGORITHM", "FAILURE_MODE"]);
    assert_eq!(
        settings_of(&["counter", "get", "--rules", &path, "--domain", "shop", "user=ann"]),
        ["DEFAULT_ALGORITHM", "FAILURE_MODE", "REDIS_TIMEOUT"]
    );
    let lines = refusal(&["counter", "get", "--domain", "shop", "user=ann"], &[("BACKEND_TYPE", "redis")]);
    assert!(lines[0].starts_with("error: no rules: ") && lines[1].contains("needs REDIS_URL"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

#[test]
fn what_makes_no_command_is_told_in_claps_words() {
    for (arguments, words) in [
        (&["chek", "rules"][..], "'check'"),
        (&["check", "--fromat=json"], "a similar argument exists: '--format'"),
        (&["check"], "<PATHS>..."),
        (&["--port", "1", "--port", "2"], "cannot be used multiple times"),
    ] {
        let said = refusal(arguments, &[("REDIS_TIMEOUT", "soon")]).join("\n");
        assert!(said.contains(words), "{said}");
        assert!(!said.contains("hidden"), "{said}");
    }
    let help = run(&["serve", "--max-entries", "none", "--help"], &[("LOG_FORMAT", "xml")]);
    assert!(help.status.success());
    let help = run(&["serve", "--help-settings"], &[("LOG_FORMAT", "xml")]);
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("[possible values: text, json]"), "{help}");
}

#[test]
fn what_a_setting_does_not_take_is_told_with_what_it_takes_instead() {
    for ((variable, value), words) in [
        (("REDIS_URL", "localhost"), "the port is missing: write host:port"),
        (("REDIS_URL", "localhost:6379/99"), "write redis://[user:password@]host:port/database"),
        (("REDIS_URL", "a:1,b:2"), "set REDIS_TYPE=SENTINEL and write MASTER,host:port,host:port"),
        (("REDIS_URL", "redis+sentinel://a:1"), "the name of the master, as the Sentinels have it, is missing"),
        (("REDIS_TYPE", "sentinal"), "must be one of SINGLE, SENTINEL, CLUSTER"),
        (("BACKEND_TYPE", "memcache"), "Memcached is not supported: use redis, with REDIS_URL, or memory"),
        (("BACKEND_TYPE", "Memcached"), "Memcached is not supported"),
        (("BACKEND_TYPE", "disk"), "must be one of memory, redis"),
    ] {
        let lines = refusal(&["counter", "get", "--domain", "shop", "user=ann"], &[(variable, value)]);
        let told = |line: &String| line.starts_with(&format!("error: {variable}=")) && line.contains(words);
        assert!(lines.iter().any(told), "{variable}={value}: {lines:?}");
    }
}

#[test]
fn no_secret_is_ever_told() {
    let (_folder, path) = rules();
    let secret = "hidden,hid den\u{1b}%zz";
    for (name, value) in [
        ("REDIS_URL", format!("redis://:{secret}@cache:x")),
        ("REDIS_URL", format!("redis://{secret}")),
        ("REDIS_URL", format!("rediss://:{secret}@cache:x")),
        ("REDIS_URL", format!("redis+sentinel://:{secret}@a:1/main")),
        ("REDIS_URL", format!("{secret}@a:1,b:2")),
        ("REDIS_AUTH", secret.to_owned()),
        ("ADMIN_TOKEN", "hidden".to_owned()),
        ("ADMIN_READ_TOKEN", "hidden".to_owned()),
        ("REDIS_PASSWORD", secret.to_owned()),
        ("REDIS_PERSECOND_URL", secret.to_owned()),
        ("REDIS_SENTINEL_AUTH", secret.to_owned()),
    ] {
        // Settings that prevent the start, whatever else is wrong.
        let settings = [("RULES", path.as_str()), ("ADMIN_API", "true"), ("LOG_LEVEL", "debug"), (name, &value)];
        let mut said = refusal(&[], &settings).join("\n");
        let flag = format!("--{}={value}", name.to_lowercase().replace('_', "-"));
        said += &refusal(&["--rules", &path, "--admin-api", &flag], &[]).join("\n");
        let argument = ["counter", "get", "--rules", &path, "--domain", "shop", "user=ann"];
        said += &refusal(&argument, &[(name, &value), ("BACKEND_TYPE", "memory")]).join("\n");
        assert!(said.contains(name), "{said}");
        assert!(!said.contains("hid"), "{said}");
    }
}

#[test]
fn the_start_tells_what_was_set_and_what_was_misspelt() {
    let settings =
        ["REDIS_ULR=localhost:6379", "LOGLEVEL=debug", "TOLLGATE_PORT=tcp://10.0.0.1:80", "REDIS_AUTH=hidden"];
    let tollgate = Tollgate::start(RULES, &settings);
    assert_eq!(
        messages(&tollgate, "WARN"),
        [
            "LOGLEVEL (environment) does nothing: did you mean LOG_LEVEL?",
            "REDIS_ULR (environment) does nothing: did you mean REDIS_URL?",
            "REDIS_AUTH=*** (environment) does nothing: REDIS_URL is not set, so counters are in the memory of this \
             process",
        ]
    );
    let set = tollgate.logged("settings: ").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(set.starts_with("settings: RULES=") && set.contains(", REDIS_AUTH=***, GRPC_HOST=127.0.0.1, "), "{set}");
    assert!(!format!("{:?}", tollgate.logs()).contains("hidden"));
}

#[test]
fn a_command_warns_of_what_was_meant_for_it_alone() {
    let (_folder, path) = rules();
    let settings = [("REDIS_ULR", "localhost:6379"), ("FALIURE_MODE", "closed"), ("REDIS_PIPELINE_LIMIT", "8")];
    let output = run(&["check", &path], &settings);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "warning: FALIURE_MODE (environment) does nothing: did you mean FAILURE_MODE?\n");
    let said = refusal(&["counter", "get", "--rules", &path, "--domain", "shop", "user=ann"], &settings).join("\n");
    for name in ["REDIS_ULR", "FALIURE_MODE", "REDIS_PIPELINE_LIMIT"] {
        assert!(said.contains(&format!("warning: {name}")), "{said}");
    }
    let said = refusal(&["health", "--address", "localhost:1"], &settings);
    assert!(said.iter().all(|line| !line.starts_with("warning")), "{said:?}");
}

#[test]
fn every_variable_of_envoyproxy_ratelimit_that_does_nothing_is_told_at_the_start() {
    let variables = include_str!("../settings/envoyproxy-ratelimit.txt");
    let page = std::fs::read_to_string("docs/settings.md").unwrap();
    let foreign: Vec<_> = variables.lines().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    let refused = refusal(&[], &foreign.iter().map(|name| (*name, "hidden")).collect::<Vec<_>>());
    for name in &foreign {
        let told = refused.iter().filter(|line| line.contains(&format!(" {name}="))).count();
        assert_eq!(told, 1, "{name}: {refused:#?}");
    }
    // Warnings do not prevent the start.
    let is_error =
        |name: &&str| refused.iter().any(|line| line.contains("ERROR") && line.contains(&format!(" {name}=")));
    let told: Vec<_> = foreign.into_iter().filter(|name| !is_error(name)).map(|name| format!("{name}=x")).collect();
    let tollgate = Tollgate::start(RULES, &told.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(messages(&tollgate, "WARN").len(), told.len());
}

#[test]
fn memory_where_there_are_probably_replicas_is_warned_of() {
    const WARNING: &str = "counters are in the memory of this process, but ";
    let warnings = |settings: &[&str]| {
        let tollgate = Tollgate::start(RULES, settings);
        messages(&tollgate, "WARN").into_iter().filter(|line| line.starts_with(WARNING)).count()
    };
    const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST=10.96.0.1";
    assert_eq!(warnings(&[]), 0);
    assert_eq!(warnings(&[KUBERNETES]), 1);
    assert_eq!(warnings(&["EXPECTED_REPLICAS=2"]), 1);
    assert_eq!(warnings(&[KUBERNETES, "EXPECTED_REPLICAS=1"]), 0, "who says so knows");
    let redis = support::redis::Redis::start();
    assert_eq!(warnings(&[KUBERNETES, &format!("REDIS_URL={}", redis.url())]), 0);
}

#[test]
fn a_service_of_kubernetes_with_the_name_of_a_setting_is_explained() {
    let (_folder, path) = rules();
    let link = [("GRPC_PORT", "tcp://10.96.0.13:8081"), ("GRPC_SERVICE_HOST", "10.96.0.13"), ("RULES", &path)];
    let explained = "a Service named `grpc`: set GRPC_PORT in the container's env, or enableServiceLinks: false";
    for arguments in [&[][..], &["health"], &["ask", "--domain", "shop", "user=ann"]] {
        let said = refusal(arguments, &link).join("\n");
        assert!(said.contains("GRPC_PORT=tcp://10.96.0.13:8081 (environment): not a port"), "{said}");
        assert!(said.contains(explained), "{said}");
    }
    let said = refusal(&["health", "--address", "localhost:1"], &link).join("\n");
    assert!(said.contains("connection to localhost:1 refused"), "who names an address needs no variable: {said}");
}

#[test]
fn booleans_may_be_spelt_as_in_go_and_a_flag_goes_before_its_variable() {
    for on in ["1", "t", "T", "true", "TRUE", "True", "yes", "on"] {
        let said = refusal(&[], &[("ADMIN_API", on)]).join("\n");
        assert!(said.contains(&format!("ADMIN_API={on} (environment): needs an ADMIN_TOKEN")), "{said}");
    }
    for off in ["0", "f", "F", "false", "FALSE", "False", "no", "off"] {
        let said = refusal(&[], &[("ADMIN_API", off)]).join("\n");
        assert!(!said.contains("ADMIN_TOKEN"), "{said}");
        let said = refusal(&["--admin-api"], &[("ADMIN_API", off)]).join("\n");
        assert!(said.contains("--admin-api=true (command line): needs an ADMIN_TOKEN"), "{said}");
    }
}

#[test]
fn a_token_for_reading_is_another_one_and_no_shorter() {
    let token = "a token of some length";
    for (reader, wrong) in [
        ("short", "ADMIN_READ_TOKEN=*** (environment): has 5 characters, which is too easy to guess"),
        (token, "ADMIN_READ_TOKEN=*** (environment): is the same as the ADMIN_TOKEN, which permits changes"),
    ] {
        let settings = [("ADMIN_API", "true"), ("ADMIN_TOKEN", token), ("ADMIN_READ_TOKEN", reader)];
        let said = refusal(&[], &settings).join("\n");
        assert!(said.contains(wrong), "{said}");
    }
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", &format!("ADMIN_READ_TOKEN={token}")]);
    assert_eq!(tollgate.admin("GET", "/adjustments", token).0, 200);
    assert_eq!(tollgate.admin("DELETE", "/adjustments/x?who=a&why=b", token).0, 403, "nobody changes anything");
}

#[test]
fn a_redis_that_is_named_for_nothing_is_told() {
    let tollgate = Tollgate::start(RULES, &["BACKEND_TYPE=memory", "REDIS_URL=localhost:6379"]);
    let told = "REDIS_URL=*** (environment) does nothing: BACKEND_TYPE is memory, so each instance counts on its own";
    assert_eq!(messages(&tollgate, "WARN"), [told]);
}

#[test]
fn a_variable_without_its_switch_is_told_at_the_start_and_by_check_env() {
    let told = [
        ("CANDIDATE_SAMPLE=1", "CANDIDATE_RULES is not set"),
        ("REDIS_TLS_CACERT=ca.pem", "REDIS_URL is not set, so counters are in the memory of this process"),
        ("REDIS_PERSECOND_URL=***", "REDIS_PERSECOND is off"),
        ("ADMIN_TOKEN=***", "ADMIN_API is off"),
        ("CONSOLE=true", "ADMIN_API is off"),
        ("PROMETHEUS_ADDR=:9090", "USE_PROMETHEUS is off"),
        ("STATSD_PORT=8125", "neither STATSD_HOST, USE_STATSD nor USE_DOG_STATSD is set"),
        ("EXTRA_TAGS=a:b", "no statistics are exported: USE_PROMETHEUS, USE_STATSD and USE_DOG_STATSD are off"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=***", "TRACING_ENABLED is off"),
    ];
    let expected = told.map(|(given, why)| format!("{given} (environment) does nothing: {why}"));
    let given = told.map(|(given, _)| given.replace("***", "localhost:1-and-a-long-secret"));
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    assert_eq!(messages(&Tollgate::start(RULES, &given), "WARN"), expected);
    let pairs: Vec<_> = given.iter().map(|given| given.split_once('=').unwrap()).chain([("RULES", "x")]).collect();
    let output = run(&["check", "--env"], &pairs);
    let text = String::from_utf8(output.stdout).unwrap();
    let warnings: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
    assert_eq!(warnings, expected);
}

#[test]
fn a_word_for_on_is_no_file() {
    for (given, words) in [
        (("DECISION_LOG", "on"), "say where to write it: stdout, or the path of a file"),
        (("DECISION_LOG", "True"), "say where to write it: stdout"),
        (("DECISION_LOG", "false"), "to turn it off, write off"),
        (
            ("REDIS_TLS_CACERT", "true"),
            "must be a path; if that is its name, write ./true, and if none is meant, unset it",
        ),
    ] {
        let said = refusal(&[], &[given]).join("\n");
        assert!(said.contains(&format!("{}={} (environment): {words}", given.0, given.1)), "{said}");
    }
}
