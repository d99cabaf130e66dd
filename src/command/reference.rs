//! The programs in the image of `envoyproxy/ratelimit`, and the flags of its tools. A Deployment or a script that calls
//! them works unchanged.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Arg, Command};

use super::arguments::each_arg;
use crate::engine::rules::FailureMode;

/// A command line in the words of `tollgate`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translated {
    pub words: Vec<OsString>,
    /// Words left out: that service accepts any arguments and reads none, and one flag of a tool has no counterpart
    /// here.
    pub ignored: Vec<String>,
}

/// Name of a program in that image, and the command that replaces it.
const PROGRAMS: &[(&str, &str)] =
    &[(SERVICE, "serve"), ("ratelimit_client", "ask"), ("ratelimit_config_check", "check")];
const SERVICE: &str = "ratelimit";

/// A flag of a tool. Go's flags have one dash or two, and their value follows `=` or is the next word.
struct Flag {
    command: &'static str,
    name: &'static str,
    takes: Takes,
}

enum Takes {
    /// A value, which becomes the value of this flag.
    Value(&'static str),
    /// No value, or `=true`.
    Switch(&'static str),
    /// A value that becomes an argument without a flag.
    Path,
    /// `k=v,k=v`, given once for each descriptor.
    Descriptor,
    /// A value that is ignored.
    Unread,
}

const FLAGS: &[Flag] = &[
    Flag { command: "ask", name: "dial_string", takes: Takes::Value("--address") },
    Flag { command: "ask", name: "domain", takes: Takes::Value("--domain") },
    Flag { command: "ask", name: "descriptors", takes: Takes::Descriptor },
    Flag { command: "ask", name: "grpc-use-tls", takes: Takes::Switch("--tls") },
    Flag { command: "ask", name: "grpc-server-ca-file", takes: Takes::Value("--ca") },
    Flag { command: "ask", name: "grpc-cert-file", takes: Takes::Value("--cert") },
    Flag { command: "ask", name: "grpc-key-file", takes: Takes::Value("--key") },
    Flag { command: "ask", name: "oltp-protocol", takes: Takes::Unread },
    Flag { command: "check", name: "config_dir", takes: Takes::Path },
    Flag { command: "check", name: "merge_domain_configs", takes: Takes::Switch("--merge-domain-config") },
];

/// Gives `command` the defaults of the program that the first word names. `envoyproxy/ratelimit` fails a call that it
/// cannot decide, so a gateway that fails closed must stay closed when the image is replaced.
pub(super) fn with_defaults(command: Command, words: &[OsString]) -> Command {
    if program(words).is_none_or(|(name, _)| *name != SERVICE) {
        return command;
    }
    each_arg(&command, &|arg| match arg.get_id() == "failure_mode" {
        true => arg.default_value(FailureMode::Error.name()),
        false => arg,
    })
}

/// Returns the program in the image of `envoyproxy/ratelimit` that the first word names.
fn program(words: &[OsString]) -> Option<&'static (&'static str, &'static str)> {
    let name = words.first().and_then(|word| Path::new(word).file_name()).and_then(OsStr::to_str);
    PROGRAMS.iter().find(|(known, _)| Some(*known) == name)
}

/// Translates the arguments of a program in that image into words of `command`. Other arguments stay as they are.
pub(super) fn translate(words: Vec<OsString>, command: &Command) -> Translated {
    let program = program(&words);
    let named = words.get(1).and_then(|word| word.to_str()).and_then(|word| command.find_subcommand(word));
    let asks_version = words.get(1).is_some_and(|word| word == "-V" || word == "--version");
    match (program, named) {
        (Some(_), None) if asks_version => Translated { words, ignored: Vec::new() },
        (_, Some(named)) => with_flags(words, named.get_name()),
        (Some((SERVICE, _)), None) => known_alone(words, command),
        (Some((_, name)), None) => {
            let mut words = words;
            words.insert(1, name.into());
            with_flags(words, name)
        }
        (None, None) => Translated { words, ignored: Vec::new() },
    }
}

/// Returns the words that `serve` knows.
fn known_alone(words: Vec<OsString>, command: &Command) -> Translated {
    let serve = command.find_subcommand("serve");
    let args: Vec<&Arg> = serve.into_iter().flat_map(Command::get_arguments).collect();
    let mut words = words.into_iter();
    let mut known: Vec<OsString> = words.next().into_iter().chain(["serve".into()]).collect();
    let mut ignored = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let name = text.strip_prefix("--").map(|flag| flag.split_once('=').map_or(flag, |(name, _)| name));
        let arg = name.and_then(|name| args.iter().find(|arg| arg.get_long() == Some(name)));
        match arg {
            Some(_) if text.contains('=') => known.push(word),
            Some(arg) => {
                known.push(word);
                // A switch may have no value: the next word is then another flag.
                let takes_value = arg.get_action().takes_values();
                let needs_value = arg.get_num_args().map_or(takes_value, |number| number.min_values() > 0);
                known.extend(needs_value.then(|| words.next()).flatten());
            }
            None if ["-h", "--help"].contains(&text.as_str()) => known.push(word),
            None => ignored.push(text),
        }
    }
    Translated { words: known, ignored }
}

/// Replaces the flags of those programs by those of `command`.
fn with_flags(words: Vec<OsString>, command: &str) -> Translated {
    let mut words = words.into_iter();
    let mut translated: Vec<OsString> = Vec::new();
    let mut ignored = Vec::new();
    let mut descriptors = 0;
    while let Some(word) = words.next() {
        let Some((flag, value)) = flag(&word, command) else {
            translated.push(word);
            continue;
        };
        let mut value = || value.clone().or_else(|| words.next().map(|word| word.to_string_lossy().into_owned()));
        match flag.takes {
            Takes::Value(name) => {
                translated.push(name.into());
                translated.extend(value().map(OsString::from));
            }
            Takes::Switch(name) => translated.push(format!("{name}={}", value_of_switch(&word)).into()),
            Takes::Path => translated.extend(value().map(OsString::from)),
            Takes::Unread => {
                value();
                ignored.push(format!("-{}", flag.name));
            }
            Takes::Descriptor => {
                translated.extend((descriptors > 0).then(|| "+".into()));
                descriptors += 1;
                let entries = value().unwrap_or_default();
                translated.extend(entries.split(',').filter(|entry| !entry.is_empty()).map(OsString::from));
            }
        }
    }
    Translated { words: translated, ignored }
}

/// Returns the flag that a word names, and its value if it is in the same word.
fn flag(word: &OsStr, command: &str) -> Option<(&'static Flag, Option<String>)> {
    let text = word.to_str()?.strip_prefix('-')?;
    let text = text.strip_prefix('-').unwrap_or(text);
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    let flag = FLAGS.iter().find(|flag| flag.command == command && flag.name == name)?;
    Some((flag, value))
}

fn value_of_switch(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    text.split_once('=').map_or_else(|| "true".to_owned(), |(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn translated(words: &str) -> (String, Vec<String>) {
        let words = words.split(' ').map(OsString::from).collect();
        let Translated { words, ignored } = translate(words, &super::super::Cli::command());
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        (words.join(" "), ignored)
    }

    #[test]
    fn the_service_takes_any_arguments_and_tells_those_that_do_nothing() {
        for (words, serves, ignored) in [
            ("/bin/ratelimit", "/bin/ratelimit serve", &[][..]),
            (
                "/bin/ratelimit --quotaRateLimitServiceAddr=:18002",
                "/bin/ratelimit serve",
                &["--quotaRateLimitServiceAddr=:18002"],
            ),
            ("ratelimit -config /etc/r.yaml", "ratelimit serve", &["-config", "/etc/r.yaml"]),
            ("ratelimit --rules a --x b --port=1", "ratelimit serve --rules a --port=1", &["--x", "b"]),
            ("ratelimit --shadow-mode --port 1", "ratelimit serve --shadow-mode --port 1", &[]),
            ("ratelimit --version", "ratelimit --version", &[]),
            ("ratelimit -x --version", "ratelimit serve", &["-x", "--version"]),
            ("ratelimit_client -V", "ratelimit_client -V", &[]),
            ("ratelimit_config_check --version", "ratelimit_config_check --version", &[]),
            ("ratelimit health", "ratelimit health", &[]),
        ] {
            let ignored = ignored.iter().map(ToString::to_string).collect();
            assert_eq!(translated(words), (serves.to_owned(), ignored), "{words}");
        }
    }

    #[test]
    fn a_flag_of_a_tool_that_is_nothing_here_is_told_with_its_value() {
        for words in
            ["ratelimit_client -oltp-protocol  -domain shop", "ratelimit_client --oltp-protocol=grpc -domain shop"]
        {
            let words = translated(words);
            assert_eq!(words, ("ratelimit_client ask --domain shop".to_owned(), vec!["-oltp-protocol".to_owned()]));
        }
    }

    #[test]
    fn the_tools_take_their_flags_in_every_way_of_writing_them() {
        for (words, same) in [
            (
                "ratelimit_client -dial_string a:1 -domain shop -descriptors user=ann,plan=free -descriptors user=bob",
                "ratelimit_client ask --address a:1 --domain shop user=ann plan=free + user=bob",
            ),
            ("tollgate ask --domain=shop -descriptors=user=ann", "tollgate ask --domain shop user=ann"),
            (
                "ratelimit_client -grpc-use-tls -grpc-server-ca-file=ca -grpc-cert-file c -grpc-key-file k",
                "ratelimit_client ask --tls=true --ca ca --cert c --key k",
            ),
            ("tollgate ask -d shop user=ann", "tollgate ask -d shop user=ann"),
            (
                "ratelimit_config_check -merge_domain_configs -config_dir /rules",
                "ratelimit_config_check check --merge-domain-config=true /rules",
            ),
            ("tollgate check --config_dir=/rules", "tollgate check /rules"),
            ("tollgate check -merge_domain_configs=false r", "tollgate check --merge-domain-config=false r"),
            // Other commands do not have these flags, and clap reports them.
            ("tollgate health -domain shop", "tollgate health -domain shop"),
            ("tollgate --rules a", "tollgate --rules a"),
        ] {
            assert_eq!(translated(words), (same.to_owned(), Vec::new()), "{words}");
        }
    }
}
