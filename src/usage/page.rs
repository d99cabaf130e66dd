//! Where records are kept: pages, and what their names say.
//!
//! A page is named `COUNTERKEY|u1:PERIOD_MS:PAGE`, where the counter's name is as `store::Key` writes it. Its number is
//! that of the clock of the process that asked, and a record's period that of the store's: records of one period may
//! lie on two pages, and add up.

use std::fmt::{self, Write as _};

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::{Period, Time, Totals};

/// What stands between a counter's name and its page; the digit is the version of the layout.
pub const MARK: &str = "|u1:";

/// What stands on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its whole name.
    pub name: String,
    /// The tag of the counter's name where that has its hash alone.
    pub full_tag: Option<String>,
    /// When the store forgets it; `None`: never, or nobody knows.
    pub expires: Option<Time>,
    /// The numbers of periods, and how much the counter was used in each.
    pub records: Vec<(u64, Totals)>,
    /// So many more cannot be read.
    pub damaged: u64,
}

/// What the name of a page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName<'n> {
    /// The counter's name without the prefix of this service: `{tag}|LIMIT`.
    pub counter: &'n str,
    tag: &'n str,
    /// What names the limit: its algorithm and its window.
    pub limit: &'n str,
    /// How long a time its records are about.
    pub period: Period,
    /// Its number, from the epoch on.
    pub number: u64,
}

/// Whose a counter is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The domain of the rules.
    pub domain: String,
    /// The entries of the descriptor.
    pub parts: Vec<Part>,
}

/// An entry of a descriptor, as a counter's name has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// What kind of thing: `user`, `path`.
    pub key: String,
    /// Which one; or the pattern of all of them.
    pub value: String,
    /// All values that match it share the counter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_pattern: bool,
}

impl<'n> PageName<'n> {
    /// Reads a whole name; `None` where it is none of a page.
    pub fn read(name: &'n str) -> Option<PageName<'n>> {
        // The prefix has no braces.
        let named = &name[name.find('{')?..];
        let (counter, place) = named.rsplit_once(MARK)?;
        let (period_ms, number) = place.split_once(':')?;
        let (tag, limit) = counter[1..].split_once("}|")?;
        let period = Period::ALL.into_iter().find(|period| period_ms.parse() == Ok(period.ms()))?;
        Some(PageName { counter, tag, limit, period, number: number.parse().ok()? })
    }

    /// Whether it may have records of this time. Clocks of processes are less than a page from the store's.
    pub fn may_have(&self, from: Time, to: Time) -> bool {
        let page_ms = self.period.ms().saturating_mul(self.period.per_page());
        let number = |time: Time| time.0 / page_ms;
        self.number.saturating_add(1) >= number(from) && self.number <= number(to).saturating_add(1)
    }

    /// Whether the period of this number may be on it.
    pub fn is_near(&self, index: u64) -> bool {
        (index / self.period.per_page()).abs_diff(self.number) <= 1 && index < Time::END.0 / self.period.ms()
    }

    /// Whether the name has the hash of its tag, and not the tag.
    pub fn is_hashed(&self) -> bool {
        self.tag.starts_with('|')
    }

    /// Whose counter it is, by the name, or where that has a hash by the tag that has this hash; `None` where neither
    /// says.
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
    /// `domain|key=value|key~pattern`, escaped.
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

    /// The descriptor as people read it.
    pub fn descriptor(&self) -> Descriptor<'_> {
        Descriptor(&self.parts)
    }
}

/// `(user=ann)(path~/api/*)`: two descriptors read the same only if they are the same. What could be taken for a
/// bracket or a sign between is escaped by a backslash, and so is what a terminal would act on.
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
            _ if char.is_control() => write!(f, "{}", char.escape_default())?,
            _ if special.contains(char) => write!(f, "\\{char}")?,
            _ => f.write_char(char)?,
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
