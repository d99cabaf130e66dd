//! A line of a ledger: its content, its link to the previous line, and its signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::key::{PublicKey, SigningKey};
use crate::engine::usage::{Period, Time};

/// The hash that the first line has in place of a previous line's.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Text that ends the signed part of a line.
const SIGNATURE: &str = ",\"signature\":\"";

/// A line's content and its link to the previous line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the line, from 1.
    pub line: u64,
    /// Content of the line.
    #[serde(flatten)]
    pub content: Content,
    /// BLAKE3 hash of the previous line with its signature; zeros in the first line.
    pub previous: String,
    /// ID of the signing key: the first 16 digits of the BLAKE3 hash of the public key.
    pub key: String,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// The usage of a domain in a period.
    Closed(Closed),
    /// A seal: all lines up to here are complete. It is the last line of each write.
    Seal(Seal),
}

/// The usage of a domain in a period that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Domain of the rules.
    pub domain: String,
    /// Length of the period: an hour or a day.
    pub by: Length,
    /// Start of the period.
    pub from: Time,
    /// End of the period.
    pub to: Time,
    /// Number of records, one for each counter and record period.
    pub records: u64,
    /// Sum of the records' admitted requests.
    pub admitted: i64,
    /// Sum of the records' denied requests.
    pub denied: u64,
    /// Sum of the records' cost.
    pub cost: i64,
    /// Sum of the hits by which budgets were topped up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub topped_up: u64,
    /// BLAKE3 hash of the records: see [`super::digest`].
    pub digest: String,
    /// Time until which the store keeps all the records; `None` if they never expire, or if there are none.
    pub kept_until: Option<Time>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The statement that all lines up to here have been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Time of the seal by the store's clock.
    pub at: Time,
    /// All periods before this time are closed.
    pub until: Time,
    /// Only for this domain; `None` for all.
    pub domain: Option<String>,
}

/// The length of the period that a line closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// One hour.
    Hour,
    /// One day.
    #[default]
    Day,
}

/// A line as it is written in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) line: Line,
    /// The signed part.
    text: String,
    signature: Vec<u8>,
}

impl Length {
    /// Both lengths.
    pub const ALL: [Length; 2] = [Length::Hour, Length::Day];

    /// Returns the name in lines and on the command line.
    pub const fn name(self) -> &'static str {
        self.period().name()
    }

    /// Returns the period with this length.
    pub const fn period(self) -> Period {
        match self {
            Length::Hour => Period::Hour,
            Length::Day => Period::Day,
        }
    }

    /// Returns the start of the period that contains `time`.
    pub fn begin(self, time: Time) -> Time {
        Time(time.0 - time.0 % self.period().ms())
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Length, D::Error> {
        let name = String::deserialize(deserializer)?;
        let named = Length::ALL.into_iter().find(|length| length.name() == name);
        named.ok_or_else(|| serde::de::Error::custom("a time is an hour or a day"))
    }
}

impl Line {
    /// Returns the signed line as text, without the line end; `None` only if it cannot be written as JSON.
    pub(super) fn signed(&self, key: &SigningKey) -> Option<String> {
        let text = serde_json::to_string(self).ok()?;
        let text = text.strip_suffix('}')?;
        Some(format!("{text}{SIGNATURE}{}\"}}", BASE64.encode(key.sign(text))))
    }
}

impl Signed {
    /// Parses a line of a file; `None` if it is not a signed line.
    pub(super) fn read(text: &str) -> Option<Signed> {
        let at = text.rfind(SIGNATURE)?;
        let signature = BASE64.decode(text[at + SIGNATURE.len()..].strip_suffix("\"}")?).ok()?;
        let signed = text[..at].to_owned();
        let line = serde_json::from_str(&format!("{signed}}}")).ok()?;
        Some(Signed { line, text: signed, signature })
    }

    pub(super) fn is_signed_by(&self, key: &PublicKey) -> bool {
        key.has_signed(&self.text, &self.signature)
    }
}

/// Returns the hash by which the next line refers to this one.
pub(super) fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}
