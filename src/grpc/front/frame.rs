//! Frames of HTTP/2 (RFC 9113, section 4): reads their heads, and writes the frames that a server sends.

/// Length of a frame's head.
pub(super) const HEAD: usize = 9;
/// Largest payload that a peer may send, which is also the largest that every peer accepts.
pub(super) const MAX_PAYLOAD: usize = 16 * 1024;

/// Types of frames.
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const PRIORITY: u8 = 2;
    pub(in super::super) const RST_STREAM: u8 = 3;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PUSH_PROMISE: u8 = 5;
    pub(in super::super) const PING: u8 = 6;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub(in super::super) const ACK: u8 = 0x1;
    pub(in super::super) const END_STREAM: u8 = 0x1;
    pub(in super::super) const END_HEADERS: u8 = 0x4;
    pub(in super::super) const PADDED: u8 = 0x8;
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

/// Settings (RFC 9113, section 6.5.2).
pub(super) mod setting {
    pub(in super::super) const ENABLE_PUSH: u16 = 2;
    pub(in super::super) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(in super::super) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(in super::super) const MAX_FRAME_SIZE: u16 = 5;
    pub(in super::super) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Error codes (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Not an error.
    NoError = 0,
    Protocol = 1,
    Internal = 2,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    RefusedStream = 7,
    Compression = 9,
    EnhanceYourCalm = 11,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads the head of the first frame. Returns `None` if it is not there completely.
pub(super) fn head(input: &[u8]) -> Option<Head> {
    let [a, b, c, kind, flags, stream @ ..] = *input.first_chunk::<HEAD>()?;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    // The highest bit is reserved.
    Some(Head { length, kind, flags, stream: u32::from_be_bytes(stream) & ID })
}

/// The bits of a stream's number, and of a window's increment.
pub(super) const ID: u32 = (1 << 31) - 1;

/// Reads a number of 32 bits.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    payload.try_into().ok().map(u32::from_be_bytes)
}

/// Writes the head of a frame. Payloads are at most [`MAX_PAYLOAD`] bytes.
pub(super) fn begin(out: &mut Vec<u8>, length: usize, (kind, flags): (u8, u8), stream: u32) {
    let [.., a, b, c] = length.to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Writes SETTINGS.
pub(super) fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    begin(out, settings.len() * 6, (kind::SETTINGS, 0), 0);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Acknowledges SETTINGS.
pub(super) fn settings_ack(out: &mut Vec<u8>) {
    begin(out, 0, (kind::SETTINGS, flag::ACK), 0);
}

/// Writes PING, or with [`flag::ACK`] its answer.
pub(super) fn ping(out: &mut Vec<u8>, flags: u8, payload: &[u8; 8]) {
    begin(out, payload.len(), (kind::PING, flags), 0);
    out.extend_from_slice(payload);
}

/// Writes GOAWAY with the last stream that is processed.
pub(super) fn goaway(out: &mut Vec<u8>, last: u32, reason: Reason) {
    begin(out, 8, (kind::GOAWAY, 0), 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(reason as u32).to_be_bytes());
}

/// Writes RST_STREAM.
pub(super) fn reset(out: &mut Vec<u8>, stream: u32, reason: Reason) {
    begin(out, 4, (kind::RST_STREAM, 0), stream);
    out.extend_from_slice(&(reason as u32).to_be_bytes());
}

/// Writes WINDOW_UPDATE; stream 0 is the connection.
pub(super) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    begin(out, 4, (kind::WINDOW_UPDATE, 0), stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written_and_the_reserved_bit_is_ignored() {
        let mut out = Vec::new();
        begin(&mut out, 0x01_02_03, (kind::DATA, flag::END_STREAM | flag::PADDED), 7);
        assert_eq!(out, [1, 2, 3, 0, 9, 0, 0, 0, 7]);
        out[5] |= 0x80;
        let read = head(&out).unwrap();
        assert_eq!(read, Head { length: 0x01_02_03, kind: kind::DATA, flags: 9, stream: 7 });
        assert!(read.has(flag::END_STREAM) && !read.has(flag::END_HEADERS));
        assert_eq!(head(&out[..8]), None);
    }

    #[test]
    fn what_a_server_sends_is_as_the_rfc_has_it() {
        let written = |write: fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            out
        };
        assert_eq!(
            written(|out| settings(out, &[(setting::MAX_CONCURRENT_STREAMS, 1_024)])),
            [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4, 0]
        );
        assert_eq!(written(settings_ack), [0, 0, 0, 4, 1, 0, 0, 0, 0]);
        assert_eq!(
            written(|out| ping(out, flag::ACK, b"12345678")),
            [&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], b"12345678"].concat()
        );
        assert_eq!(
            written(|out| goaway(out, 5, Reason::EnhanceYourCalm)),
            [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 11]
        );
        assert_eq!(written(|out| reset(out, 3, Reason::Protocol)), [0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 1]);
        assert_eq!(written(|out| window_update(out, 0, 65_536)), [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
