//! A connection from its preface to its end.

use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::http::HeaderMap;
use tonic::service::Routes;

use super::connection::Bounds;
use super::drive::{Driver, Ended};
use crate::grpc::activity::Activity;
use crate::grpc::bounds::{FAREWELL, half_received, spread};
use crate::grpc::options::ConnectionOptions;
use crate::grpc::{CallerHeaders, Incoming, Service};
use crate::store::Store;
use crate::wire::RateLimitRequest;

/// Serves a connection whose preface has been read, until it ends. An old connection accepts no new calls, and ends
/// when its calls are answered. When `stop` completes, or the client leaves an answer unread for too long, only the
/// requests being decided are awaited.
pub(in crate::grpc) async fn serve<S: Store>(
    connection: impl AsyncRead + AsyncWrite + Incoming + Unpin,
    (service, others, options): (Arc<Service<S>>, Routes, &ConnectionOptions),
    activity: Arc<Activity>,
    stop: impl Future<Output = ()>,
) {
    let bounds = Bounds { streams: options.max_concurrent_streams, keeps_trace: service.wants_traces() };
    let metrics = Arc::clone(&service.metrics);
    let answer = move |request: RateLimitRequest, headers: CallerHeaders| {
        let none = HeaderMap::new();
        let CallerHeaders { timeout, details, headers } = headers;
        let caller = service.caller_of(timeout, details, headers.as_deref().unwrap_or(&none));
        let service = Arc::clone(&service);
        async move { service.call(request, caller).await }
    };
    let bytes = (options.max_message_bytes, half_received(options));
    let mut driver = Driver::new(connection, (answer, others), bounds, bytes, (activity, metrics));
    let mut stop = pin!(stop.fuse());
    let mut is_unread = false;
    tokio::select! {
        biased;
        ended = driver.run() => match ended {
            Ended::Closed => return,
            Ended::Unread => is_unread = true,
        },
        () = tokio::time::sleep(spread(options.max_age, fastrand::f64())) => {}
        () = &mut stop => {}
    }
    driver.leave();
    let _ = tokio::time::timeout(options.max_age_grace, async {
        if !is_unread && !stop.is_terminated() {
            tokio::select! {
                biased;
                ended = driver.run() => if ended == Ended::Closed { return },
                () = stop => {}
            }
        }
        driver.drain();
        loop {
            match tokio::time::timeout(FAREWELL, driver.run()).await {
                Ok(Ended::Closed) => return,
                Ok(Ended::Unread) | Err(_) if driver.is_deciding() => {}
                Ok(Ended::Unread) | Err(_) => return,
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::Caller;
    use crate::store::denied::DeniedCache;
    use crate::store::lease::Leases;
    use crate::store::memory::MemoryStore;
    use crate::store::redis::RedisStore;
    use crate::store::timed::Timed;

    fn size<S: Store>() -> usize {
        fn of<A, F: Future>(_: impl Fn(A) -> F) -> usize {
            size_of::<F>()
        }
        of(|(service, request, caller): (&'static Service<S>, RateLimitRequest, Caller)| service.call(request, caller))
    }

    /// It is copied several times until it is in its place, and all that wait share the processor's caches.
    #[test]
    fn the_future_of_a_call_is_small() {
        let (memory, redis) = (size::<Timed<MemoryStore>>(), size::<Leases<DeniedCache<Timed<RedisStore>>>>());
        assert!(memory <= 1_280 && redis <= 1_792, "{memory} bytes with the memory store, {redis} with Redis");
    }
}
