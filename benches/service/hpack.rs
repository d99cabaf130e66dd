//! The headers of a connection's calls, in HPACK (RFC 7541).
//!
//! Like Envoy's, this encoder adds each header to the connection's dynamic table, and refers to the headers that are
//! still there. A header with another value in each call pushes the others out, so that they are sent again.

/// The headers of calls, beside those that every call of a connection has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// None.
    Constant,
    /// `x-request-id` and `traceparent`, with new values in each call, as from an Envoy that traces.
    New,
}

/// Headers of each call except `:method` and `:scheme`: index of the name in the static table, or 0, and the name.
const HEADERS: &[(u8, &str, &str)] = &[
    (4, ":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    (1, ":authority", "tollgate"),
    (0, "te", "trailers"),
    (31, "content-type", "application/grpc"),
    (0, "x-envoy-internal", "true"),
    (0, "x-forwarded-for", "192.0.2.1"),
    (0, TIMEOUT, ""),
];
/// Its value is set per connection.
const TIMEOUT: &str = "grpc-timeout";
/// Indices of POST and http in the static table.
const PSEUDO: [u8; 2] = [0x83, 0x86];
/// Index of the newest entry of the dynamic table.
const NEWEST: u64 = 62;
/// Default size of the dynamic table.
const TABLE: u64 = 4096;
/// Size of an entry beyond its name and value.
const ENTRY: usize = 32;

/// Encodes the headers of a connection's calls.
pub struct Encoder {
    constant: Vec<Header>,
    new: Option<NewHeaders>,
    table: Table,
    /// A smaller table that the next block has to announce.
    resize: bool,
}

struct Header {
    /// Index in the static table, or 0.
    place: u8,
    name: &'static str,
    value: String,
    entry: Option<Entry>,
}

/// Headers with new values in each call.
struct NewHeaders {
    random: fastrand::Rng,
    request_id: Option<Entry>,
    trace: Option<Entry>,
}

/// The sizes of the dynamic table. Its contents are the newest entries that fit.
struct Table {
    size: u64,
    /// Number of entries ever added, and their size.
    added: u64,
    bytes: u64,
}

/// An entry of the dynamic table: the number and the size of the entries before it.
#[derive(Clone, Copy)]
struct Entry {
    number: u64,
    bytes: u64,
}

impl Encoder {
    /// Creates an encoder for calls with this `grpc-timeout`.
    pub fn new(timeout: &str, headers: Headers) -> Encoder {
        let header = |(place, name, value): &(u8, &'static str, &str)| Header {
            place: *place,
            name,
            value: if *name == TIMEOUT { timeout.to_owned() } else { (*value).to_owned() },
            entry: None,
        };
        let new = || NewHeaders { random: fastrand::Rng::new(), request_id: None, trace: None };
        Encoder {
            constant: HEADERS.iter().map(header).collect(),
            new: (headers == Headers::New).then(new),
            table: Table { size: TABLE, added: 0, bytes: 0 },
            resize: false,
        }
    }

    /// Follows the server's `SETTINGS_HEADER_TABLE_SIZE`, as far as it is smaller.
    pub fn resize(&mut self, size: u32) {
        if u64::from(size) < self.table.size {
            self.table.size = u64::from(size);
            self.resize = true;
        }
    }

    /// Adds the header block of the next call to `out`.
    pub fn call(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.resize) {
            integer(out, 0x20, 5, self.table.size);
        }
        out.extend_from_slice(&PSEUDO);
        for header in &mut self.constant {
            match header.entry.and_then(|entry| self.table.index(entry)) {
                Some(index) => integer(out, 0x80, 7, index),
                None => {
                    integer(out, 0x40, 6, u64::from(header.place));
                    if header.place == 0 {
                        text(out, header.name);
                    }
                    text(out, &header.value);
                    header.entry = Some(self.table.add(header.name.len() + header.value.len()));
                }
            }
        }
        if let Some(new) = &mut self.new {
            new.call(&mut self.table, out);
        }
    }
}

impl NewHeaders {
    fn call(&mut self, table: &mut Table, out: &mut Vec<u8>) {
        let [id, trace, span] = [(); 3].map(|()| self.random.u128(..).to_be_bytes());
        let request_id = [Part::Hex(&id[..4]), Part::HYPHEN, Part::Hex(&id[4..6]), Part::HYPHEN, Part::Hex(&id[6..8])];
        let rest = [Part::HYPHEN, Part::Hex(&id[8..10]), Part::HYPHEN, Part::Hex(&id[10..])];
        let request_id = request_id.into_iter().chain(rest);
        self.request_id = Some(literal(table, out, ("x-request-id", self.request_id), request_id));
        let trace = [
            Part::Hex(&[0]),
            Part::HYPHEN,
            Part::Hex(&trace),
            Part::HYPHEN,
            Part::Hex(&span[..8]),
            Part::HYPHEN,
            Part::Hex(&[1]),
        ];
        self.trace = Some(literal(table, out, ("traceparent", self.trace), trace.into_iter()));
    }
}

impl Table {
    fn add(&mut self, length: usize) -> Entry {
        let entry = Entry { number: self.added, bytes: self.bytes };
        self.added += 1;
        self.bytes += (length + ENTRY) as u64;
        entry
    }

    /// Returns the index of an entry, or `None` if it has been pushed out.
    fn index(&self, entry: Entry) -> Option<u64> {
        (self.bytes - entry.bytes <= self.size).then(|| NEWEST + self.added - 1 - entry.number)
    }
}

/// Adds a header to `out` and to the table. Its name refers to the previous entry with that name, if there is one.
fn literal<'p>(
    table: &mut Table,
    out: &mut Vec<u8>,
    (name, previous): (&str, Option<Entry>),
    value: impl Iterator<Item = Part<'p>>,
) -> Entry {
    match previous.and_then(|entry| table.index(entry)) {
        Some(index) => integer(out, 0x40, 6, index),
        None => {
            out.push(0x40);
            text(out, name);
        }
    }
    // The length is below 127, and known at the end.
    let place = out.len();
    out.push(0);
    let mut bits = Bits { out, pending: 0, count: 0 };
    let length = value.map(|part| bits.part(part)).sum::<usize>();
    bits.end();
    out[place] = 0x80 | (out.len() - place - 1) as u8;
    table.add(name.len() + length)
}

/// Adds an integer with a prefix of this many bits; `first` has the other bits of its first byte.
fn integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: u64) {
    let most = (1 << prefix) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Adds a string as it is. All of them are shorter than 127 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// A part of a value in Huffman's code.
enum Part<'p> {
    /// Bytes, each as two digits.
    Hex(&'p [u8]),
    Code(Code),
}

impl Part<'_> {
    const HYPHEN: Self = Part::Code(Code { bits: 0x16, length: 6 });
}

#[derive(Clone, Copy)]
struct Code {
    bits: u16,
    length: u32,
}

/// The codes of the hexadecimal digits.
const DIGITS: [(u16, u32); 16] = [
    (0x00, 5),
    (0x01, 5),
    (0x02, 5),
    (0x19, 6),
    (0x1a, 6),
    (0x1b, 6),
    (0x1c, 6),
    (0x1d, 6),
    (0x1e, 6),
    (0x1f, 6),
    (0x03, 5),
    (0x23, 6),
    (0x04, 5),
    (0x24, 6),
    (0x05, 5),
    (0x25, 6),
];

/// The codes of the two digits of each byte.
static BYTES: [Code; 256] = {
    let mut codes = [Code { bits: 0, length: 0 }; 256];
    let mut byte = 0;
    while byte < 256 {
        let ((high, high_length), (low, low_length)) = (DIGITS[byte >> 4], DIGITS[byte & 15]);
        codes[byte] = Code { bits: high << low_length | low, length: high_length + low_length };
        byte += 1;
    }
    codes
};

/// Writes bits to `out`.
struct Bits<'o> {
    out: &'o mut Vec<u8>,
    pending: u32,
    /// Number of pending bits, fewer than 8 between calls.
    count: u32,
}

impl Bits<'_> {
    /// Writes a part, and returns its length in characters.
    fn part(&mut self, part: Part<'_>) -> usize {
        match part {
            Part::Hex(bytes) => {
                bytes.iter().for_each(|byte| self.code(BYTES[usize::from(*byte)]));
                bytes.len() * 2
            }
            Part::Code(code) => {
                self.code(code);
                1
            }
        }
    }

    fn code(&mut self, Code { bits, length }: Code) {
        self.pending = self.pending << length | u32::from(bits);
        self.count += length;
        while self.count >= 8 {
            self.count -= 8;
            self.out.push((self.pending >> self.count) as u8);
        }
    }

    /// Fills the last byte with ones.
    fn end(self) {
        if self.count > 0 {
            let missing = 8 - self.count;
            self.out.push((self.pending << missing) as u8 | ((1_u16 << missing) - 1) as u8);
        }
    }
}
