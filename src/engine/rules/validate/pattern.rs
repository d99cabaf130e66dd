//! Detects texts that look like patterns but are matched literally: rules have no regular expressions, no networks and
//! no templates, only `*`.
//!
//! Correct files get no warnings: texts that may well be meant literally (`www.example.*`, `/users/{id}`, `a|b`,
//! `CORP\sam`) are accepted. If you mean `/.*` as everything that begins with `/.`, write `/.**`, which matches the
//! same.

use std::net::IpAddr;

/// Returns a warning for a key or value that looks like an unsupported pattern.
pub(super) fn taken_for(text: &str) -> Option<&'static str> {
    if is_expression(text) {
        return Some("looks like a regular expression, but is matched literally; only * matches any characters");
    }
    if is_template(text) {
        return Some("looks like a template, but is matched literally: nothing is substituted");
    }
    None
}

/// Returns whether a text is a network, which never equals a client's address.
pub(super) fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    address.parse::<IpAddr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 128)
}

fn is_expression(text: &str) -> bool {
    let bytes = text.as_bytes();
    let anchored = bytes.len() > 1 && (bytes[0] == b'^' || bytes[bytes.len() - 1] == b'$');
    anchored || any_number(text) || has_class(text) || has_escape(text) || has_choice(text) || has_optional(text)
}

/// Finds `.*` and `.+` where a wildcard is unlikely to follow a dot.
fn any_number(text: &str) -> bool {
    text.match_indices(".*").any(|(at, _)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && before != '*') && !text[at + 2..].starts_with('*')
    }) || text.match_indices(".+").any(|(at, _)| {
        let after = text[at + 2..].chars().next();
        after.is_none_or(|after| matches!(after, '/' | ')' | '@' | '?' | '\\'))
    })
}

/// Finds character classes such as `[0-9]` and `[^/]`.
fn has_class(text: &str) -> bool {
    text.match_indices('[').any(|(at, _)| {
        let rest = &text[at + 1..];
        let Some(class) = rest.find(']').map(|end| &rest.as_bytes()[..end]) else { return false };
        let is_range = |range: &[u8]| {
            range[1] == b'-'
                && range[0].is_ascii_alphanumeric()
                && range[2].is_ascii_alphanumeric()
                && range[0] < range[2]
        };
        class.len() > 1 && class[0] == b'^' || class.windows(3).any(is_range)
    })
}

/// Finds escapes such as `\.`, `\/`, `\d` and `\d+`. The name of a Windows domain, `CORP\sam`, also has a backslash.
fn has_escape(text: &str) -> bool {
    text.match_indices('\\').any(|(at, _)| {
        let is_name = text[..at].ends_with(char::is_alphanumeric);
        let mut rest = text[at + 1..].chars();
        let (first, second) = (rest.next().unwrap_or_default(), rest.next());
        let is_class = "dDwWsS".contains(first)
            && match second {
                Some(second) => "+{?".contains(second) || !is_name && !second.is_alphanumeric(),
                None => !is_name,
            };
        "./-?+*()[]$^|".contains(first) || is_class
    })
}

/// Finds optional parts such as `ab?`, `(ab)?` and `https?://`. After a path, `/a?b=1`, a question mark starts the
/// query.
fn has_optional(text: &str) -> bool {
    text.match_indices('?').any(|(at, _)| {
        let before = text[..at].ends_with(|before: char| before.is_alphanumeric() || ")]".contains(before));
        before && !text[at + 1..].starts_with(|after: char| after.is_alphanumeric() || "_%[&=*".contains(after))
    })
}

/// Finds groups such as `(a|b)` and `(?i)`.
fn has_choice(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let rest = &text[at + 1..];
        let group = rest.find(')').map(|end| &rest[..end]);
        group.is_some_and(|group| group.starts_with('?') || group.contains('|'))
    })
}

/// Finds templates such as `%REQ(x-user)%`, `{{ user }}` and `${USER}`.
fn is_template(text: &str) -> bool {
    let between = |open: &str, close: &str| {
        text.find(open).is_some_and(|at| text[at + open.len()..].find(close).is_some_and(|length| length > 0))
    };
    let operator = text.strip_prefix('%').and_then(|rest| rest.strip_suffix('%')).is_some_and(|operator| {
        operator.starts_with(|first: char| first.is_ascii_uppercase())
            && operator
                .split('(')
                .next()
                .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
    });
    operator || between("{{", "}}") || between("${", "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_pattern_is_seen() {
        for text in [
            "^/api/.*$",
            "^/api",
            "/api/v1$",
            "/api/.*",
            ".*",
            ".*@example.com",
            ".+",
            "/users/.+/orders",
            "/v[0-9]+",
            "[a-z]*",
            "[^/]+",
            r"10\.0\.0\.1",
            r"/users/\d+",
            r"\w{3}",
            "(GET|POST)",
            "(?i)bot",
            "/(?:a|b)",
            "bot(s|)",
            r"\d",
            r"/users/\d",
            r"\d*",
            r"\d-\d",
            "ab?",
            "https?://*",
            "[ab]?",
        ] {
            assert!(is_expression(text), "{text}");
        }
        for text in ["%REQ(x-user)%", "%DOWNSTREAM_REMOTE_ADDRESS%", "{{ user }}", "id-${USER}"] {
            assert!(!is_expression(text) && is_template(text), "{text}");
        }
        for text in ["10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"] {
            assert!(is_network(text), "{text}");
        }
    }

    #[test]
    fn what_can_well_be_meant_as_it_stands_is_left_alone() {
        for text in [
            "*",
            "**",
            "/api/*",
            "*.example.com",
            "www.example.*",
            "api.v1.*.internal",
            "10.0.*",
            "/.**",
            "/.well-known/*",
            "^",
            "$",
            "$5",
            "a+b",
            "ann+spam@example.com",
            "ann.+b",
            "/users/{id}",
            "{id}",
            "a|b",
            "(beta)",
            "[::1]",
            "[]",
            "[beta]",
            r"CORP\sam",
            r"CORP\wendy",
            r"CORP\d*",
            "c++",
            "?",
            "?q=1",
            "/search?q=1",
            "/search?*",
            "50%",
            "%20",
            "100% cotton 5%",
            "%",
            "%%",
            "a%20b%",
            "{{}}",
            "$",
            "a=b&c=d",
            "2020-01-01",
            "é*",
            "",
            "mozilla/5.0 (x11; linux)",
            "1.*",
            "*.*",
            "a*.*b",
        ] {
            assert_eq!(taken_for(text), None, "{text}");
        }
        for text in ["10.0.0.1", "/8", "a/8", "10.0.0.0/129", "10.0.0.0/", "10.0.0.0/8/x"] {
            assert!(!is_network(text), "{text}");
        }
    }
}
