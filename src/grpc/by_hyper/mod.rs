//! HTTP/2 by hyper, which `GRPC_TRANSPORT=hyper` goes back to. hyper passes calls to the rate limit service directly;
//! tonic's server would add a router and half a dozen layers.

mod calls;
mod executor;
mod message;
mod serve;
mod session;
mod unsent;

pub(super) use serve::serve;
