//! Rows as text for people, as CSV for spreadsheets, and as JSON for programs.

use anyhow::anyhow;
use serde::Serialize;

use crate::command::output::{columns, no_formula};
use crate::engine::algorithm::TimeZone;
use crate::engine::printable::printable;
use crate::engine::usage::page::Part;
use crate::engine::usage::{Time, Totals};
use crate::ledger::statement::Row;

/// Returns a line for each row, below the names of the columns.
pub(crate) fn table(rows: &[Row], zone: Option<TimeZone>) -> String {
    if rows.is_empty() {
        return "no usage recorded\n".to_owned();
    }
    const NAMES: [&str; 9] =
        ["FROM", "FOR", "DOMAIN", "DESCRIPTOR", "LIMIT", "ADMITTED", "DENIED", "COST", "TOPPED UP"];
    let names = NAMES.map(str::to_owned);
    let cells = |row: &Row| {
        let Row { start, span, counter, totals: Totals { admitted, denied, cost, topped_up }, is_open, .. } = row;
        let owner = &counter.owner;
        let limit = counter.rule.as_ref().unwrap_or(&counter.limit);
        let span = if *is_open { format!("{span}, open") } else { (*span).to_owned() };
        let texts = [printable(&owner.domain), owner.descriptor().to_string(), printable(limit)];
        let [domain, descriptor, limit] = texts;
        let [admitted, denied, cost] = [admitted.to_string(), denied.to_string(), cost.to_string()];
        [written(*start, zone), span, domain, descriptor, limit, admitted, denied, cost, topped_up.to_string()]
    };
    let lines: Vec<[String; 9]> = std::iter::once(names).chain(rows.iter().map(cells)).collect();
    if rows.iter().all(|row| row.totals.topped_up == 0) {
        // Only budgets are topped up.
        let without: Vec<[String; 8]> = lines.into_iter().map(|[cells @ .., _]| cells).collect();
        return columns(&without, 5..8);
    }
    columns(&lines, 5..9)
}

/// Returns CSV. No cell is a formula: a descriptor begins with a bracket, and names that look like a formula get a
/// leading quote.
pub(crate) fn csv(rows: &[Row], zone: Option<TimeZone>) -> anyhow::Result<String> {
    let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::NonNumeric).from_writer(Vec::new());
    writer.write_record([
        "from",
        "for",
        "domain",
        "descriptor",
        "limit",
        "rule",
        "admitted",
        "denied",
        "cost",
        "topped_up",
        "open",
    ])?;
    for row in rows {
        let Row { start, span, counter, totals: Totals { admitted, denied, cost, topped_up }, is_open, .. } = row;
        let (start, descriptor) = (written(*start, zone), counter.owner.descriptor().to_string());
        let [admitted, denied] = [admitted.to_string(), denied.to_string()];
        let [cost, topped_up] = [cost.to_string(), topped_up.to_string()];
        let (domain, rule) = (printable(&counter.owner.domain), printable(counter.rule.as_deref().unwrap_or_default()));
        let cells: [&str; 11] = [
            &start,
            span,
            &no_formula(&domain),
            &descriptor,
            &counter.limit,
            &no_formula(&rule),
            &admitted,
            &denied,
            &cost,
            &topped_up,
            if *is_open { "yes" } else { "no" },
        ];
        writer.write_record(cells)?;
    }
    let bytes = writer.into_inner().map_err(|error| anyhow!("{error}"))?;
    Ok(String::from_utf8(bytes)?)
}

/// Writes a time with the offset of the time zone, or in UTC without one.
fn written(time: Time, zone: Option<TimeZone>) -> String {
    zone.map_or_else(|| time.to_string(), |zone| zone.written(time.0))
}

/// A row in JSON. It borrows everything: there may be hundreds of thousands.
#[derive(Serialize)]
struct JsonRow<'r> {
    admitted: i64,
    cost: i64,
    denied: u64,
    descriptor: &'r [Part],
    domain: &'r str,
    r#for: &'r str,
    from: String,
    limit: &'r str,
    open: bool,
    rule: Option<&'r str>,
    topped_up: u64,
}

#[derive(Serialize)]
struct JsonRows<'r> {
    damaged: u64,
    left_out: u64,
    rows: Vec<JsonRow<'r>>,
}

/// Returns one JSON object.
pub(crate) fn json((rows, zone): (&[Row], Option<TimeZone>), left_out: u64, damaged: u64) -> anyhow::Result<String> {
    fn row(row: &Row, zone: Option<TimeZone>) -> JsonRow<'_> {
        let Row { start, span, counter, totals: Totals { admitted, denied, cost, topped_up }, is_open, .. } = row;
        JsonRow {
            admitted: *admitted,
            cost: *cost,
            denied: *denied,
            descriptor: &counter.owner.parts,
            domain: &counter.owner.domain,
            r#for: span,
            from: written(*start, zone),
            limit: &counter.limit,
            open: *is_open,
            rule: counter.rule.as_deref(),
            topped_up: *topped_up,
        }
    }
    Ok(serde_json::to_string(&JsonRows { damaged, left_out, rows: rows.iter().map(|one| row(one, zone)).collect() })?)
}
