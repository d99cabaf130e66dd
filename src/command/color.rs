//! Colors of what commands print, on terminals that want them: not if `NO_COLOR` is set, and not in pipes and files.

use std::borrow::Cow;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();

/// Words with a color, each with what stands before it in its line.
const VERDICTS: &[(&str, &str, Style)] = &[
    ("", "passed", GOOD),
    ("", "ok", GOOD),
    ("", "one more would pass", GOOD),
    ("", "a request would pass", GOOD),
    ("", "LIMITED", BAD),
    ("one more would be ", "LIMITED", BAD),
    ("a request would be ", "LIMITED", BAD),
    ("", "the call would fail", BAD),
    ("", "refused", BAD),
    ("", "NOT REFUNDED", DOUBTFUL),
];

/// Severities, before a colon.
const SEVERITIES: &[(&str, Style)] = &[("error", BAD), ("warning", DOUBTFUL), ("hint", DOUBTFUL)];

/// Returns whether a stream is a terminal that wants colors.
pub(super) fn is_wanted(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Returns a text with its verdicts and severities in color.
pub(super) fn colored(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

/// Returns a headline.
pub(super) fn headline(text: &str) -> String {
    let style = Style::new().bold();
    format!("{style}{text}{style:#}")
}

fn line(line: &str) -> Cow<'_, str> {
    for (before, word, style) in VERDICTS {
        if let Some(rest) = line.strip_prefix(before).and_then(|line| line.strip_prefix(word))
            && !rest.starts_with(|next: char| next.is_alphanumeric() || next == ' ')
        {
            return format!("{before}{style}{word}{style:#}{rest}").into();
        }
    }
    for (word, style) in SEVERITIES {
        if let Some(rest) = line.strip_prefix(word).filter(|rest| rest.starts_with(": ")) {
            return format!("{style}{word}{style:#}{rest}").into();
        }
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_and_severities_are_colored_and_nothing_else() {
        let plain = |text: &str| assert_eq!(colored(text), text);
        assert_eq!(colored("LIMITED\n  user=ann\n"), "\x1b[1m\x1b[31mLIMITED\x1b[0m\n  user=ann\n");
        assert_eq!(colored("passed\n"), "\x1b[1m\x1b[32mpassed\x1b[0m\n");
        assert_eq!(colored("one more would be LIMITED"), "one more would be \x1b[1m\x1b[31mLIMITED\x1b[0m");
        assert_eq!(colored("error: no"), "\x1b[1m\x1b[31merror\x1b[0m: no");
        assert_eq!(colored("warning: no"), "\x1b[1m\x1b[33mwarning\x1b[0m: no");
        for text in
            ["  user=LIMITED: passed\n", "passed on to others", "a value: error: of a client", "errors: 0", "okay", ""]
        {
            plain(text);
        }
    }
}
