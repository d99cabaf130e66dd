//! The decoder beside an encoder whose dynamic table is a plain list.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::literal::integer;
use super::table::STATIC;
use super::tests::{decoded, kind};
use super::*;

/// First octet and prefix of the forms of a literal field.
const INCREMENTAL: (u8, u8) = (0x40, 0x3f);
const WITHOUT: (u8, u8) = (0x00, 0x0f);
const NEVER: (u8, u8) = (0x10, 0x0f);

/// A field, and how it is encoded.
#[derive(Clone, Debug)]
struct Drawn {
    name: Vec<u8>,
    value: Vec<u8>,
    form: (u8, u8),
    /// Which of the entries with this field or name is referred to; without one, a literal is written.
    reference: Option<usize>,
    huffman: [bool; 2],
}

/// A block: size updates and fields.
type Block = (Vec<usize>, Vec<Drawn>);

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let text = || {
        let known = ["", "/", "200", "content-type", ":path", ":status", "grpc-timeout", "x-request-id"];
        prop_oneof![
            prop::sample::select(known.map(|text| text.as_bytes().to_vec()).to_vec()),
            "[0-9a-f-]{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..30),
        ]
    };
    let form = prop::sample::select(vec![INCREMENTAL, INCREMENTAL, WITHOUT, NEVER]);
    let field = (text(), text(), form, any::<Option<usize>>(), any::<[bool; 2]>())
        .prop_map(|(name, value, form, reference, huffman)| Drawn { name, value, form, reference, huffman });
    let sizes = prop::collection::vec(0_usize..5_000, 0..3);
    let sizes = prop_oneof![3 => Just(Vec::new()), 1 => sizes];
    prop::collection::vec((sizes, prop::collection::vec(field, 0..8)), 1..12)
}

/// An encoder with a naive dynamic table.
struct Encoder {
    limit: usize,
    max_size: usize,
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Encoder {
    fn new(limit: usize) -> Encoder {
        Encoder { limit, max_size: limit, entries: VecDeque::new() }
    }

    /// Encodes a block. The drawn sizes beyond the limit become the limit.
    fn encode(&mut self, (sizes, fields): &Block) -> Vec<u8> {
        let mut out = Vec::new();
        for size in sizes {
            self.max_size = self.limit.min(*size);
            integer(&mut out, 0x20, 0x1f, self.max_size);
            self.evict();
        }
        for field in fields {
            self.field(&mut out, field);
        }
        out
    }

    fn field(&mut self, out: &mut Vec<u8>, field: &Drawn) {
        let fixed = STATIC.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let all: Vec<_> = fixed.chain(self.entries.iter().map(|(name, value)| (&**name, &**value))).collect();
        // Index of an entry with this name and, if there is one, this value.
        let find = |value: Option<&[u8]>| {
            let is_wanted =
                |entry: &(&[u8], &[u8])| entry.0 == field.name && value.is_none_or(|value| entry.1 == value);
            let found: Vec<usize> = (1..).zip(&all).filter(|(_, entry)| is_wanted(entry)).map(|(at, _)| at).collect();
            field.reference.filter(|_| !found.is_empty()).map(|pick| found[pick % found.len()])
        };
        let (first, mask) = field.form;
        if field.form != NEVER
            && let Some(index) = find(Some(&field.value))
        {
            return integer(out, 0x80, 0x7f, index);
        }
        match find(None) {
            Some(index) => integer(out, first, mask, index),
            None => {
                out.push(first);
                string(out, &field.name, field.huffman[0]);
            }
        }
        string(out, &field.value, field.huffman[1]);
        if field.form == INCREMENTAL {
            self.entries.push_front((field.name.clone(), field.value.clone()));
            self.evict();
        }
    }

    fn evict(&mut self) {
        let size = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 32;
        while self.entries.iter().map(size).sum::<usize>() > self.max_size {
            self.entries.pop_back();
        }
    }
}

fn string(out: &mut Vec<u8>, text: &[u8], is_coded: bool) {
    let (flag, text) = if is_coded { (0x80, huffman::encode(text)) } else { (0, text.to_vec()) };
    integer(out, flag, 0x7f, text.len());
    out.extend_from_slice(&text);
}

proptest! {
    #[test]
    fn blocks_are_decoded_as_they_were_encoded(
        limit in prop::sample::select(vec![0_usize, 64, 200, 1_000, 4_096]), blocks in blocks(),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(limit), Decoder::new(limit, kind));
        for block in &blocks {
            let fields = block.1.iter();
            let fields = fields.map(|field| (field.name.clone(), field.value.clone(), field.form == NEVER)).collect();
            prop_assert_eq!(decoded(&mut decoder, &encoder.encode(block)), Ok(fields));
            prop_assert_eq!(decoder.table.dynamic(), Vec::from(encoder.entries.clone()));
        }
    }

    #[test]
    fn no_bytes_cause_a_panic_or_exceed_the_bound_of_memory(
        limit in prop::sample::select(vec![0_usize, 64, 200, 4_096]),
        blocks in blocks(),
        wrong in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..40)), 0..12,
        ),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(limit), Decoder::new(limit, kind));
        let mut wrong = wrong.into_iter();
        for block in &blocks {
            let mut block = encoder.encode(block);
            if let Some((at, octets)) = wrong.next() {
                let at = at.index(block.len() + 1);
                let end = block.len().min(at + octets.len() / 2);
                block.splice(at..end, octets);
            }
            // A real caller closes the connection at the first error.
            let _ = decoded(&mut decoder, &block);
            let entries = (limit / 32).next_power_of_two().max(4);
            prop_assert!(decoder.table.allocated() <= limit + entries * 16, "{}", decoder.table.allocated());
            prop_assert!(decoder.table.size() <= limit);
            let longest = KEPT_BYTES.max(block.len() * 8 / 5 + 2);
            prop_assert!(decoder.name.capacity() <= longest && decoder.value.capacity() <= longest);
        }
    }
}
