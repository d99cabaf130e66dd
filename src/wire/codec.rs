//! Encodes and decodes messages with prost, in buffers sized for these messages.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{self, BufferSettings};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Initial size of a buffer. A request or an answer has a few hundred bytes, and a buffer grows for larger ones.
/// tonic's default is 8 KiB for each of the two, a size that allocators do not serve from their fast lists.
const BUFFER_BYTES: usize = 512;
/// A stream of messages is sent after this many bytes; a single message is always sent.
const SEND_AFTER_BYTES: usize = 32 * 1024;

/// Sends `T` and receives `U`.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Codec(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, SEND_AFTER_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER_BYTES, SEND_AFTER_BYTES))
    }
}
