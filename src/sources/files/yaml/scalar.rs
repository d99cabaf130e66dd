//! Types of unquoted scalars, by YAML 1.1 as `envoyproxy/ratelimit` reads it.

/// The type of a plain scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    /// A number that fits 64 bits, in decimal, `0x10`, `0b101`, `0o17` or `017`, with `_` between the digits.
    Integer(i64),
    /// A floating-point number, or a whole number that does not fit.
    Float,
    Text,
}

impl Plain {
    pub(super) fn of(text: &str) -> Plain {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
                return Plain::Bool(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
                return Plain::Bool(false);
            }
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN"
            | ".NAN" => return Plain::Float,
            _ => {}
        }
        if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
            return Plain::Text;
        }
        let digits = text.replace('_', "");
        match integer(&digits) {
            Some(number) => Plain::Integer(number),
            None if is_float(&digits) => Plain::Float,
            None => Plain::Text,
        }
    }
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None; // A second sign, which from_str_radix would accept.
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Returns whether a text has digits with at most one point and one exponent.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_every_notation_of_yaml_1_1() {
        for (text, number) in [
            ("0", 0),
            ("42", 42),
            ("+5", 5),
            ("-5", -5),
            ("010", 8),
            ("0o17", 15),
            ("0x10", 16),
            ("-0X1f", -31),
            ("0b101", 5),
            ("1_000", 1000),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(Plain::of(text), Plain::Integer(number), "{text}");
        }
    }

    #[test]
    fn what_looks_like_a_number_and_is_no_integer_is_a_float() {
        for text in ["1.5", "1.", ".5", "-1.0", "1e3", "1.5E-3", "08", "99999999999999999999", ".inf", "-.INF", ".nan"]
        {
            assert_eq!(Plain::of(text), Plain::Float, "{text}");
        }
    }

    #[test]
    fn what_only_begins_like_a_number_is_text() {
        for text in
            ["50.0.0.5", "2020-01-01", "1-2", "0x", "0xg", "--5", "0x-5", "+", ".", "...", "1e", "5m", "é", "_1"]
        {
            assert_eq!(Plain::of(text), Plain::Text, "{text}");
        }
    }
}
