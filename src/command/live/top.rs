//! `tollgate top`: the keys with the most hits of each limit of a running service.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::time;

use super::admin_port::Administered;
use super::terminal::{Terminal, Wish};
use crate::command::output::{Format, NOTHING_APPLIES, RowsOutput, columns, csv, errln, print};
use crate::engine::descriptor;
use crate::engine::printable::printable;
use crate::observe::heavy_hitters::{By, HeavyKey, Pair};
use crate::settings::named;
use crate::survey::{Instances, MergedTop as Answer, TopKey};

/// Interval between drawings of the table.
const EVERY: Duration = Duration::from_secs(1);

/// Keys of a live table.
const KEYS: &str = "h hits  d denied  n near  r next rule  a all rules  q quit";

/// Number of the line with the names of the columns.
const HEADLINE: usize = 2;

/// Show the top keys of a running service: those with the most hits, of all rules or of one.
///
/// On a terminal the table is redrawn every second until you press q; elsewhere it is printed once. Other keys select
/// the order (h: hits, d: denied, n: near) and the rule (r: the next one, a: all). Needs ADMIN_API=true at the service,
/// and the ADMIN_TOKEN here. Counts are approximate, of the last minutes, and of all instances that share the store.
/// LEFT and BANNED are read from the counters.
///
/// Exits with 0 if the keys were shown, 3 if none has hits of that domain or rule, and with 1 if there is no answer.
#[derive(Args)]
pub(crate) struct Top {
    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this rule, by its name in metrics. Unset: all.
    #[arg(long, short)]
    rule: Option<String>,

    /// Sort keys by this count: all hits, those over the limit, or those near it.
    #[arg(long, value_name = "COUNT", default_value = "hits", value_parser = named(&By::ALL, By::name))]
    by: By,

    /// Number of keys.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "25",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    keys: u16,

    /// Print the table once.
    #[arg(long)]
    once: bool,

    /// Count at the instance at --address alone.
    #[arg(long)]
    one_instance: bool,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Administered,
}

/// Fields of a key in CSV.
const FIELDS: [&str; 14] = [
    "domain",
    "rule",
    "descriptor",
    "hits",
    "denied",
    "near",
    "at_least",
    "at_most",
    "share",
    "window_ms",
    "exact",
    "remaining",
    "capacity",
    "banned_ms",
];

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(top: Top) -> anyhow::Result<ExitCode> {
    let format = top.output.format();
    if !top.once
        && format == Format::Text
        && let Some(terminal) = Terminal::open()?
    {
        return top.watch(terminal).await;
    }
    let answer = top.ask().await?;
    print(&match format {
        Format::Text => table(&answer),
        Format::Json => serde_json::to_string(&answer)? + "\n",
        Format::Csv => csv(&FIELDS, &answer.keys)?,
    })?;
    if !answer.keys.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let missed = match answer.missed {
        Some(missed) => Some(missed),
        None => top.service.missed(top.domain.as_deref(), top.rule.as_deref()).await?,
    };
    match missed {
        Some(missed) => {
            errln!("{missed}");
            Ok(ExitCode::from(NOTHING_APPLIES))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

impl Top {
    async fn ask(&self) -> anyhow::Result<Answer> {
        let number = self.keys.to_string();
        let mut query = vec![("by", self.by.name()), ("n", &*number), ("remaining", "true")];
        query.extend(self.domain.iter().map(|domain| ("domain", &**domain)));
        query.extend(self.rule.iter().map(|rule| ("rule", &**rule)));
        query.extend(self.one_instance.then_some(("instance", "self")));
        self.service.top(&query).await
    }

    /// Redraws the table until a person ends it. A service that stops answering is waited for.
    async fn watch(mut self, mut terminal: Terminal) -> anyhow::Result<ExitCode> {
        let wanted = (self.domain.clone(), self.rule.clone());
        let (mut rules, mut has_answered) = (BTreeSet::new(), false);
        loop {
            let answer = tokio::select! {
                wish = terminal.wish() => match self.turn(wish, &wanted, &rules) {
                    true => continue,
                    false => return Ok(ExitCode::SUCCESS),
                },
                answer = self.ask() => answer,
            };
            let text = match answer {
                Ok(answer) => {
                    has_answered = true;
                    rules.extend(answer.keys.iter().map(|TopKey { key, .. }| (key.domain.clone(), key.rule.clone())));
                    table(&answer)
                }
                // The first answer says whether address and token are right.
                Err(error) if !has_answered => return Err(error),
                Err(error) => format!("error: {error:#}\n"),
            };
            let rule = self.rule.as_deref().map(|rule| format!("rule: {}   ", printable(rule))).unwrap_or_default();
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            terminal.draw(&format!("{first}\n{rule}keys: {KEYS}\n{}", rest.trim_start_matches('\n')), HEADLINE)?;
            tokio::select! {
                wish = terminal.wish() => if !self.turn(wish, &wanted, &rules) {
                    return Ok(ExitCode::SUCCESS);
                },
                () = time::sleep(EVERY) => {}
            }
        }
    }

    /// Does what a person wishes. Returns whether the table goes on.
    fn turn(
        &mut self,
        wish: Wish,
        wanted: &(Option<String>, Option<String>),
        rules: &BTreeSet<(String, String)>,
    ) -> bool {
        match wish {
            Wish::End => return false,
            Wish::Key(b'h') => self.by = By::Hits,
            Wish::Key(b'd') => self.by = By::Denied,
            Wish::Key(b'n') => self.by = By::Near,
            Wish::Key(b'a') => (self.domain, self.rule) = wanted.clone(),
            Wish::Key(b'r') => (self.domain, self.rule) = self.next(rules).unwrap_or_else(|| wanted.clone()),
            Wish::Key(_) => {}
        }
        true
    }

    /// Returns the rule after the present one, in the order of their names; `None` after the last one.
    fn next(&self, rules: &BTreeSet<(String, String)>) -> Option<(Option<String>, Option<String>)> {
        let present = (self.domain.clone().unwrap_or_default(), self.rule.clone().unwrap_or_default());
        let (domain, rule) = rules.iter().find(|rule| **rule > present)?;
        Some((Some(domain.clone()), Some(rule.clone())))
    }
}

/// Returns a line for each key: its hits, denials and near hits per second, its share of the rule, what is left of its
/// limit, how long it is banned, and its name.
fn table(answer: &Answer) -> String {
    let (by, rules) = (answer.by.name(), answer.rules);
    let told = told(&answer.instances);
    let Some(window_ms) = answer.keys.iter().map(|TopKey { key, .. }| key.window_ms).max() else {
        return format!("no keys by {by} (rules: {rules}{told})\n");
    };
    let window = descriptor::wait(window_ms.div_ceil(1_000) * 1_000);
    let mut text = format!("top keys by {by}, in the last {window} (rules: {rules}{told})\n\n");
    let header = ["HITS/S", "DENIED/S", "NEAR/S", "SHARE", "LEFT", "BANNED", "KEY"].map(str::to_owned);
    let rows: Vec<_> = [header].into_iter().chain(answer.keys.iter().map(|TopKey { key, .. }| row(key))).collect();
    text += &columns(&rows, 0..6);
    if let Some(why) = &answer.unavailable {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "\nwhat is left is unknown: {}", printable(why));
    }
    text
}

/// Returns which instances the counts are from, unless there is only one.
fn told(instances: &Instances) -> String {
    let Instances { answered, of, missing, unavailable, .. } = instances;
    let why = unavailable.as_ref().map(|why| format!("; {}", printable(why))).unwrap_or_default();
    match (of, missing.is_empty()) {
        (0 | 1, _) => why,
        (_, true) => format!("; instances: {answered} of {of}{why}"),
        (_, false) => format!("; instances: {answered} of {of}, without {}{why}", printable(&missing.join(", "))),
    }
}

fn row(key: &HeavyKey) -> [String; 7] {
    let rate = |hits: Option<u64>| match hits {
        None => "-".to_owned(),
        Some(hits) => format!("{:.1}", hits as f64 * 1_000.0 / (key.window_ms.max(1_000) as f64)),
    };
    let left = match (key.remaining, key.capacity) {
        (Some(remaining), Some(capacity)) => format!("{remaining} of {capacity}"),
        _ => "-".to_owned(),
    };
    let denied = match (key.role.as_deref(), key.denied) {
        // Nobody is denied: the rule is in shadow mode.
        (Some("shadow"), Some(1..)) => format!("{} shadow", rate(key.denied)),
        _ => rate(key.denied),
    };
    [
        rate(key.hits),
        denied,
        rate(key.near),
        format!("{:.1}%", key.share * 100.0),
        left,
        key.banned_ms.map(descriptor::wait).unwrap_or_default(),
        name(key),
    ]
}

/// Returns the name: `shop/per-user  user=ann`. Control characters that clients send are escaped.
pub(crate) fn name(key: &HeavyKey) -> String {
    let pair = |Pair { key, value }: &Pair| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    let entries = key.descriptor.as_ref().map(|pairs| pairs.iter().map(pair).collect::<Vec<_>>().join(" "));
    let entries = entries.unwrap_or_else(|| "(too long to be kept)".to_owned());
    printable(&format!("{}/{}  {entries}", key.domain, key.rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_rates_and_no_value_moves_the_cursor() {
        let key = serde_json::json!({
            "domain": "shop", "rule": "per-user", "descriptor": [{"key": "user", "value": "a\u{1b}[2J\n"}],
            "exact": true, "hits": 120, "denied": 6, "near": null, "at_least": 120, "share": 0.25, "window_ms": 60_000,
            "remaining": 5, "capacity": 9,
        });
        let answer = serde_json::json!({"by": "hits", "rules": 1, "keys": [key]});
        let text = table(&serde_json::from_value(answer).unwrap());
        let expected = "   2.0       0.1       -  25.0%  5 of 9          shop/per-user  user=a\\u{1b}[2J\\n\n";
        assert!(text.ends_with(expected), "{text}");
        assert_eq!(table(&Answer::default()), "no keys by hits (rules: 0)\n");
        assert!(text.starts_with("top keys by hits, in the last 60s (rules: 1)\n"), "{text}");
    }
}
