//! Writes header fields that no table keeps: a general answer's fields are few and differ from call to call.

use super::table::STATIC;

/// Appends a field as a literal without indexing and without Huffman coding (RFC 7541, section 6.2.2). Names in the
/// static table are written as indexes. Names must be in lower case.
pub(in super::super) fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match STATIC.iter().position(|(known, _)| known.as_bytes() == name) {
        Some(at) => integer(out, 0, 0x0f, at + 1),
        None => {
            out.push(0);
            string(out, name);
        }
    }
    string(out, value);
}

/// Appends `:status`. The code has three digits.
pub(in super::super) fn status(out: &mut Vec<u8>, code: u16) {
    let digits = [code / 100, code / 10, code].map(|digits| b'0' + (digits % 10) as u8);
    match STATIC.iter().position(|(name, value)| *name == ":status" && value.as_bytes() == digits) {
        Some(at) => integer(out, 0x80, 0x7f, at + 1),
        None => literal(out, b":status", &digits),
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 0x7f, text.len());
    out.extend_from_slice(text);
}

/// Appends an integer (RFC 7541, section 5.1): a first octet with these flags, whose bits in `mask` are the prefix.
pub(super) fn integer(out: &mut Vec<u8>, flags: u8, mask: u8, value: usize) {
    if value < usize::from(mask) {
        return out.push(flags | value as u8);
    }
    out.push(flags | mask);
    let mut rest = value - usize::from(mask);
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn a_status_of_the_static_table_is_one_octet() {
        assert_eq!(written(|out| status(out, 200)), [0x88]);
        assert_eq!(written(|out| status(out, 500)), [0x8e]);
        assert_eq!(written(|out| status(out, 415)), *b"\x08\x03415");
    }

    #[test]
    fn the_static_tables_names_are_written_as_indexes() {
        assert_eq!(written(|out| literal(out, b":path", b"/a")), *b"\x04\x02/a");
        assert_eq!(written(|out| literal(out, b"content-type", b"text/html")), *b"\x0f\x10\x09text/html");
        assert_eq!(written(|out| literal(out, b"grpc-status", b"0")), *b"\x00\x0bgrpc-status\x010");
    }

    #[test]
    fn integers_are_those_of_the_appendix() {
        assert_eq!(written(|out| integer(out, 0, 0x1f, 10)), [0b0000_1010]);
        assert_eq!(written(|out| integer(out, 0xe0, 0x1f, 1_337)), [0xff, 0b1001_1010, 0b0000_1010]);
        assert_eq!(written(|out| integer(out, 0, 0xff, 42)), [0b0010_1010]);
    }
}
