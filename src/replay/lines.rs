//! The lines of a log in order, with the reasons why some cannot be read.

use std::io::{self, BufRead, Read as _};

/// The longest line that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The source of a log.
pub type Log = Box<dyn BufRead + Send>;

/// The lines of a log.
pub(super) struct Lines {
    log: Log,
    line: Vec<u8>,
    number: u64,
    count: u64,
}

impl Lines {
    pub(super) fn new(log: Log) -> Lines {
        Lines { log, line: Vec::new(), number: 0, count: 0 }
    }

    /// Returns the number of the last line, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of lines that were not empty.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the next line that is not empty, or the reason why it cannot be read; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<&str, &'static str>>> {
        loop {
            self.line.clear();
            if (&mut self.log).take(LONGEST).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_whole = self.line.ends_with(b"\n") || (self.line.len() as u64) < LONGEST;
            if !self.line.trim_ascii().is_empty() {
                self.count += 1;
                if is_whole {
                    break;
                }
                self.log.skip_until(b'\n')?;
                return Ok(Some(Err("is longer than 1 MiB")));
            }
        }
        let text = std::str::from_utf8(&self.line).map_err(|_| "is not UTF-8");
        Ok(Some(text.map(|text| text.trim_end_matches(['\r', '\n']))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_cannot_be_read_leave_the_others() {
        let endless = "x".repeat(3 << 20);
        let text = [b"a\r\n\n \n\xff\n", endless.as_bytes(), b"\nb"].concat();
        let mut lines = Lines::new(Box::new(io::Cursor::new(text)));
        let mut read = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            read.push(line.map(str::to_owned));
        }
        assert_eq!(read, [Ok("a".into()), Err("is not UTF-8"), Err("is longer than 1 MiB"), Ok("b".into())]);
        assert_eq!((lines.number(), lines.count()), (6, 4));
    }
}
