//! Reads the command line and the environment through clap. Clap stops at the first wrong value, and names its flag.
//! Here clap reads each value by itself, which finds all mistakes. Each is reported by the flag or variable that was
//! used.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{PossibleValue, Resettable, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};

use crate::settings::{Environment, Given, Mistake, Origin};

/// Result of reading the arguments.
pub(super) struct Read {
    /// Valid arguments, as clap returns them.
    pub matches: ArgMatches,
    /// All given values in the order of the help, including the mistakes.
    pub given: Vec<Given>,
    /// Mistakes found.
    pub mistakes: Vec<Mistake>,
    /// The variables that the command reads.
    pub variables: BTreeSet<String>,
}

impl Read {
    /// Returns the files that arguments name, each with the name of the argument.
    pub fn files(&self) -> Vec<(String, PathBuf)> {
        let matches = self.matches.subcommand().map_or(&self.matches, |(_, matches)| matches);
        let file = |id: &Id| {
            let path = matches.try_get_one::<PathBuf>(id.as_str()).ok().flatten()?;
            Some((id.as_str().to_uppercase(), path.clone()))
        };
        matches.ids().filter_map(file).collect()
    }
}

/// Most unknown flags reported.
const UNKNOWN: usize = 5;

/// Reads the words of a command line, and the variables of its command.
///
/// # Errors
/// Returns clap's message if the words make no command, or if they ask for help.
pub(super) fn read(command: &Command, words: Vec<OsString>, environment: &Environment) -> Result<Read, clap::Error> {
    let is_empty = |name: &OsStr| environment.has_empty(&name.to_string_lossy());
    let without_empty = |arg: Arg| if arg.get_env().is_some_and(is_empty) { arg.env(Resettable::Reset) } else { arg };
    let lenient = each_arg(command, &|arg| unread(without_empty(arg)));
    let (all, unknown) = without_unknown(&lenient, words, UNKNOWN)?;
    let asked = Asked::new(command, &all);
    let given = asked.given();
    // From here on every value is that of a flag, wherever it came from.
    let command = each_arg(command, &|arg| arg.env(Resettable::Reset));
    let words = asked.words(&given);
    let (matches, mistakes) = match command.clone().try_get_matches_from(&words) {
        Ok(matches) => (matches, Vec::new()),
        Err(first) => {
            let (good, mistakes) = judge(&command, &words, &given);
            (command.try_get_matches_from(asked.words(&good)).map_err(|_| first)?, mistakes)
        }
    };
    let mistakes = unknown.into_iter().chain(mistakes).collect();
    Ok(Read { matches, mistakes, variables: asked.variables(), given })
}

/// Reads a command line without its unknown flags, to find its other mistakes as well.
///
/// # Errors
/// Returns clap's message about the whole command line if it makes no command without them either.
fn without_unknown(
    command: &Command,
    words: Vec<OsString>,
    most: usize,
) -> Result<(ArgMatches, Vec<Mistake>), clap::Error> {
    let error = match command.clone().try_get_matches_from(&words) {
        Ok(matches) => return Ok((matches, Vec::new())),
        Err(error) => error,
    };
    let Some((at, mistake)) = unknown_flag(&error, &words).filter(|_| most > 0) else { return Err(error) };
    let less = |count| {
        let mut words = words.clone();
        words.drain(at..at + count);
        without_unknown(command, words, most - 1)
    };
    let is_value = |next: &OsString| !next.to_string_lossy().starts_with('-');
    let may_have_value = words.get(at + 1).is_some_and(is_value) && !words[at].to_string_lossy().contains('=');
    // The next word may be the flag's value, and a secret.
    let read = if may_have_value { less(2).or_else(|_| less(1)) } else { less(1) };
    let Ok((matches, others)) = read else { return Err(error) };
    Ok((matches, [mistake].into_iter().chain(others).collect()))
}

/// Returns the index of the flag that clap does not know, and the mistake.
fn unknown_flag(error: &clap::Error, words: &[OsString]) -> Option<(usize, Mistake)> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument || !flag.starts_with('-') {
        return None;
    }
    let is_it = |word: &OsString| word.to_string_lossy().split('=').next() == Some(flag);
    let near = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => format!("; did you mean {near}?"),
        _ => String::new(),
    };
    let reason = format!("{flag} (command line): unknown flag{near}");
    Some((words.iter().position(is_it)?, Mistake { given: None, reason }))
}

/// Lets clap read each value by itself. Returns the valid values and the mistakes.
fn judge(command: &Command, words: &[OsString], given: &[Given]) -> (Vec<Given>, Vec<Mistake>) {
    let (mut good, mut mistakes) = (Vec::new(), Vec::new());
    for one in given {
        let alone = each_arg(command, &|arg| if arg.get_long() == Some(&one.flag) { arg } else { unread(arg) });
        match alone.try_get_matches_from(words) {
            Ok(_) => good.push(one.clone()),
            Err(error) => mistakes.push(Mistake { given: Some(one.clone()), reason: reason(&error) }),
        }
    }
    (good, mistakes)
}

/// The given command, and what clap found of its arguments.
struct Asked<'a> {
    path: Vec<OsString>,
    command: &'a Command,
    matches: &'a ArgMatches,
}

impl<'a> Asked<'a> {
    fn new(command: &'a Command, matches: &'a ArgMatches) -> Asked<'a> {
        let mut asked = Asked { path: vec![command.get_name().into()], command, matches };
        while let Some((name, matches)) = asked.matches.subcommand()
            && let Some(command) = asked.command.find_subcommand(name)
        {
            asked.path.push(name.into());
            (asked.command, asked.matches) = (command, matches);
        }
        asked
    }

    /// Returns the variables that the command reads.
    fn variables(&self) -> BTreeSet<String> {
        let variables = self.command.get_arguments().filter_map(Arg::get_env);
        variables.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Returns the values given to flags or to their variables.
    fn given(&self) -> Vec<Given> {
        let of_arg = |arg: &Arg| {
            let origin = self.origin(arg)?;
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            let is_value = arg.get_action().takes_values();
            let flag = arg.get_long().filter(|_| is_value)?.to_owned();
            Some(Given { flag, variable, origin, values: self.values(arg), is_secret: arg.is_hide_env_values_set() })
        };
        self.command.get_arguments().filter_map(of_arg).collect()
    }

    /// Rewrites the command line: keeps all words that are no values of flags, and of the values only `given`.
    fn words(&self, given: &[Given]) -> Vec<OsString> {
        let mut words = self.path.clone();
        for Given { flag, values, .. } in given {
            words.extend(values.iter().map(|value| {
                let mut word = OsString::from(format!("--{flag}="));
                word.push(value);
                word
            }));
        }
        let others = || self.command.get_arguments().filter(|arg| self.origin(arg).is_some());
        let switches = others().filter(|arg| !arg.get_action().takes_values());
        words.extend(switches.filter_map(Arg::get_long).map(|flag| format!("--{flag}").into()));
        words.push("--".into());
        words.extend(others().filter(|arg| arg.is_positional()).flat_map(|arg| self.values(arg)));
        words
    }

    fn values(&self, arg: &Arg) -> Vec<OsString> {
        let values = self.matches.get_raw(arg.get_id().as_str());
        values.into_iter().flatten().map(OsStr::to_owned).collect()
    }

    fn origin(&self, arg: &Arg) -> Option<Origin> {
        match self.matches.value_source(arg.get_id().as_str())? {
            ValueSource::CommandLine => Some(Origin::CommandLine),
            ValueSource::EnvVariable => Some(Origin::Environment),
            _ => None,
        }
    }
}

/// Changes the arguments of a command and of all its subcommands.
pub(super) fn each_arg(command: &Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command.clone().mut_args(change).mut_subcommands(|command| each_arg(&command, change))
}

/// Makes the argument accept any value.
fn unread(arg: Arg) -> Arg {
    if !arg.get_action().takes_values() {
        return arg;
    }
    let shown = arg.get_possible_values();
    arg.value_parser(Unread { shown })
}

/// A parser that accepts every value as it is, with the help of the original.
#[derive(Clone)]
struct Unread {
    shown: Vec<PossibleValue>,
}

impl TypedValueParser for Unread {
    type Value = OsString;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        (!self.shown.is_empty()).then(|| Box::new(self.shown.iter().cloned()) as Box<dyn Iterator<Item = _>>)
    }
}

/// Returns why clap rejects a value, without the flag and the value, and the values that it accepts.
fn reason(error: &clap::Error) -> String {
    let strings = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(many)) => many.clone(),
        _ => Vec::new(),
    };
    let valid = strings(ContextKind::ValidValue);
    let why = std::error::Error::source(error).map(ToString::to_string);
    let takes = (!valid.is_empty()).then(|| format!("must be one of {}", valid.join(", ")));
    let near = strings(ContextKind::SuggestedValue);
    let near = near.first().map(|near| format!("did you mean {near}?"));
    let known: Vec<_> = [why, takes, near].into_iter().flatten().collect();
    match known.is_empty() {
        // Clap's own message, which begins with the problem.
        true => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
        false => known.join("; "),
    }
}
