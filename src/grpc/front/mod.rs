//! An HTTP/2 server for calls of sixty bytes. A general server pays, for every call, for streams of any length, any
//! header and any body; nearly every call here is one small message in and one out.
//!
//! [`connection`] is HTTP/2 without input and output. [`calls`] has the calls answered: those for the rate limit
//! service at once, as their frames are read, and all others by tonic's services ([`forward`]). [`drive`] moves the
//! bytes.

mod alarm;
mod arrival;
mod calls;
mod connection;
#[cfg(test)]
mod connection_tests;
mod drive;
#[cfg(test)]
mod drive_tests;
mod forward;
mod frame;
mod general;
mod hash;
mod head;
mod hpack;
mod send;
mod serve;
mod short;
mod stream;
mod tasks;

pub(super) use serve::serve;
