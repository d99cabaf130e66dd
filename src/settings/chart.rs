//! The types of settings in the schema of the chart: it refuses the values that the service would refuse at its start.
//! They derive from the declarations, and a test asks both about the same values.

use std::collections::BTreeSet;
use std::fs;

use axum::http::HeaderName;
use boon::{Compiler, Draft, Schemas};
use clap::{Arg, Args as _, Command};
use serde_json::{Map, Value, json};

use super::Settings;

/// Returns the schema of the chart.
fn of_chart() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/tollgate/values.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the pattern of a text whose form the name of its value does not determine.
fn pattern(variable: &str) -> Option<String> {
    const HEADER: &str = "[-0-9A-Za-z!#$%&'*+.^_|~]";
    const LEVEL: &str = " *([^=,]+= *)?(trace|TRACE|debug|DEBUG|info|INFO|warn|WARN|warning|WARNING|error|ERROR|fatal|\
                         FATAL|panic|PANIC) *";
    // A DNS name, a URI or an address.
    const NAME: &str = r"([^\s:/@=,]+|[^\s:,]+://[^\s,]+|[0-9a-fA-F]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*)";
    let list = |item: &str| format!("{item}(,{item})*");
    Some(match variable {
        "ADMIN_HOSTS" => list(" *[-0-9A-Za-z._]+ *"),
        "CACHE_KEY_PREFIX" => "[^{}]*".to_owned(),
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" => list(&format!("{HEADER}+:[^,]*")),
        "CONFIG_GRPC_XDS_NODE_METADATA" => "[^=]+=.*".to_owned(),
        "CONFIG_GRPC_XDS_SERVER_URL" => ".+:[0-9]{1,5}".to_owned(),
        "EXTRA_TAGS" => list("[^:,]+:[^,]*"),
        "GRPC_CLIENT_TLS_SAN" => list(NAME),
        "GRPC_HOST" | "HOST" => r"[^\s/]*".to_owned(),
        "GRPC_UDS_MODE" => "0*[0-7]{3}".to_owned(),
        "NOTIFY_WEBHOOK_URL" => r"[hH][tT][tT][pP][sS]?://[^\s/@?#]+([/?#]\S*)?".to_owned(),
        "LIMIT_DECIDED_BY_HEADER"
        | "LIMIT_LIMIT_HEADER"
        | "LIMIT_REMAINING_HEADER"
        | "LIMIT_RESET_HEADER"
        | "UPSTREAM_REMAINING_HEADER"
        | "UPSTREAM_SOFT_HEADER" => format!("{HEADER}+"),
        "LOG_LEVEL" => list(LEVEL),
        "PROMETHEUS_ADDR" => ".*:[0-9]{1,5}".to_owned(),
        "PROMETHEUS_PATH" => "/[0-9A-Za-z/_.~-]*".to_owned(),
        // From 0.01% to 100%.
        "SOFT_LIMIT" => r"(0*100(\.0{1,2})?|0*[1-9][0-9]?(\.[0-9]{1,2})?|0+\.(0[1-9]|[1-9][0-9]?))%".to_owned(),
        _ => return None,
    })
}

/// Returns whether the service takes a value of a setting.
fn takes(arg: &Arg, value: &str) -> bool {
    let flag = arg.get_long().unwrap();
    // Names of headers are checked together.
    let is_header = !flag.ends_with("-header") || HeaderName::try_from(value).is_ok();
    let words = ["tollgate".to_owned(), format!("--{flag}={value}")];
    is_header && Command::new("tollgate").arg(arg.clone()).try_get_matches_from(words).is_ok()
}

/// Returns the schema of a setting.
fn schema(arg: &Arg) -> Value {
    let of = |definition: &str| json!({ "$ref": format!("#/definitions/{definition}") });
    let names: Vec<_> = arg.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
    let variable = arg.get_env().unwrap().to_string_lossy();
    let pattern = pattern(&variable);
    let words = words(arg);
    match names[..] {
        _ if words.contains("on") => of("switch"),
        _ if !words.is_empty() => json!({ "enum": words.into_iter().chain(["".to_owned()]).collect::<Vec<_>>() }),
        _ if pattern.is_some() => json!({ "type": "string", "pattern": format!("^({})?$", pattern.unwrap()) }),
        ["NUMBER" | "BYTES" | "PORT" | "SECONDS" | "MILLISECONDS"] if takes(arg, "-1") => of("number"),
        ["NUMBER" | "BYTES" | "PORT" | "SECONDS" | "MILLISECONDS"] => whole(arg),
        ["DURATION"] if takes(arg, "-1s") => of("anyDuration"),
        ["DURATION"] if takes(arg, "0s") => of("duration"),
        ["DURATION"] => of("positiveDuration"),
        ["SHARE"] if takes(arg, "many") => of("text"),
        ["SHARE"] if takes(arg, "1.5") => of("anyShare"),
        ["SHARE"] => of("share"),
        ["FILE" | "PATH"] if takes(arg, "off") && !takes(arg, "on") => of("pathOrOff"),
        ["FILE" | "PATH"] if !takes(arg, "on") => of("path"),
        _ => of("text"),
    }
}

/// Returns the words that a setting takes, each in lower and upper case if it takes both.
fn words(arg: &Arg) -> BTreeSet<String> {
    let names = arg.get_possible_values();
    let names = names.iter().flat_map(|value| value.get_name_and_aliases());
    let cases = names.flat_map(|name| [name.to_owned(), name.to_lowercase(), name.to_uppercase()]);
    cases.filter(|word| takes(arg, word)).collect()
}

/// Returns the schema of whole numbers in the range that a setting takes. In a text it counts only the digits.
fn whole(arg: &Arg) -> Value {
    let default = arg.get_default_values().first().map_or("1".into(), |value| value.to_string_lossy());
    let valid: u64 = default.parse().unwrap();
    assert!(takes(arg, &default), "{arg:?}");
    let is_taken = |number: u64| takes(arg, &number.to_string());
    let (mut refused, mut least) = (0, valid);
    while !is_taken(0) && least - refused > 1 {
        let middle = refused + (least - refused) / 2;
        *if is_taken(middle) { &mut least } else { &mut refused } = middle;
    }
    let least = if is_taken(0) { 0 } else { least };
    let (mut most, mut refused) = (valid, u64::MAX);
    while !is_taken(u64::MAX) && refused - most > 1 {
        let middle = most + (refused - most) / 2;
        *if is_taken(middle) { &mut most } else { &mut refused } = middle;
    }
    let most = if is_taken(u64::MAX) { u64::MAX } else { most };
    let digits = |number: u64| number.to_string().len();
    let pattern = match least {
        0 => format!("^([+]?0*[0-9]{{1,{}}})?$", digits(most)),
        _ => format!("^([+]?0*[1-9][0-9]{{{},{}}})?$", digits(least) - 1, digits(most) - 1),
    };
    json!({ "type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": pattern })
}

fn settings() -> Vec<(String, Arg)> {
    let command = Settings::augment_args(Command::new("tollgate"));
    let args = command.get_arguments().filter(|arg| arg.get_env().is_some());
    args.map(|arg| (arg.get_env().unwrap().to_string_lossy().into_owned(), arg.clone())).collect()
}

#[test]
fn the_schema_of_the_chart_has_every_setting_with_its_type_and_no_other() {
    let expected: Map<String, Value> = settings().iter().map(|(name, arg)| (name.clone(), schema(arg))).collect();
    assert_eq!(expected.len(), super::names().len());
    let schema = of_chart();
    let properties = schema["properties"]["settings"]["properties"].as_object().unwrap();
    assert!(
        *properties == expected,
        "write into values.schema.json of the chart, properties.settings.properties:\n{:#}",
        Value::from(expected)
    );
}

/// The chart writes a value into a variable as Helm prints it, and an empty variable is unset.
#[test]
fn the_schema_of_the_chart_takes_what_the_service_takes_and_refuses_what_it_refuses() {
    let texts = [
        "",
        "on",
        "Off",
        "TRUE",
        "no",
        "1",
        "0",
        "-1",
        "+5",
        "007",
        "5",
        "5000000000000000000000",
        "5s",
        "10 ms",
        "1h30m",
        "1h 30m",
        "1.5h",
        ".5s",
        "0s",
        "-1s",
        "1 day",
        "2weeks",
        "5 parsecs",
        "s",
        "0.5",
        "1.5",
        "1e-3",
        ".5",
        "1.",
        "80%",
        "007.5%",
        "0.01%",
        "0.001%",
        "0.00%",
        "0%",
        "100%",
        "100.01%",
        "101%",
        "many",
        "open",
        "OPEN",
        "opne",
        "FILE",
        "file",
        "memory",
        "memcache",
        "sliding_window",
        "concurrency",
        "/metrics",
        "metrics",
        "a b",
        "a/b",
        "host",
        "host:1",
        ":9090",
        "a:b",
        "a:b,c",
        "a=b",
        "660",
        "0660",
        "888",
        "x{y}",
        "X-Y",
        "./on",
        "stdout",
        "10%",
    ];
    let numbers = [-1_i64, 0, 1, 2, 16, 1_024, 65_536, 1 << 20, 1 << 31, 1_i64 << 40].map(Value::from);
    let others = [json!(true), json!(false), json!(0.5), json!(1.5), json!(-0.5), Value::Null, json!([]), json!({})];
    let values: Vec<Value> = texts.map(Value::from).into_iter().chain(numbers).chain(others).collect();
    let whole = of_chart();
    let mut differ = Vec::new();
    for (name, arg) in settings() {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.set_default_draft(Draft::V7);
        compiler.add_resource("http://chart/values.json", whole.clone()).unwrap();
        let at = format!("http://chart/values.json#/properties/settings/properties/{name}");
        let index = compiler.compile(&at, &mut schemas).unwrap();
        for value in &values {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                // Not a value of a variable.
                _ => "\u{0}".to_owned(),
            };
            let is_settable = text != "\u{0}";
            let is_taken = is_settable && (text.is_empty() || takes(&arg, &text));
            let by_schema = schemas.validate(value, index).is_ok();
            // The schema may refuse a number or a truth value where a text is meant.
            if is_taken != by_schema && (by_schema || value.is_string()) {
                differ.push(format!("{name}={value}: service {is_taken}, schema {by_schema}"));
            }
        }
    }
    assert!(differ.is_empty(), "{}\n{}", differ.len(), differ.join("\n"));
}
