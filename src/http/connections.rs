//! The connections of the HTTP port. Their number and their age are limited. A client is disconnected if it sends only
//! half a request, sends none, or does not read the answer. This leaves room for others.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::gate::Peer;
use crate::telemetry::Throttle;

/// Time within which the head of a request must arrive, from the start of the connection or the previous request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest head in bytes.
const HEADER_BYTES: usize = 16 * 1024;
/// Age at which a connection takes no more requests. It is closed after [`GRACE`].
const MAX_AGE: Duration = Duration::from_secs(60);
/// Time to finish the answer in progress: 30 MB of metrics over a slow line.
const GRACE: Duration = Duration::from_secs(30);
/// [`GRACE`] when the port closes.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Pause before the next accept when the system has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until `stop`, then finishes the requests in progress within two seconds. If all permits are taken,
/// a new connection closes the oldest one: clients that leave after their answer are served, however many others stay.
pub async fn serve(listener: TcpListener, router: Router, permits: Arc<Semaphore>, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let mut connections = Connections::default();
    let reports = <Throttle>::default();
    let mut stop = pin!(stop);
    loop {
        let taken = tokio::select! {
            taken = connections.take(&listener, &permits) => taken,
            () = &mut stop => break,
        };
        match taken {
            Ok((stream, peer, permit)) => {
                let (router, stopped) = (router.clone(), stopped.clone());
                connections.spawn(async move {
                    answer((stream, peer), router, stopped).await;
                    drop(permit);
                });
            }
            Err(error) => {
                reports.log((), || move |times| tracing::error!(%error, times, "cannot accept an HTTP connection"));
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while connections.tasks.join_next().await.is_some() {}
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// Oldest first.
    by_age: VecDeque<AbortHandle>,
}

impl Connections {
    fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.by_age.push_back(self.tasks.spawn(connection));
    }

    /// Accepts the next connection and takes a permit for it.
    async fn take(
        &mut self,
        listener: &TcpListener,
        permits: &Arc<Semaphore>,
    ) -> io::Result<(TcpStream, SocketAddr, Option<OwnedSemaphorePermit>)> {
        let (stream, peer) = listener.accept().await?;
        while self.tasks.try_join_next().is_some() {}
        self.by_age.retain(|connection| !connection.is_finished());
        if permits.available_permits() == 0
            && let Some(oldest) = self.by_age.pop_front()
        {
            oldest.abort();
        }
        // An error means that the semaphore is closed; then it limits nothing.
        Ok((stream, peer, Arc::clone(permits).acquire_owned().await.ok()))
    }
}

async fn answer((stream, peer): (TcpStream, SocketAddr), router: Router, mut stopped: watch::Receiver<bool>) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEADER_BYTES);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let grace = tokio::select! {
        // Errors concern only the client, which sees them.
        _ = connection.as_mut() => return,
        () = sleep(MAX_AGE) => GRACE,
        _ = stopped.wait_for(|stopped| *stopped) => STOP_GRACE,
    };
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = timeout(grace, connection.as_mut()) => {}
        // The port may also close during the grace of an old connection.
        () = async { let _ = stopped.wait_for(|stopped| *stopped).await; sleep(STOP_GRACE).await } => {}
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::any;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    /// Number of bytes that exceeds all socket buffers.
    const LARGE: usize = 64 * 1024 * 1024;

    struct Scene {
        address: SocketAddr,
        permits: Arc<Semaphore>,
        stop: oneshot::Sender<()>,
        served: JoinHandle<()>,
    }

    impl Scene {
        async fn new(permits: usize) -> Scene {
            let router = Router::new().route("/", any(async || "OK")).route("/large", any(async || vec![b'x'; LARGE]));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stop, stopped) = oneshot::channel();
            let stopped = async { drop(stopped.await) };
            let permits = Arc::new(Semaphore::new(permits));
            let served = tokio::spawn(serve(listener, router, Arc::clone(&permits), stopped));
            Scene { address, permits, stop, served }
        }

        async fn client(&self, words: &[u8]) -> TcpStream {
            let mut client = TcpStream::connect(self.address).await.unwrap();
            client.write_all(words).await.unwrap();
            client
        }
    }

    /// Reads to the end of the connection.
    async fn heard(mut client: TcpStream) -> Vec<u8> {
        let mut heard = Vec::new();
        // A connection that is reset counts as closed.
        let _ = client.read_to_end(&mut heard).await;
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn half_requests_are_closed() {
        let scene = Scene::new(128).await;
        let mut halves = Vec::new();
        for number in 0..100 {
            halves.push(scene.client(&REQUEST[..number % REQUEST.len()]).await);
        }
        let start = Instant::now();
        for half in halves {
            heard(half).await;
        }
        assert!(start.elapsed() < 2 * HEADER_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_fills_the_port_keeps_nobody_out() {
        let scene = Scene::new(16).await;
        let mut others = Vec::new();
        for number in 0..100 {
            others.push(scene.client(if number % 2 == 0 { b"GET" } else { REQUEST }).await);
            if number % 10 == 0 {
                let start = Instant::now();
                let good = scene.client(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
                assert!(heard(good).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
                assert!(start.elapsed() < HEADER_TIMEOUT / 2, "{:?}", start.elapsed());
            }
        }
        drop(others);
        for _ in 0..100 {
            assert!(heard(scene.client(REQUEST).await).await.starts_with(b"HTTP/1.1 200 OK\r\n"), "none is lost");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_and_then_is_silent_is_closed_and_one_that_asks_on_for_long_too() {
        let scene = Scene::new(32).await;
        let idle = scene.client(REQUEST).await;
        let start = Instant::now();
        assert!(heard(idle).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(start.elapsed() < 2 * HEADER_TIMEOUT, "{:?}", start.elapsed());

        let mut eager = scene.client(b"").await;
        let (start, mut answers) = (Instant::now(), 0);
        while eager.write_all(REQUEST).await.is_ok() && eager.read(&mut [0; 1_024]).await.unwrap_or(0) > 0 {
            answers += 1;
            sleep(HEADER_TIMEOUT / 2).await;
        }
        assert!(answers > 5, "{answers}");
        assert!(start.elapsed() <= MAX_AGE + HEADER_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_the_answer_is_closed() {
        let scene = Scene::new(1).await;
        let stalled = scene.client(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let start = Instant::now();
        while scene.permits.available_permits() == 1 {
            sleep(Duration::from_millis(1)).await;
        }
        while scene.permits.available_permits() == 0 {
            sleep(Duration::from_secs(1)).await;
        }
        assert!(start.elapsed() <= MAX_AGE + GRACE + HEADER_TIMEOUT, "{:?}", start.elapsed());
        assert!(heard(stalled).await.len() < LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_holds_up_the_end() {
        let scene = Scene::new(32).await;
        let clients = [
            scene.client(b"").await,
            scene.client(b"GET").await,
            scene.client(REQUEST).await,
            scene.client(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await,
        ];
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        scene.stop.send(()).unwrap();
        scene.served.await.unwrap();
        assert!(start.elapsed() <= 2 * STOP_GRACE, "{:?}", start.elapsed());
        assert!(TcpStream::connect(scene.address).await.is_err(), "the port is closed");
        drop(clients);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_without_end_is_refused() {
        let scene = Scene::new(32).await;
        let mut client = scene.client(b"GET / HTTP/1.1\r\n").await;
        let start = Instant::now();
        let line = format!("x: {}\r\n", "y".repeat(1_000));
        while start.elapsed() < HEADER_TIMEOUT / 2 && client.write_all(line.as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(start.elapsed() < HEADER_TIMEOUT / 2, "it is refused, and not by the timeout");
    }
}
