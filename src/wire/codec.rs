//! Messages to bytes and back, by prost, in buffers of the size that these messages have.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{self, BufferSettings};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// A request or an answer has some hundred bytes, and a buffer grows for one that has more. tonic sets 8 KiB aside for
/// each of both, for which an allocator has no quick list.
const BUFFER_BYTES: usize = 512;
/// After so many bytes a stream of messages is sent on; a single message always is.
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
