//! Shortens long log lines, in one place for all of them.

use std::io::{self, Write};

use serde_json::{Map, Value};
use tracing_subscriber::fmt::MakeWriter;

use super::LogFormat;

/// Longest line in bytes. Log collectors cut lines at about this length (Docker at 16 KiB), and it fits a hundred
/// problems of rules.
pub(super) const LINE_BYTES: usize = 16 * 1024;

/// A writer that shortens lines to [`LINE_BYTES`].
pub(super) struct Shortened<M> {
    pub(super) format: LogFormat,
    pub(super) writer: M,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Shortened<M> {
    type Writer = Shortened<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Shortened { format: self.format, writer: self.writer.make_writer() }
    }
}

impl<W: Write> Write for Shortened<W> {
    /// Writes one line: `tracing_subscriber` passes each line in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() <= LINE_BYTES {
            self.writer.write_all(line)?;
        } else {
            self.writer.write_all(&shortened(self.format, line))?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn shortened(format: LogFormat, line: &[u8]) -> Vec<u8> {
    let fields = match format {
        LogFormat::Text => None,
        LogFormat::Json => serde_json::from_slice::<Map<String, Value>>(line).ok(),
    };
    let cut = match fields {
        None => cut(&String::from_utf8_lossy(line), LINE_BYTES - MARK_BYTES - 1),
        Some(fields) => cut_fields(&fields),
    };
    format!("{cut}\n").into_bytes()
}

/// Writes a JSON object with its texts cut until the line fits.
fn cut_fields(fields: &Map<String, Value>) -> String {
    // Escaping makes a text up to six times as long.
    let mut each = LINE_BYTES;
    while each > MARK_BYTES {
        each /= 2;
        let shorter = |(name, value): (&String, &Value)| match value {
            Value::String(text) => (name.clone(), Value::String(cut(text, each))),
            other => (name.clone(), other.clone()),
        };
        let object = Value::Object(fields.iter().map(shorter).collect()).to_string();
        if object.len() < LINE_BYTES {
            return object;
        }
    }
    r#"{"level":"ERROR","message":"omitted a log line that has too many fields"}"#.to_owned()
}

/// More than the length of `... (18446744073709551615 bytes more)`.
const MARK_BYTES: usize = 64;

/// Returns the first `bytes` of a text, and the number of bytes cut off.
fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes + MARK_BYTES {
        return text.trim_end().to_owned();
    }
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}... ({} bytes more)", &text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use tracing::subscriber::with_default;

    use super::*;

    /// Returns the line of an event with this text as its message and in a field.
    fn written(format: LogFormat, text: &str) -> String {
        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let sink = Sink::default();
        let made = sink.clone();
        let lines = Shortened { format, writer: move || made.clone() };
        let logs = tracing_subscriber::fmt().with_writer(lines).with_ansi(false);
        let tell = || tracing::error!(error = text, "it failed: {text}");
        match format {
            LogFormat::Text => with_default(logs.finish(), tell),
            LogFormat::Json => with_default(logs.json().flatten_event(true).finish(), tell),
        }
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    proptest! {
        #[test]
        fn every_line_is_short_and_json_stays_json(text in "[a-zé\"\u{1}]{0,40}", times in 0_usize..5_000) {
            let text = text.repeat(times);
            for format in [LogFormat::Text, LogFormat::Json] {
                let line = written(format, &text);
                prop_assert!(line.len() <= LINE_BYTES, "{format:?}: {} bytes", line.len());
                prop_assert!(line.ends_with('\n') && line.contains("it failed: "), "{line}");
                if format == LogFormat::Json {
                    let fields: Value = serde_json::from_str(&line).unwrap();
                    prop_assert_eq!(&fields["level"], "ERROR");
                    prop_assert!(fields["error"].is_string());
                }
            }
        }
    }

    #[test]
    fn a_short_line_is_as_it_was_and_a_long_one_says_how_much_is_missing() {
        assert!(written(LogFormat::Json, "all").contains(r#""message":"it failed: all","error":"all""#));
        let long = "x".repeat(1_000_000);
        for format in [LogFormat::Text, LogFormat::Json] {
            assert!(written(format, &long).contains(" bytes more)"));
        }
    }
}
