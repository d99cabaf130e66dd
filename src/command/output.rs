//! Output of a command: its text on standard output, and its exit code.

use std::io::{self, Write as _};
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
