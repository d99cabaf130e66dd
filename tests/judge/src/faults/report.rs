//! The table of outcomes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::promised::{excess, is_of_tollgate};
use super::{Fault, Outcome, System};

/// Returns the tables of all outcomes, in Markdown: one for each fault.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for fault in Fault::ALL {
        let of_system = |system| outcomes.iter().filter(move |one| one.fault == fault && one.system == system);
        let of_fault: Vec<&Outcome> = System::ALL.into_iter().flat_map(of_system).collect();
        if of_fault.is_empty() {
            continue;
        }
        // Writing to a text cannot fail.
        let _ = writeln!(text, "**{}**\n", upper(fault.name()));
        let _ = writeln!(
            text,
            "| system | calls | hits over the limit | beyond the docs | denied without need | errors | late | longest \
             without a decision | recovered after | said so |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | \
             --- |"
        );
        of_fault.iter().for_each(|outcome| row(&mut text, outcome));
        for (reason, systems) in reasons(&of_fault) {
            let _ = write!(text, "\nBy the docs ({}):\n{reason}.\n", systems.join("; "));
        }
        text.push('\n');
    }
    text
}

fn row(text: &mut String, outcome: &Outcome) {
    let Outcome { system, operations, over_hits, needless, failed, late, .. } = outcome;
    let beyond = if is_of_tollgate(*system) { outcome.beyond_hits.to_string() } else { "–".to_owned() };
    let said = if outcome.said_so { "yes" } else { "no" };
    let _ = writeln!(
        text,
        "| {} | {operations} | {over_hits} | {beyond} | {needless} | {failed} | {late} | {} | {} | {said} |",
        system.name(),
        seconds(outcome.longest_undecided_ms),
        seconds(outcome.recovered_after_ms),
    );
}

/// Returns what the docs say of hits over the limit, and of which systems.
fn reasons(outcomes: &[&Outcome]) -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut reasons: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| is_of_tollgate(outcome.system)) {
        if let Some(reason) = excess(outcome.fault, outcome.system) {
            let name = outcome.system.name();
            reasons.entry(reason).or_default().push(name.strip_prefix("Tollgate, ").unwrap_or(name));
        }
    }
    reasons
}

fn upper(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn seconds(ms: u64) -> String {
    format!("{}.{:02} s", ms / 1_000, ms % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(system: System, fault: Fault, over_hits: u64) -> Outcome {
        Outcome {
            system,
            fault,
            operations: 100,
            over_hits,
            beyond_hits: excess(fault, system).map_or(over_hits, |_| 0),
            needless: 0,
            failed: 2,
            late: 1,
            longest_undecided_ms: 1_234,
            recovered_after_ms: 60,
            said_so: true,
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_system() {
        let text = table(&[
            outcome(System::Gubernator, Fault::StoreKilled, 7),
            outcome(System::TollgateRedis, Fault::StoreKilled, 5),
        ]);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(text.starts_with("**The store is killed for 1 s, without persistence**\n"), "{text}");
        assert_eq!(rows[2], "| Tollgate, Redis | 100 | 5 | 0 | 0 | 2 | 1 | 1.23 s | 0.06 s | yes |");
        assert_eq!(rows[3], "| Gubernator | 100 | 7 | – | 0 | 2 | 1 | 1.23 s | 0.06 s | yes |");
    }

    #[test]
    fn what_the_docs_say_stands_below_and_the_rest_is_beyond_them() {
        let text = table(&[
            outcome(System::TollgateSentinel, Fault::FailoverPlanned, 7),
            outcome(System::TollgateSentinelDurable, Fault::FailoverPlanned, 3),
        ]);
        assert!(text.contains("| Tollgate, Sentinels | 100 | 7 | 0 |"), "{text}");
        assert!(text.contains("| Tollgate, Sentinels, durable | 100 | 3 | 3 |"), "{text}");
        assert!(text.contains("\nBy the docs (Sentinels):\nthe old master decides until"), "{text}");
    }
}
