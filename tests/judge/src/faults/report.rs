//! The table of outcomes.

use std::fmt::Write as _;

use super::{Fault, Outcome, System};

/// Returns the tables of all outcomes, in Markdown: one for each fault.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for fault in Fault::ALL {
        let of_fault = || outcomes.iter().filter(|outcome| outcome.fault == fault);
        if of_fault().count() == 0 {
            continue;
        }
        // Writing to a text cannot fail.
        let _ = writeln!(text, "**{}**\n", upper(fault.name()));
        let _ = writeln!(
            text,
            "| system | calls | hits over the limit | denied without need | errors | late | longest without a \
             decision | recovered after | said so |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        );
        for system in System::ALL {
            for outcome in of_fault().filter(|outcome| outcome.system == system) {
                let Outcome { operations, over_hits, needless, failed, late, .. } = outcome;
                let said = if outcome.said_so { "yes" } else { "no" };
                let _ = writeln!(
                    text,
                    "| {} | {operations} | {over_hits} | {needless} | {failed} | {late} | {} | {} | {said} |",
                    system.name(),
                    seconds(outcome.longest_undecided_ms),
                    seconds(outcome.recovered_after_ms),
                );
            }
        }
        text.push('\n');
    }
    text
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

    #[test]
    fn a_table_has_a_row_for_each_system() {
        let outcome = |system, over_hits| Outcome {
            system,
            fault: Fault::StoreKilled,
            operations: 100,
            over_hits,
            needless: 0,
            failed: 2,
            late: 1,
            longest_undecided_ms: 1_234,
            recovered_after_ms: 60,
            said_so: true,
        };
        let text = table(&[outcome(System::Gubernator, 7), outcome(System::TollgateRedis, 0)]);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(text.starts_with("**The store is killed for 1 s, without persistence**\n"), "{text}");
        assert_eq!(rows[2], "| Tollgate, Redis | 100 | 0 | 0 | 2 | 1 | 1.23 s | 0.06 s | yes |");
        assert_eq!(rows[3], "| Gubernator | 100 | 7 | 0 | 2 | 1 | 1.23 s | 0.06 s | yes |");
    }
}
