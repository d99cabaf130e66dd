//! A terminal on which a table is redrawn and keys are read one by one.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use rustix::termios::{self, LocalModes, OptionalActions, Termios};

use crate::command::color;

/// Moves the cursor to the first line, and clears the screen from there.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The terminal of a live table. Its modes are restored when this is dropped.
pub(super) struct Terminal {
    /// Modes of the keyboard before; `None` if there is none.
    before: Option<Termios>,
    keys: UnboundedReceiver<u8>,
    interrupts: Signal,
    terminations: Signal,
}

/// What a person has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// They have pressed this key.
    Key(u8),
    /// They want the table to end.
    End,
}

impl Terminal {
    /// Takes over the terminal, or returns `None` if standard output is none. Without a keyboard there are no keys.
    ///
    /// # Errors
    /// Fails if signals cannot be received.
    pub(super) fn open() -> io::Result<Option<Terminal>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let (interrupts, terminations) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (pressed, keys) = mpsc::unbounded_channel();
        let before = termios::tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            // Keys come at once and are not shown. Ctrl-C remains a signal.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
            // Ends with the process: a read from a terminal cannot be given up.
            thread::spawn(move || {
                for key in io::stdin().lock().bytes().map_while(Result::ok) {
                    if pressed.send(key).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Some(Terminal { before, keys, interrupts, terminations }))
    }

    /// Waits for a wish.
    pub(super) async fn wish(&mut self) -> Wish {
        tokio::select! {
            Some(key) = self.keys.recv() => if key == b'q' { Wish::End } else { Wish::Key(key) },
            _ = self.interrupts.recv() => Wish::End,
            _ = self.terminations.recv() => Wish::End,
        }
    }

    /// Draws lines over those drawn before, as many as there is room for. The line with this number is a headline.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub(super) fn draw(&self, text: &str, headline: usize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let (columns, rows) = match termios::tcgetwinsize(&stdout) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        };
        let lines = fitted(text, columns, rows).into_iter().enumerate().map(|(number, line)| {
            let is_headline = number == headline && color::is_wanted(&stdout);
            if is_headline { color::headline(&line) } else { line }
        });
        let lines: Vec<_> = lines.collect();
        stdout.write_all(format!("{CLEAR}{}", lines.join("\n")).as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        let _ = io::stdout().write_all(b"\n");
    }
}

/// Returns the lines that a terminal of this size has room for, each cut to its width.
fn fitted(text: &str, columns: usize, rows: usize) -> Vec<String> {
    text.lines().take(rows).map(|line| line.chars().take(columns).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_terminal_shows_what_it_has_room_for() {
        assert_eq!(fitted("head\n\nabcdef\nmore\n", 4, 3), ["head", "", "abcd"]);
        assert_eq!(fitted("äöü\n", 2, 3), ["äö"]);
    }
}
