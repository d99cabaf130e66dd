//! Pages of usage records, and their names.
//!
//! A page is named `COUNTERKEY|u1:PERIOD_MS:PAGE`, where COUNTERKEY is the counter's name as `store::Key` writes it.
//! The page number is computed from the clock of the instance that asked, but a record's period from the store's clock.
//! So records of one period may be on two pages; their sum is the record.

use std::fmt::{self, Write as _};

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::{Period, Time, Totals};
use crate::printable::write_printable;

/// Separator between the counter's name and the page. The digit is the version of the layout.
pub const MARK: &str = "|u1:";

/// The content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The full name of the page.
    pub name: String,
    /// The tag of the counter's name, if the name contains only its hash.
    pub full_tag: Option<String>,
    /// Expiry of the page; `None` if it has none or it is unknown.
    pub expires: Option<Time>,
    /// Period indices, and the counter's usage in each period.
    pub records: Vec<(u64, Totals)>,
    /// Number of unreadable records.
    pub damaged: u64,
}

/// The pages that a reader wants. More may be returned, since the name of a page does not always contain its owner.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'s> {
    /// The wanted domain, or `None` for all domains.
    pub domain: Option<&'s str>,
    /// Includes periods that begin at this time or later.
    pub from: Time,
    /// Includes periods that begin before this time.
    pub to: Time,
}

/// The parts of a page's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName<'n> {
    /// The counter's name without this service's prefix: `{tag}|LIMIT`.
    pub counter: &'n str,
    tag: &'n str,
    /// The part that names the limit: its algorithm and its window.
    pub limit: &'n str,
    /// The length of time that a record covers.
    pub period: Period,
    /// Number of the page, counted from the epoch.
    pub number: u64,
}

/// The owner of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Domain of the rules.
    pub domain: String,
    /// Entries of the descriptor.
    pub parts: Vec<Part>,
}

/// An entry of a descriptor, as written in a counter's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Key of the entry: `user`, `path`.
    pub key: String,
    /// Value of the entry, or the pattern of all its values.
    pub value: String,
    /// Whether all values that match a pattern share the counter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_pattern: bool,
}

impl<'n> PageName<'n> {
    /// Parses a full name; `None` if it is not a page's.
    pub fn read(name: &'n str) -> Option<PageName<'n>> {
        // The prefix contains no braces.
        let named = &name[name.find('{')?..];
        let (counter, place) = named.rsplit_once(MARK)?;
        let (period_ms, number) = place.split_once(':')?;
        let (tag, limit) = counter[1..].split_once("}|")?;
        let period = Period::ALL.into_iter().find(|period| period_ms.parse() == Ok(period.ms()))?;
        Some(PageName { counter, tag, limit, period, number: number.parse().ok()? })
    }

    /// Returns whether the page may have records of this time. Clocks of instances differ by less than a page from the
    /// store's.
    pub fn may_have(&self, from: Time, to: Time) -> bool {
        let page_ms = self.period.ms().saturating_mul(self.period.per_page());
        let number = |time: Time| time.0 / page_ms;
        self.number.saturating_add(1) >= number(from) && self.number <= number(to).saturating_add(1)
    }

    /// Returns whether the page may have the period with this index.
    pub fn is_near(&self, index: u64) -> bool {
        (index / self.period.per_page()).abs_diff(self.number) <= 1 && index < Time::END.0 / self.period.ms()
    }

    /// Returns whether the name contains the hash of its tag instead of the tag.
    pub fn is_hashed(&self) -> bool {
        self.tag.starts_with('|')
    }

    /// Returns a substitute owner for a counter with only the hash of its tag in the name: an empty domain, which no
    /// rules have, and the hash. Returns `None` if the name contains the tag.
    pub fn unknown_owner(&self) -> Option<Owner> {
        let hash = self.tag.strip_prefix('|')?;
        let part = Part { key: "hash".to_owned(), value: hash.to_owned(), is_pattern: false };
        Some(Owner { domain: String::new(), parts: vec![part] })
    }

    /// Returns the counter's owner, from the name or, if the name contains a hash, from the tag with this hash; `None`
    /// if neither identifies it.
    pub fn owner(&self, full_tag: Option<&str>) -> Option<Owner> {
        match self.tag.strip_prefix('|') {
            None => Owner::read(self.tag),
            Some(hash) => {
                let is_it = |tag: &&str| *blake3::hash(tag.as_bytes()).to_hex() == *hash;
                full_tag.filter(is_it).and_then(Owner::read)
            }
        }
    }
}

impl Owner {
    /// Parses `domain|key=value|key~pattern`, with escapes.
    fn read(tag: &str) -> Option<Owner> {
        let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned);
        let mut texts = tag.split('|');
        let domain = texts.next().and_then(decode)?;
        let part = |text: &str| {
            let at = text.find(['=', '~'])?;
            let (key, value) = (decode(&text[..at])?, decode(&text[at + 1..])?);
            Some(Part { key, value, is_pattern: text.as_bytes()[at] == b'~' })
        };
        let parts = texts.map(part).collect::<Option<Vec<Part>>>()?;
        Some(Owner { domain, parts })
    }

    /// Returns the descriptor for display.
    pub fn descriptor(&self) -> Descriptor<'_> {
        Descriptor(&self.parts)
    }
}

/// A descriptor for display, such as `(user=ann)(path~/api/*)`. Different descriptors never look the same. Characters
/// that could be read as a bracket or a separator, or that a terminal would interpret, are escaped with a backslash.
pub struct Descriptor<'o>(pub &'o [Part]);

impl fmt::Display for Descriptor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Part { key, value, is_pattern } in self.0 {
            f.write_char('(')?;
            escape(f, key, "\\()=~")?;
            f.write_char(if *is_pattern { '~' } else { '=' })?;
            escape(f, value, "\\()")?;
            f.write_char(')')?;
        }
        Ok(())
    }
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str, special: &str) -> fmt::Result {
    for char in text.chars() {
        match char {
            _ if special.contains(char) => write!(f, "\\{char}")?,
            _ => write_printable(f, char)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str, tag: Option<&str>) -> Option<(String, String)> {
        let owner = PageName::read(name)?.owner(tag)?;
        Some((owner.domain.clone(), owner.descriptor().to_string()))
    }

    #[test]
    fn a_name_says_whose_it_is_and_when() {
        let name = "p:{shop|user=ann%7C|path~/api/*}|override|sw1:60000/10|u1:3600000:20712";
        let read = PageName::read(name).unwrap();
        assert_eq!((read.limit, read.period, read.number), ("override|sw1:60000/10", Period::Hour, 20_712));
        assert_eq!(read.counter, "{shop|user=ann%7C|path~/api/*}|override|sw1:60000/10");
        assert_eq!(owner(name, None), Some(("shop".into(), "(user=ann|)(path~/api/*)".into())));
        assert_eq!(owner("{a}|fw1:60000|u1:60000:1", None), Some(("a".into(), String::new())));
        for wrong in ["{a}|fw1:60000", "{a}|fw1:60000|u1:60001:1", "{a}|fw1:60000|u1:60000:x", "a|u1:60000:1"] {
            assert_eq!(PageName::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_hashed_tag_is_the_one_that_has_the_hash() {
        let tag = format!("shop|user={}", "x".repeat(200));
        let name = format!("{{|{}}}|fw1:60000|u1:60000:1", blake3::hash(tag.as_bytes()).to_hex());
        assert_eq!(owner(&name, Some(&tag)).unwrap().0, "shop");
        assert_eq!(owner(&name, Some("shop|user=eve")), None);
        assert_eq!(owner(&name, None), None);
    }

    #[test]
    fn no_descriptor_reads_as_another() {
        let part = |key: &str, value: &str| Part { key: key.into(), value: value.into(), is_pattern: false };
        let read = |parts: &[Part]| Descriptor(parts).to_string();
        assert_eq!(read(&[part("a", "1)(b=2")]), r"(a=1\)\(b=2)");
        assert_eq!(read(&[part("a", "1"), part("b", "2")]), "(a=1)(b=2)");
        assert_eq!(read(&[part("a=b", "c")]), r"(a\=b=c)");
        assert_eq!(read(&[part("a", "\u{1b}[2J\n")]), r"(a=\u{1b}[2J\n)");
    }

    #[test]
    fn a_page_is_left_out_only_where_it_is_more_than_one_away() {
        let name = |number| format!("{{a}}|fw1:60000|u1:3600000:{number}");
        let day_ms = 86_400_000;
        let may = |number, from, to| PageName::read(&name(number)).unwrap().may_have(Time(from), Time(to));
        assert!(may(9, 10 * day_ms, 11 * day_ms) && may(12, 10 * day_ms, 11 * day_ms));
        assert!(!may(8, 10 * day_ms, 11 * day_ms) && !may(13, 10 * day_ms, 11 * day_ms));
    }
}
