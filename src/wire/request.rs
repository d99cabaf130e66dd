//! The two messages of a call that have texts. They are what prost would generate, except that a text is a [`Text`] in
//! place of a `String`: reading a call with short texts allocates only its lists.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, message, skip_field, uint32};
use prost::{DecodeError, Message};

use super::RateLimitDescriptor;
use crate::engine::descriptor::Text;

/// A call: all of its descriptors must be within their limits for it to pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimitRequest {
    /// Domain of the rules.
    pub domain: Text,
    /// Descriptors in the client's order, which the answer keeps.
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Number of hits; 0 means 1.
    pub hits_addend: u32,
}

/// One step of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Key of the entry: `user`, `path`.
    pub key: Text,
    /// Value of the entry.
    pub value: Text,
}

impl Message for RateLimitRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        text::encode(1, &self.domain, buf);
        message::encode_repeated(2, &self.descriptors, buf);
        if self.hits_addend != 0 {
            uint32::encode(3, &self.hits_addend, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let within = |field| move |error| within(error, "RateLimitRequest", field);
        match tag {
            1 => text::merge(wire_type, &mut self.domain, buf, ctx).map_err(within("domain")),
            2 => message::merge_repeated(wire_type, &mut self.descriptors, buf, ctx).map_err(within("descriptors")),
            3 => uint32::merge(wire_type, &mut self.hits_addend, buf, ctx).map_err(within("hits_addend")),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let hits = if self.hits_addend == 0 { 0 } else { uint32::encoded_len(3, &self.hits_addend) };
        text::encoded_len(1, &self.domain) + message::encoded_len_repeated(2, &self.descriptors) + hits
    }

    fn clear(&mut self) {
        *self = RateLimitRequest::default();
    }
}

impl Message for Entry {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        text::encode(1, &self.key, buf);
        text::encode(2, &self.value, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let within = |field| move |error| within(error, "Entry", field);
        match tag {
            1 => text::merge(wire_type, &mut self.key, buf, ctx).map_err(within("key")),
            2 => text::merge(wire_type, &mut self.value, buf, ctx).map_err(within("value")),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        text::encoded_len(1, &self.key) + text::encoded_len(2, &self.value)
    }

    fn clear(&mut self) {
        *self = Entry::default();
    }
}

/// Adds to an error the field that it is in, as generated messages do.
fn within(mut error: DecodeError, message: &'static str, field: &'static str) -> DecodeError {
    error.push(message, field);
    error
}

/// A field with a text: `prost::encoding::string` for [`Text`].
mod text {
    use prost::encoding::{decode_varint, encode_key, encode_varint, encoded_len_varint, key_len, string};

    use super::{Buf, BufMut, DecodeContext, DecodeError, Text, WireType};

    pub(super) fn encode(tag: u32, text: &Text, buf: &mut impl BufMut) {
        if !text.is_empty() {
            encode_key(tag, WireType::LengthDelimited, buf);
            encode_varint(text.len() as u64, buf);
            buf.put_slice(text.as_bytes());
        }
    }

    pub(super) fn encoded_len(tag: u32, text: &Text) -> usize {
        if text.is_empty() { 0 } else { key_len(tag) + encoded_len_varint(text.len() as u64) + text.len() }
    }

    pub(super) fn merge(
        wire_type: WireType,
        text: &mut Text,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if wire_type == WireType::LengthDelimited
            && let Some((whole, length)) = first(buf.chunk())
        {
            *text = Text::new(whole);
            buf.advance(length);
            return Ok(());
        }
        // The field is invalid, or in several pieces: prost decides.
        let mut other = String::new();
        string::merge(wire_type, &mut other, buf, ctx)?;
        *text = other.into();
        Ok(())
    }

    /// Returns the text that these bytes begin with, and the length of its field, if it is whole and valid.
    fn first(bytes: &[u8]) -> Option<(&str, usize)> {
        let mut rest = bytes;
        let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let text = str::from_utf8(rest.get(..length)?).ok()?;
        Some((text, bytes.len() - rest.len() + length))
    }
}
