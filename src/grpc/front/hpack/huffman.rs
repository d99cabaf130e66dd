//! Huffman-coded strings of HPACK (RFC 7541, section 5.2 and appendix B).
//!
//! The decoder looks up 12 bits at a time. The codes of digits, lower-case letters and `-` have 5 to 7 bits, so one
//! lookup usually yields two symbols. A binary search finds the codes of more than 12 bits, which are rare in headers.

use super::HpackError;

/// Length in bits of the code of each symbol: the bytes, and 256 for the end of the string, which no string may
/// contain. The code is canonical: these lengths determine it.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
/// Code of each symbol, in the lowest bits.
const CODES: [u32; LENGTHS.len()] = codes();

/// Number of bits that one step looks up.
const STEP_BITS: u8 = 12;
/// The step for each value of the next bits, by their complement.
static STEPS: [Step; 1 << STEP_BITS] = steps();

/// The codes of more than [`STEP_BITS`] bits, in ascending order.
static LONG_CODES: [LongCode; long_count()] = long_codes();

/// The symbols that the next bits begin with.
#[derive(Clone, Copy)]
struct Step {
    symbols: [u8; 2],
    /// Number of symbols; 0 if the first code has more than [`STEP_BITS`] bits.
    count: u8,
    /// Number of bits of the symbols' codes.
    bits: u8,
}

#[derive(Clone, Copy)]
struct LongCode {
    /// The code, in the highest bits.
    code: u32,
    symbol: u16,
    bits: u8,
}

/// Decodes a string into the buffer, whose previous content is lost, and returns it. The buffer grows to at most 8/5 of
/// the string's length plus 2 bytes.
pub(super) fn decode<'b>(text: &[u8], buffer: &'b mut Vec<u8>) -> Result<&'b [u8], HpackError> {
    let longest = text.len() * 8 / 5 + 2; // the shortest code has 5 bits, and each step writes two symbols
    if buffer.len() < longest {
        buffer.reserve_exact(longest - buffer.len());
        buffer.resize(longest, 0);
    }
    let mut output = Output { symbols: buffer, length: 0 };
    let mut bits = Bits { rest: text, window: 0, filled: 0 };
    // Four steps consume at most 48 bits.
    'filling: while bits.left() >= 56 {
        bits.fill();
        if !output.step(&mut bits) {
            output.long_code(&mut bits)?;
            continue;
        }
        for _ in 0..3 {
            if !output.step(&mut bits) {
                continue 'filling;
            }
        }
    }
    bits.fill();
    while bits.window != 0 {
        if !output.step(&mut bits) {
            output.long_code(&mut bits)?;
        }
    }
    let length = output.length;
    match bits.filled {
        0..8 => buffer.get(..length).ok_or(HpackError::Padding),
        30.. => Err(HpackError::EndOfString),
        _ => Err(HpackError::Padding),
    }
}

/// The bits of a string.
struct Bits<'a> {
    /// The octets that are not in the window.
    rest: &'a [u8],
    /// The complements of the next bits, from the highest on. Ones follow the string's end, as its padding does, so the
    /// window is 0 once only padding is left.
    window: u64,
    /// Number of the string's bits in the window; negative once a code has consumed bits beyond the string's end.
    filled: i32,
}

impl Bits<'_> {
    /// Number of bits that no step has consumed.
    #[inline(always)]
    fn left(&self) -> i64 {
        self.rest.len() as i64 * 8 + i64::from(self.filled)
    }

    /// Fills the window with at least 56 bits, or with all that are left.
    #[inline(always)]
    fn fill(&mut self) {
        if let Some(eight) = self.rest.first_chunk() {
            // The bits of the octet that fits only in part are read again by the next filling.
            self.window |= !u64::from_be_bytes(*eight) >> self.filled;
            let added = (63 - self.filled) / 8;
            self.rest = self.rest.get(added as usize..).unwrap_or_default();
            self.filled += added * 8;
            return;
        }
        while self.filled <= 56
            && let Some((next, rest)) = self.rest.split_first()
        {
            self.window |= u64::from(!next) << (56 - self.filled);
            self.rest = rest;
            self.filled += 8;
        }
    }

    #[inline(always)]
    fn consume(&mut self, bits: u8) {
        self.window <<= bits;
        self.filled -= i32::from(bits);
    }
}

struct Output<'b> {
    symbols: &'b mut [u8],
    length: usize,
}

impl Output<'_> {
    /// Decodes one or two symbols. Returns whether the next code was short enough for that.
    #[inline(always)]
    fn step(&mut self, bits: &mut Bits<'_>) -> bool {
        let step = STEPS[(bits.window >> (64 - STEP_BITS)) as usize];
        let room = self.symbols.get_mut(self.length..).and_then(<[u8]>::first_chunk_mut);
        let Some(room) = room.filter(|_| step.count > 0) else { return false };
        *room = step.symbols;
        self.length += usize::from(step.count);
        bits.consume(step.bits);
        true
    }

    /// Decodes the symbol of a code that is longer than a step.
    fn long_code(&mut self, bits: &mut Bits<'_>) -> Result<(), HpackError> {
        let window = (!bits.window >> 32) as u32;
        let above = LONG_CODES.partition_point(|long| long.code <= window);
        let long = above.checked_sub(1).and_then(|at| LONG_CODES.get(at)).ok_or(HpackError::Padding)?;
        let symbol = u8::try_from(long.symbol).map_err(|_| HpackError::EndOfString)?;
        *self.symbols.get_mut(self.length).ok_or(HpackError::Padding)? = symbol;
        self.length += 1;
        bits.consume(long.bits);
        Ok(())
    }
}

/// Derives the code from its lengths: within a length, codes ascend with the symbols.
const fn codes() -> [u32; LENGTHS.len()] {
    let mut codes = [0; LENGTHS.len()];
    let (mut code, mut length) = (0, 1);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}

const fn steps() -> [Step; 1 << STEP_BITS] {
    let mut steps = [Step { symbols: [0; 2], count: 0, bits: 0 }; 1 << STEP_BITS];
    let mut first = 0;
    while first < 256 {
        if LENGTHS[first] <= STEP_BITS {
            let free = STEP_BITS - LENGTHS[first];
            let start = (CODES[first] as usize) << free;
            fill(&mut steps, start, free, Step { symbols: [first as u8, 0], count: 1, bits: LENGTHS[first] });
            let mut second = 0;
            while second < 256 {
                if LENGTHS[second] <= free {
                    let free = free - LENGTHS[second];
                    let start = start | (CODES[second] as usize) << free;
                    let symbols = [first as u8, second as u8];
                    fill(&mut steps, start, free, Step { symbols, count: 2, bits: STEP_BITS - free });
                }
                second += 1;
            }
        }
        first += 1;
    }
    steps
}

/// Sets the steps of `start` and of all values that differ from it in the `free` lowest bits alone.
const fn fill(steps: &mut [Step; 1 << STEP_BITS], start: usize, free: u8, step: Step) {
    let mut at = start;
    while at < start + (1 << free) {
        steps[!at & (steps.len() - 1)] = step;
        at += 1;
    }
}

const fn long_count() -> usize {
    let (mut count, mut symbol) = (0, 0);
    while symbol < LENGTHS.len() {
        count += (LENGTHS[symbol] > STEP_BITS) as usize;
        symbol += 1;
    }
    count
}

const fn long_codes() -> [LongCode; long_count()] {
    let mut long = [LongCode { code: 0, symbol: 0, bits: 0 }; long_count()];
    let (mut at, mut length) = (0, STEP_BITS + 1);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] == length {
                long[at] = LongCode { code: CODES[symbol] << (32 - length), symbol: symbol as u16, bits: length };
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    long
}

/// Encodes a string.
#[cfg(test)]
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let (mut coded, mut window, mut filled) = (Vec::new(), 0_u64, 0);
    for symbol in text {
        let length = u32::from(LENGTHS[usize::from(*symbol)]);
        window = window << length | u64::from(CODES[usize::from(*symbol)]);
        filled += length;
        while filled >= 8 {
            filled -= 8;
            coded.push((window >> filled) as u8);
        }
    }
    if filled > 0 {
        coded.push((window << (8 - filled)) as u8 | 0xff >> filled);
    }
    coded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(text: &[u8]) -> Result<Vec<u8>, HpackError> {
        decode(text, &mut Vec::new()).map(<[u8]>::to_vec)
    }

    #[test]
    fn the_codes_are_those_of_the_appendix() {
        for (symbol, code, length) in [
            (0, 0x1ff8, 13),
            (10, 0x3fff_fffc, 30),
            (22, 0x3fff_fffe, 30),
            (usize::from(b' '), 0x14, 6),
            (usize::from(b'0'), 0x0, 5),
            (usize::from(b'\\'), 0x7fff0, 19),
            (usize::from(b'a'), 0x3, 5),
            (usize::from(b'z'), 0x7b, 7),
            (128, 0xf_ffe6, 20),
            (192, 0x3ff_ffe0, 26),
            (249, 0xfff_fffe, 28),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!((CODES[symbol], LENGTHS[symbol]), (code, length), "{symbol}");
        }
        let space: u64 = LENGTHS.iter().map(|length| 1 << (30 - length)).sum();
        assert_eq!(space, 1 << 30, "the code is complete: any bits begin with a code");
    }

    #[test]
    fn padding_has_at_most_seven_bits_which_are_ones() {
        assert_eq!(decoded(&[]), Ok(vec![]));
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        assert_eq!(decoded(&[0b1111_1000, 0xff]), Err(HpackError::Padding), "eight ones after `&`");
        assert_eq!(decoded(&[0b1111_1000]), Ok(b"&".to_vec()));
        assert_eq!(decoded(&[0b1111_0111, 0b1111_1111]), Err(HpackError::Padding), "a part of a long code");
        for wrong in [0b0000_0000, 0b0000_0011, 0b0000_0101, 0b0000_0110] {
            assert_eq!(decoded(&[wrong]), Err(HpackError::Padding), "{wrong:08b}");
        }
        for length in 1..4 {
            assert_eq!(decoded(&vec![0xff; length]), Err(HpackError::Padding));
        }
    }

    #[test]
    fn the_end_of_string_symbol_is_an_error() {
        for length in [4, 5, 8, 9, 64] {
            assert_eq!(decoded(&vec![0xff; length]), Err(HpackError::EndOfString));
            assert_eq!(decoded(&[&[0b0000_0111][..], &vec![0xff; length]].concat()), Err(HpackError::EndOfString));
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            text in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80),
                "[ -~]{0,80}".prop_map(String::into_bytes),
                "[0-9a-f-]{0,80}".prop_map(String::into_bytes),
            ],
        ) {
            prop_assert_eq!(decoded(&encode(&text)), Ok(text));
        }

        /// The code is complete and prefix-free, so each string has one encoding.
        #[test]
        fn what_is_decoded_is_encoded_as_it_was(coded in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(text) = decoded(&coded) {
                prop_assert_eq!(encode(&text), coded);
            }
        }
    }
}
