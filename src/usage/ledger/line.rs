//! One line of a ledger: what it says, what it follows, and who has signed it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::key::{PublicKey, SigningKey};
use crate::usage::{Period, Time};

/// What the first line follows.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where the part of a line ends that is signed.
const SIGNATURE: &str = ",\"signature\":\"";

/// What a line says, and what it follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its number, from 1 on.
    pub line: u64,
    /// What it says.
    #[serde(flatten)]
    pub content: Content,
    /// The BLAKE3 hash of the line before, signature and all; zeros in the first.
    pub previous: String,
    /// Who has signed it: the first 16 digits of the BLAKE3 hash of the public key.
    pub key: String,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// How much a domain was used in a time.
    Closed(Closed),
    /// That all lines are there: the last of what was written at once.
    Seal(Seal),
}

/// How much a domain was used in a time that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The domain of the rules.
    pub domain: String,
    /// How long the time is: an hour or a day.
    pub by: Length,
    /// When it began.
    pub from: Time,
    /// When it ended.
    pub to: Time,
    /// How many records there were: one for each counter and period.
    pub records: u64,
    /// The sum of what they have.
    pub admitted: i64,
    /// The same.
    pub denied: u64,
    /// The same.
    pub cost: i64,
    /// The BLAKE3 hash of the records: see [`super::digest`].
    pub digest: String,
    /// So long the store keeps all of them at least; `None`: it forgets none, or there are none.
    pub kept_until: Option<Time>,
}

/// All lines up to here have been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// When: the store's time.
    pub at: Time,
    /// Every time before is closed.
    pub until: Time,
    /// Of this domain alone. `None`: of all.
    pub domain: Option<String>,
}

/// How long a time a line closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// An hour.
    Hour,
    /// A day.
    #[default]
    Day,
}

/// A line as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) line: Line,
    /// What is signed.
    text: String,
    signature: Vec<u8>,
}

impl Length {
    /// Both.
    pub const ALL: [Length; 2] = [Length::Hour, Length::Day];

    /// The name in a line, and on the command line.
    pub const fn name(self) -> &'static str {
        self.period().name()
    }

    /// The period that is so long.
    pub const fn period(self) -> Period {
        match self {
            Length::Hour => Period::Hour,
            Length::Day => Period::Day,
        }
    }

    /// When such a time begins that this lies in.
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
    /// As it stands in a file, without the end of the line; `None` only where JSON has no words for it.
    pub(super) fn signed(&self, key: &SigningKey) -> Option<String> {
        let text = serde_json::to_string(self).ok()?;
        let text = text.strip_suffix('}')?;
        Some(format!("{text}{SIGNATURE}{}\"}}", BASE64.encode(key.sign(text))))
    }
}

impl Signed {
    /// Reads what stands in a file; `None` where it is none.
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

/// By this the next line names what it follows.
pub(super) fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}
