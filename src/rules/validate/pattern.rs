//! What is meant as a pattern and matches as it is written: rules know no regular expressions, no networks and no
//! templates, only `*`.
//!
//! A file that is right gets no warning: what can well be meant as it stands (`www.example.*`, `/users/{id}`, `a|b`,
//! `CORP\sam`) is left alone. Whoever does mean `/.*` as everything that begins with `/.` writes `/.**`, which matches
//! the same.

use std::net::IpAddr;

/// What a key or value is taken for, where it looks like something that does not work.
pub(super) fn taken_for(text: &str) -> Option<&'static str> {
    if is_expression(text) {
        return Some(
            "looks like a regular expression, and matches exactly as it is written; only * stands for any characters",
        );
    }
    if is_template(text) {
        return Some("looks like a template, and matches exactly as it is written: nothing is put in its place");
    }
    None
}

/// An address that a client never has: a network.
pub(super) fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    address.parse::<IpAddr>().is_ok() && bits.parse::<u8>().is_ok_and(|bits| bits <= 128)
}

fn is_expression(text: &str) -> bool {
    let bytes = text.as_bytes();
    let anchored = bytes.len() > 1 && (bytes[0] == b'^' || bytes[bytes.len() - 1] == b'$');
    anchored || any_number(text) || has_class(text) || has_escape(text) || has_choice(text) || has_optional(text)
}

/// `.*` and `.+` where a wildcard would hardly follow a dot.
fn any_number(text: &str) -> bool {
    text.match_indices(".*").any(|(at, _)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && before != '*') && !text[at + 2..].starts_with('*')
    }) || text.match_indices(".+").any(|(at, _)| {
        let after = text[at + 2..].chars().next();
        after.is_none_or(|after| matches!(after, '/' | ')' | '@' | '?' | '\\'))
    })
}

/// `[0-9]`, `[^/]`.
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

/// `\.`, `\/`, `\d`, `\d+`. A name of a Windows domain, `CORP\sam`, has a backslash, too.
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

/// `ab?`, `(ab)?`, `https?://`. What stands behind the question mark of a path, `/a?b=1`, is its query.
fn has_optional(text: &str) -> bool {
    text.match_indices('?').any(|(at, _)| {
        let before = text[..at].ends_with(|before: char| before.is_alphanumeric() || ")]".contains(before));
        before && !text[at + 1..].starts_with(|after: char| after.is_alphanumeric() || "_%[&=*".contains(after))
    })
}

/// `(a|b)`, `(?i)`.
fn has_choice(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let rest = &text[at + 1..];
        let group = rest.find(')').map(|end| &rest[..end]);
        group.is_some_and(|group| group.starts_with('?') || group.contains('|'))
    })
}

/// `%REQ(x-user)%`, `{{ user }}`, `${USER}`.
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
