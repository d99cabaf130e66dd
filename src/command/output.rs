//! Output of a command: its text on standard output, and its exit code.

use std::array;
use std::io::{self, Write as _};
use std::ops::Range;
use std::process::ExitCode;

use anyhow::Context as _;

/// Exit code if no limit applies to a request.
pub(super) const NOTHING_APPLIES: u8 = 3;

/// Prints the whole output of a command. A reader that stops early, as `head` does, is not an error.
///
/// # Errors
/// Fails if writing to standard output fails for another reason.
pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
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
