//! HPACK (RFC 7541): decodes the header blocks of a connection. Once its tables and buffers have their size, it
//! allocates nothing. Every error is one of the connection (COMPRESSION_ERROR), whose tables it leaves unusable.
//!
//! A name is classified when it enters a table. A field of a table therefore costs no comparison of names.

mod huffman;
mod literal;
#[cfg(test)]
mod model;
mod table;

pub(super) use literal::{literal, status};
use table::Table;

/// Bytes of a buffer for decoded strings that a connection keeps from one block to the next.
const KEPT_BYTES: usize = 4_096;

/// Decodes the header blocks of one connection.
pub(super) struct Decoder<K> {
    classify: fn(&[u8]) -> K,
    table: Table<K>,
    /// The name of a literal field: one that was Huffman-coded, or a copy of one in the dynamic table.
    name: Vec<u8>,
    /// The value of a literal field that was Huffman-coded.
    value: Vec<u8>,
}

/// One field of a header block.
pub(super) struct Field<'a, K> {
    /// What `classify` returned for the name.
    pub(super) kind: K,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// Whether the client forbids to index the field anywhere (RFC 7541, section 6.2.3).
    pub(super) sensitive: bool,
}

/// A header block that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HpackError {
    /// The block ends within a field or a size update.
    #[error("header block ends within a field (RFC 7541, section 6)")]
    Truncated,
    /// An integer exceeds the implementation's bounds.
    #[error("integer is larger than 2^32 - 1 or longer than 5 octets after its prefix (RFC 7541, section 5.1)")]
    IntegerOverflow,
    /// Index 0, or one beyond the last entry.
    #[error("index refers to no entry of the tables (RFC 7541, sections 2.3.3 and 6.1)")]
    InvalidIndex,
    /// A Huffman-coded string ends with something else than at most 7 ones.
    #[error("Huffman-coded string has invalid padding (RFC 7541, section 5.2)")]
    Padding,
    /// A Huffman-coded string contains the symbol that is reserved for padding.
    #[error("Huffman-coded string contains the end-of-string symbol (RFC 7541, section 5.2)")]
    EndOfString,
    /// A size update that exceeds the server's setting.
    #[error("dynamic table size update exceeds SETTINGS_HEADER_TABLE_SIZE (RFC 7541, section 6.3)")]
    SizeUpdateTooLarge,
    /// The fields are larger than the caller takes.
    #[error("header block has more fields than are taken (RFC 9113, section 10.5.1)")]
    TooLarge,
    /// A size update after a field.
    #[error("dynamic table size update after the first field of a header block (RFC 7541, section 4.2)")]
    SizeUpdateTooLate,
}

/// What a literal field asks the decoder to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexing {
    Incremental,
    Without,
    Never,
}

impl<K: Copy> Decoder<K> {
    /// Returns the decoder of a new connection. `max_table_bytes` is the server's SETTINGS_HEADER_TABLE_SIZE. It is
    /// also the table's first size, so it should be HTTP/2's initial value (4,096), which a client uses until it has
    /// read the setting.
    ///
    /// `classify` returns the kind of a name. It is called for each entry of the static table now, and later for each
    /// name that a block contains as a literal.
    pub(super) fn new(max_table_bytes: usize, classify: fn(&[u8]) -> K) -> Decoder<K> {
        Decoder { classify, table: Table::new(max_table_bytes, classify), name: Vec::new(), value: Vec::new() }
    }

    /// Decodes a whole header block, whose fragments have been joined, and passes each field to `field`. After an error
    /// the decoder must not be used again.
    ///
    /// A block's fields may be much larger than the block, as one octet can refer to a large entry of the table.
    /// `field` returns whether to go on.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(Field<'_, K>) -> bool,
    ) -> Result<(), HpackError> {
        let mut input = Input { rest: block };
        let mut may_resize = true;
        while let Some(first) = input.octet() {
            if first & 0x80 != 0 {
                let index = input.integer(first, 0x7f)?;
                let entry = self.table.get(index).ok_or(HpackError::InvalidIndex)?;
                let taken = field(Field { kind: entry.kind, name: entry.name, value: entry.value, sensitive: false });
                if !taken {
                    return Err(HpackError::TooLarge);
                }
            } else if first & 0x40 != 0 {
                let index = input.integer(first, 0x3f)?;
                self.literal(&mut input, index, Indexing::Incremental, &mut field)?;
            } else if first & 0x20 != 0 {
                let size = input.integer(first, 0x1f)?;
                if !may_resize {
                    return Err(HpackError::SizeUpdateTooLate);
                }
                if !self.table.resize(size) {
                    return Err(HpackError::SizeUpdateTooLarge);
                }
                continue;
            } else {
                let index = input.integer(first, 0x0f)?;
                let indexing = if first & 0x10 != 0 { Indexing::Never } else { Indexing::Without };
                self.literal(&mut input, index, indexing, &mut field)?;
            }
            may_resize = false;
        }
        for buffer in [&mut self.name, &mut self.value] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        Ok(())
    }

    /// Decodes the rest of a literal field. `index` is that of its name, or 0 if the name follows.
    fn literal(
        &mut self,
        input: &mut Input<'_>,
        index: usize,
        indexing: Indexing,
        mut field: impl FnMut(Field<'_, K>) -> bool,
    ) -> Result<(), HpackError> {
        let (kind, name) = if index == 0 {
            let name = input.string(&mut self.name)?;
            ((self.classify)(name), name)
        } else {
            self.table.name(index, &mut self.name).ok_or(HpackError::InvalidIndex)?
        };
        let value = input.string(&mut self.value)?;
        if !field(Field { kind, name, value, sensitive: indexing == Indexing::Never }) {
            return Err(HpackError::TooLarge);
        }
        if indexing == Indexing::Incremental {
            self.table.insert(kind, name, value);
        }
        Ok(())
    }
}

/// The part of a block that has not been decoded.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    #[inline(always)]
    fn octet(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Decodes an integer (RFC 7541, section 5.1), whose prefix is the bits of `mask` in the octet `first`.
    #[inline(always)]
    fn integer(&mut self, first: u8, mask: u8) -> Result<usize, HpackError> {
        if first & mask < mask { Ok(usize::from(first & mask)) } else { self.long_integer(mask) }
    }

    fn long_integer(&mut self, mask: u8) -> Result<usize, HpackError> {
        let mut value = u64::from(mask);
        for shift in [0, 7, 14, 21, 28] {
            let octet = self.octet().ok_or(HpackError::Truncated)?;
            value += u64::from(octet & 0x7f) << shift;
            if octet & 0x80 == 0 {
                let value = u32::try_from(value).map_err(|_| HpackError::IntegerOverflow)?;
                return Ok(value as usize);
            }
        }
        Err(HpackError::IntegerOverflow)
    }

    /// Decodes a string (RFC 7541, section 5.2). The buffer takes it if it is Huffman-coded.
    #[inline(always)]
    fn string<'s>(&mut self, buffer: &'s mut Vec<u8>) -> Result<&'s [u8], HpackError>
    where
        'a: 's,
    {
        let first = self.octet().ok_or(HpackError::Truncated)?;
        let length = self.integer(first, 0x7f)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
        self.rest = rest;
        if first & 0x80 == 0 { Ok(text) } else { huffman::decode(text, buffer) }
    }
}

#[cfg(test)]
mod tests {
    use super::literal::integer;
    use super::*;

    /// A decoded field: name, value, and whether it is sensitive.
    pub(super) type Decoded = (Vec<u8>, Vec<u8>, bool);

    /// A kind that tells names apart.
    pub(super) fn kind(name: &[u8]) -> u32 {
        name.iter().fold(7, |kind, octet| kind * 31 % 1_000_003 + u32::from(*octet))
    }

    pub(super) fn decoded(decoder: &mut Decoder<u32>, block: &[u8]) -> Result<Vec<Decoded>, HpackError> {
        let mut fields = Vec::new();
        decoder.decode(block, |field| {
            assert_eq!(field.kind, kind(field.name));
            fields.push((field.name.to_vec(), field.value.to_vec(), field.sensitive));
            true
        })?;
        Ok(fields)
    }

    /// What a new decoder with the usual table returns.
    fn alone(block: &[u8]) -> Result<Vec<Decoded>, HpackError> {
        decoded(&mut Decoder::new(4_096, kind), block)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
        digits.chunks(2).map(|two| u8::from_str_radix(&String::from_iter(two), 16).unwrap()).collect()
    }

    /// Decodes the blocks one after the other. `expected` has for each its fields and then the entries of the dynamic
    /// table, a line each, and the table's size.
    fn assert_decoded(table_bytes: usize, blocks: &[&str], expected: &[(&str, &str, usize)]) {
        let mut decoder = Decoder::new(table_bytes, kind);
        assert_eq!(blocks.len(), expected.len());
        for (block, (fields, entries, size)) in blocks.iter().zip(expected) {
            let line = |(name, value): (Vec<u8>, Vec<u8>)| {
                format!("{}: {}", String::from_utf8(name).unwrap(), String::from_utf8(value).unwrap())
            };
            let decoded = decoded(&mut decoder, &hex(block)).unwrap();
            let decoded: Vec<String> = decoded.into_iter().map(|(name, value, _)| line((name, value))).collect();
            assert_eq!(decoded, fields.lines().map(str::trim).collect::<Vec<_>>());
            let table: Vec<String> = decoder.table.dynamic().into_iter().map(line).collect();
            assert_eq!(table, entries.lines().map(str::trim).collect::<Vec<_>>());
            assert_eq!(decoder.table.size(), *size);
        }
    }

    #[test]
    fn integers_are_those_of_appendix_c_1() {
        let examples = [(&[0x0a][..], 0x1f, 10), (&[0x1f, 0x9a, 0x0a], 0x1f, 1_337), (&[0x2a], 0xff, 42)];
        for (octets, mask, value) in examples {
            let mut input = Input { rest: &octets[1..] };
            assert_eq!((input.integer(octets[0], mask), input.rest), (Ok(value), &[][..]));
        }
    }

    #[test]
    fn fields_are_those_of_appendix_c_2() {
        let custom = "custom-key: custom-header";
        let block = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
        assert_decoded(4_096, &[block], &[(custom, custom, 55)]);
        assert_decoded(4_096, &["040c 2f73 616d 706c 652f 7061 7468"], &[(":path: /sample/path", "", 0)]);
        assert_decoded(4_096, &["82"], &[(":method: GET", "", 0)]);
        let secret = hex("1008 7061 7373 776f 7264 0673 6563 7265 74");
        assert_eq!(alone(&secret), Ok(vec![(b"password".to_vec(), b"secret".to_vec(), true)]));
    }

    #[test]
    fn requests_are_those_of_appendices_c_3_and_c_4() {
        let expected = [
            (":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com", ":authority: www.example.com", 57),
            (
                ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache",
                "cache-control: no-cache\n:authority: www.example.com",
                110,
            ),
            (
                ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
                 custom-key: custom-value",
                "custom-key: custom-value\ncache-control: no-cache\n:authority: www.example.com",
                164,
            ),
        ];
        let plain = [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ];
        let huffman = [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ];
        assert_decoded(4_096, &plain, &expected);
        assert_decoded(4_096, &huffman, &expected);
    }

    #[test]
    fn responses_are_those_of_appendices_c_5_and_c_6() {
        let (date, location) = ("date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com");
        let cookie = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let fields = |status: &str| format!(":status: {status}\ncache-control: private\n{date}\n{location}");
        let later = date.replace(":21 ", ":22 ");
        let expected = [
            (fields("302"), format!("{location}\n{date}\ncache-control: private\n:status: 302"), 222),
            (fields("307"), format!(":status: 307\n{location}\n{date}\ncache-control: private"), 222),
            (
                format!("{}\ncontent-encoding: gzip\n{cookie}", fields("200").replace(date, &later)),
                format!("{cookie}\ncontent-encoding: gzip\n{later}"),
                215,
            ),
        ];
        let expected = expected.each_ref().map(|(fields, entries, size)| (&**fields, &**entries, *size));
        let plain = [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ];
        let huffman = [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad \
             1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ];
        assert_decoded(256, &plain, &expected);
        assert_decoded(256, &huffman, &expected);
    }

    #[test]
    fn a_block_that_ends_within_a_field_is_an_error() {
        let block = b"\x40\x03key\x84\xee\x3a\x2d\x2f";
        assert_eq!(alone(block), Ok(vec![(b"key".to_vec(), b"value".to_vec(), false)]));
        assert_eq!(alone(b""), Ok(vec![]));
        for length in 1..block.len() {
            assert_eq!(alone(&block[..length]), Err(HpackError::Truncated), "{length}");
        }
        for block in [&b"\xff"[..], b"\x3f\x80", b"\x0f", b"\x04\x7f\x80\xff\xff\xff\x0f/"] {
            assert_eq!(alone(block), Err(HpackError::Truncated), "{block:x?}");
        }
    }

    #[test]
    fn an_index_of_no_entry_is_an_error() {
        let largest = b"\xff\x80\xff\xff\xff\x0f";
        for block in [&b"\x80"[..], b"\xbe", b"\x7e\x00", b"\x0f\x2f\x00", b"\x1f\x2f\x00", largest] {
            assert_eq!(alone(block), Err(HpackError::InvalidIndex), "{block:x?}");
        }
        assert_eq!(alone(b"\x40\x01a\x01b\xbe").unwrap().len(), 2);
    }

    #[test]
    fn an_integer_of_more_than_32_bits_or_5_octets_is_an_error() {
        for rest in [&b"\x81\xff\xff\xff\x0f"[..], b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\xff\xff\xff"] {
            for first in [&b"\xff"[..], b"\x04\x7f", b"\x04\xff"] {
                assert_eq!(alone(&[first, rest].concat()), Err(HpackError::IntegerOverflow), "{first:x?} {rest:x?}");
            }
        }
    }

    #[test]
    fn size_updates_precede_the_fields_of_a_block_and_keep_to_the_setting() {
        assert_eq!(alone(b"\x20\x3f\xe1\x1f\x82").unwrap().len(), 1);
        assert_eq!(alone(b"\x20"), Ok(vec![]));
        assert_eq!(alone(b"\x3f\xe2\x1f\x82"), Err(HpackError::SizeUpdateTooLarge));
        for field in [&b"\x82"[..], b"\x40\x01a\x01b", b"\x00\x01a\x01b", b"\x10\x01a\x01b"] {
            assert_eq!(alone(&[field, b"\x20"].concat()), Err(HpackError::SizeUpdateTooLate));
        }
        let mut decoder = Decoder::new(4_096, kind);
        assert_eq!(decoded(&mut decoder, b"\x40\x01a\x01b\xbe").unwrap().len(), 2);
        assert_eq!(decoded(&mut decoder, b"\x20\x3f\xe1\x1f\xbe"), Err(HpackError::InvalidIndex));
    }

    #[test]
    fn a_new_entry_may_evict_the_entry_whose_name_it_has() {
        let mut decoder = Decoder::new(70, kind);
        let first = (b"a-long-name".to_vec(), b"1".to_vec(), false);
        let second = (first.0.clone(), b"2".to_vec(), false);
        assert_eq!(decoded(&mut decoder, b"\x40\x0ba-long-name\x011"), Ok(vec![first]));
        for _ in 0..100 {
            assert_eq!(decoded(&mut decoder, b"\x7e\x012\xbe"), Ok(vec![second.clone(), second.clone()]));
        }
        assert_eq!(decoder.table.dynamic().len(), 1);
    }

    #[test]
    fn a_long_string_occupies_memory_only_while_its_block_is_decoded() {
        let mut decoder = Decoder::new(4_096, kind);
        let (long, coded) = (vec![b'a'; 50_000], huffman::encode(&vec![b'a'; 50_000]));
        let mut block = vec![0];
        integer(&mut block, 0x80, 0x7f, coded.len());
        block.extend_from_slice(&coded);
        block.extend_from_slice(b"\x00");
        assert_eq!(decoded(&mut decoder, &block), Ok(vec![(long, vec![], false)]));
        assert_eq!(decoder.name.capacity() + decoder.value.capacity() + decoder.table.allocated(), 0);
    }
}
