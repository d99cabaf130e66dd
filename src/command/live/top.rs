//! `tollgate top`: the keys with the most hits of each limit of a running service.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::time;

use super::admin_port::Administered;
use crate::engine::descriptor;
use crate::engine::printable::printable;
use crate::observe::heavy_hitters::{By, HeavyKey, Pair, Top as Answer};
use crate::settings::named;

/// Interval between drawings of the table.
const EVERY: Duration = Duration::from_secs(1);

/// Moves the cursor to the first line, and clears the screen from there.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Show the top keys of a running service: those with the most hits, of all rules or of one.
///
/// On a terminal the table is redrawn every second until Ctrl-C; elsewhere it is printed once. Needs ADMIN_API=true at
/// the service, and the ADMIN_TOKEN here. Counts are those of one instance in the last minutes.
///
/// Exits with 0 if the keys were shown, and with 1 if not.
#[derive(Args)]
pub(crate) struct Top {
    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this rule, by its name in metrics. Unset: all.
    #[arg(long, short)]
    rule: Option<String>,

    /// Count by which keys are sorted: all hits, those over the limit, or those near it.
    #[arg(long, value_name = "COUNT", default_value = "hits", value_parser = named(&By::ALL, By::name))]
    by: By,

    /// Number of keys.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "25",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    keys: u16,

    /// Print the table once.
    #[arg(long)]
    once: bool,

    /// Output format: a table for people, or the JSON of /top.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,

    #[command(flatten)]
    service: Administered,
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(top: Top) -> anyhow::Result<ExitCode> {
    let is_live = !top.once && top.format == Format::Text && io::stdout().is_terminal();
    let mut ticks = time::interval(EVERY);
    loop {
        ticks.tick().await;
        let answer = top.ask().await?;
        let text = match top.format {
            Format::Text => table(&answer),
            Format::Json => serde_json::to_string(&answer)? + "\n",
        };
        let mut out = io::stdout().lock();
        if !is_live {
            out.write_all(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        write!(out, "{CLEAR}{text}")?;
        out.flush()?;
    }
}

impl Top {
    async fn ask(&self) -> anyhow::Result<Answer> {
        let number = self.keys.to_string();
        let mut query = vec![("by", self.by.name()), ("n", &*number)];
        query.extend(self.domain.iter().map(|domain| ("domain", &**domain)));
        query.extend(self.rule.iter().map(|rule| ("rule", &**rule)));
        self.service.top(&query).await
    }
}

/// Returns a line for each key: its hits, denials and near hits per second, its share of the rule, and its name.
fn table(answer: &Answer) -> String {
    let (by, rules) = (answer.by.name(), answer.rules);
    let Some(window_ms) = answer.keys.iter().map(|key| key.window_ms).max() else {
        return format!("no keys by {by} (rules: {rules})\n");
    };
    let window = descriptor::wait(window_ms.div_ceil(1_000) * 1_000);
    let mut text = format!(
        "the heaviest keys by {by}, in the last {window} (rules: {rules})\n\n{:>10} {:>10} {:>10} {:>7}  {}\n",
        "HITS/S", "DENIED/S", "NEAR/S", "SHARE", "KEY",
    );
    for key in &answer.keys {
        let rate = |hits: Option<u32>| match hits {
            None => "-".to_owned(),
            Some(hits) => format!("{:.1}", f64::from(hits) * 1_000.0 / (key.window_ms.max(1_000) as f64)),
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{:>10} {:>10} {:>10} {:>6.1}%  {}",
            rate(key.hits),
            rate(key.denied),
            rate(key.near),
            key.share * 100.0,
            name(key),
        );
    }
    text
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
        });
        let answer = serde_json::json!({"by": "hits", "rules": 1, "keys": [key]});
        let text = table(&serde_json::from_value(answer).unwrap());
        let expected = "       2.0        0.1          -   25.0%  shop/per-user  user=a\\u{1b}[2J\\n\n";
        assert!(text.ends_with(expected), "{text}");
        assert_eq!(table(&Answer::default()), "no keys by hits (rules: 0)\n");
        assert!(text.starts_with("the heaviest keys by hits, in the last 60s (rules: 1)\n"), "{text}");
    }
}
