//! Output of a command: its text on standard output, and its exit code.

use std::array;
use std::borrow::Cow;
use std::io::{self, Write as _};
use std::ops::Range;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::command::color;
use crate::engine::printable::printable;

/// Exit code if no limit applies to a request.
pub(super) const NOTHING_APPLIES: u8 = 3;

/// Format of data that has rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// Selects the format of data that has rows.
#[derive(Args)]
pub(super) struct RowsOutput {
    /// Format of the output.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        conflicts_with = "json",
        hide_possible_values = true,
        help = "Format of the output: text, json or csv"
    )]
    format: Format,

    /// The same as --format json.
    #[arg(long)]
    json: bool,
}

impl RowsOutput {
    /// Returns the format.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// Format of data without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DocumentFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Selects the format of data without rows.
#[derive(Args)]
pub(super) struct Output {
    /// Format of the output.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        conflicts_with = "json",
        hide_possible_values = true,
        help = "Format of the output: text or json"
    )]
    format: DocumentFormat,

    /// The same as --format json.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Returns whether the output is JSON.
    pub fn is_json(&self) -> bool {
        self.json || self.format == DocumentFormat::Json
    }
}

/// Returns CSV: a line with these fields for each row, below their names. A field that a row lacks is empty. No cell is
/// a formula of a spreadsheet, and control characters are escaped.
pub(super) fn csv<R: Serialize>(fields: &[&str], rows: &[R]) -> anyhow::Result<String> {
    let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::NonNumeric).from_writer(Vec::new());
    writer.write_record(fields)?;
    for row in rows {
        let row = serde_json::to_value(row)?;
        let cell = |field: &&str| match &row[*field] {
            Value::Null => String::new(),
            Value::String(text) => no_formula(&printable(text)).into_owned(),
            value => value.to_string(),
        };
        writer.write_record(fields.iter().map(cell))?;
    }
    let bytes = writer.into_inner().map_err(|error| anyhow!("{error}"))?;
    Ok(String::from_utf8(bytes)?)
}

/// Adds a quote to a text that a spreadsheet would take as a formula.
pub(super) fn no_formula(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}").into() } else { text.into() }
}

/// Prints on standard error like `eprint!`, in color, and without a panic if its reader is gone: `2>&1 | head`.
macro_rules! err {
    ($($words:tt)*) => { $crate::command::output::complain(&format!($($words)*)) };
}

/// Prints a line on standard error like `eprintln!`, without a panic if its reader is gone.
macro_rules! errln {
    ($($words:tt)*) => { $crate::command::output::err!("{}\n", format_args!($($words)*)) };
}

pub(super) use {err, errln};

/// Prints on standard error. Nobody can be told that this fails.
pub(super) fn complain(text: &str) {
    let mut stderr = io::stderr().lock();
    let text = if color::is_wanted(&stderr) { color::colored(text).into() } else { Cow::Borrowed(text) };
    let _ = stderr.write_all(text.as_bytes());
}

/// Prints the whole output of a command, in color on a terminal. A reader that stops early, as `head` does, is not an
/// error.
///
/// # Errors
/// Fails if writing to standard output fails for another reason.
pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    let text = if color::is_wanted(&stdout) { color::colored(text).into() } else { Cow::Borrowed(text) };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Lays rows out in columns, each as wide as its widest cell, two spaces apart. Aligns the columns in `numbers` to the
/// right.
pub(super) fn columns<const N: usize>(rows: &[[String; N]], numbers: Range<usize>) -> String {
    let width = |column: usize| rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = array::from_fn(width);
    let mut text = String::new();
    for cells in rows {
        let cells = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
