//! Hashes the numbers of streams. A client chooses them, but has at most `MAX_CONCURRENT_STREAMS` at once: however it
//! chooses, a search is short.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds hashers of streams.
pub(super) type StreamHash = BuildHasherDefault<StreamHasher>;

/// A hasher of one number: Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamHasher(u64);

/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for StreamHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(FACTOR);
    }
}
