//! `/metrics`, for Prometheus. A hundred thousand rules make a text of tens of megabytes, which takes a while. It is
//! rendered on a thread that answers nothing else, one text at a time. Clients that ask within a second of it share the
//! text.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;

/// Time for which a large text is shared and kept.
const SHARED: Duration = Duration::from_secs(1);
/// Size in bytes from which a text is shared. A smaller text takes a few milliseconds, so each client gets a current
/// one, uncompressed.
const LARGE: usize = 256 * 1024;

/// The function that renders the text, and the last large text.
struct Scrapes {
    render: Arc<Render>,
    /// The task that renders the next text holds the lock until it is done, even if no client waits for it any more.
    last: Arc<Mutex<Option<Scrape>>>,
}

type Render = dyn Fn() -> Result<Vec<u8>, String> + Send + Sync;

/// A large text.
struct Scrape {
    plain: Bytes,
    /// Compressed text, if a client has asked for it.
    gzip: Option<Bytes>,
    made: Instant,
}

/// An answer.
enum Text {
    Plain(Bytes),
    Gzip(Bytes),
}

pub(super) fn router(metrics: Arc<Metrics>) -> Router {
    route("/metrics", move || metrics.render())
}

/// Returns the paths of the statistics port, which also shows the metrics of `envoyproxy/ratelimit`, at this path.
pub fn statistics_router(path: &str, metrics: Arc<Metrics>) -> Router {
    route(path, move || metrics.render_with_statistics())
}

fn route<E: ToString>(path: &str, render: impl Fn() -> Result<Vec<u8>, E> + Send + Sync + 'static) -> Router {
    let scrapes = Arc::new(Scrapes::new(move || render().map_err(|error| error.to_string())));
    let scrape = async move |headers: HeaderMap| answer(scrapes.text(takes_gzip(&headers)).await);
    Router::new().route(path, any(scrape))
}

/// Returns whether the client accepts gzip. Any weight but zero counts: a client names gzip for a reason.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().trim_start_matches("q=");
        name.trim().eq_ignore_ascii_case("gzip") && weight.parse() != Ok(0.0)
    })
}

fn answer(text: Result<Text, String>) -> Response {
    let kind = (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    match text {
        Ok(Text::Plain(text)) => ([kind], text).into_response(),
        Ok(Text::Gzip(text)) => ([kind, (header::CONTENT_ENCODING, "gzip")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

impl Scrapes {
    fn new(render: impl Fn() -> Result<Vec<u8>, String> + Send + Sync + 'static) -> Scrapes {
        Scrapes { render: Arc::new(render), last: Arc::default() }
    }

    async fn text(&self, takes_gzip: bool) -> Result<Text, String> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(text) = last.as_ref().and_then(|scrape| scrape.text(takes_gzip)) {
            return Ok(text);
        }
        let (render, kept) = (Arc::clone(&self.render), Arc::clone(&self.last));
        let made = spawn_blocking(move || {
            let scrape = match last.take().filter(Scrape::is_new) {
                Some(scrape) => scrape,
                None => {
                    let plain = Bytes::from(render()?);
                    if plain.len() < LARGE {
                        return Ok(Text::Plain(plain));
                    }
                    Handle::current().spawn(forget(kept));
                    Scrape { plain, gzip: None, made: Instant::now() }
                }
            };
            last.insert(scrape).make(takes_gzip).map_err(|error| error.to_string())
        });
        made.await.map_err(|error| error.to_string())?
    }
}

impl Scrape {
    fn is_new(&self) -> bool {
        self.made.elapsed() < SHARED
    }

    /// Returns the text if it is rendered and still shared.
    fn text(&self, takes_gzip: bool) -> Option<Text> {
        let text = if takes_gzip { self.gzip.clone().map(Text::Gzip) } else { Some(Text::Plain(self.plain.clone())) };
        text.filter(|_| self.is_new())
    }

    fn make(&mut self, takes_gzip: bool) -> io::Result<Text> {
        if !takes_gzip {
            return Ok(Text::Plain(self.plain.clone()));
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&self.plain)?;
        let gzip = Bytes::from(encoder.finish()?);
        self.gzip = Some(gzip.clone());
        Ok(Text::Gzip(gzip))
    }
}

/// Drops a text that is no longer shared.
async fn forget(last: Arc<Mutex<Option<Scrape>>>) {
    sleep(SHARED).await;
    last.lock().await.take_if(|scrape| !scrape.is_new());
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flate2::read::GzDecoder;
    use futures_util::future::join_all;
    use tokio::time::{advance, timeout};

    use super::*;

    /// Returns scrapes whose text has this many bytes, and the number of renderings.
    fn scrapes(bytes: usize) -> (Scrapes, Arc<AtomicUsize>) {
        let (made, making) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let render = move || {
            assert_eq!(making.fetch_add(1, Ordering::SeqCst), 0, "one makes it at a time");
            std::thread::sleep(Duration::from_millis(20));
            making.fetch_sub(1, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
            Ok(vec![b'x'; bytes])
        };
        (Scrapes::new(render), made)
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_text_is_made_once_for_all_clients_within_a_second() {
        let (scrapes, made) = scrapes(LARGE);
        // Some clients leave before they have it.
        for _ in 0..3 {
            assert!(timeout(Duration::ZERO, scrapes.text(false)).await.is_err());
        }
        let texts = join_all((0..8).map(|_| scrapes.text(false))).await;
        assert!(texts.into_iter().all(|text| plain(text).len() == LARGE));
        let zipped = scrapes.text(true).await;
        assert_eq!(made.load(Ordering::SeqCst), 1);
        let Ok(Text::Gzip(zipped)) = zipped else { panic!("compressed") };
        let mut unzipped = Vec::new();
        GzDecoder::new(&*zipped).read_to_end(&mut unzipped).unwrap();
        assert_eq!(unzipped, vec![b'x'; LARGE]);
        advance(SHARED).await;
        scrapes.text(false).await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), 2);
        sleep(SHARED).await;
        wait_for_nobody(&scrapes).await;
    }

    /// Waits until no text is kept.
    async fn wait_for_nobody(scrapes: &Scrapes) {
        while scrapes.last.lock().await.is_some() {
            tokio::task::yield_now().await;
        }
    }

    fn plain(text: Result<Text, String>) -> Bytes {
        match text.unwrap() {
            Text::Plain(text) => text,
            Text::Gzip(_) => panic!("it is compressed"),
        }
    }

    #[test]
    fn it_is_compressed_for_a_client_that_says_so() {
        for (said, takes) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("br, gzip ; q=1", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, br", false),
            ("identity", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, said.parse().unwrap())]);
            assert_eq!(takes_gzip(&headers), takes, "{said}");
        }
    }

    #[tokio::test]
    async fn a_small_text_is_of_the_moment_and_made_by_one_at_a_time() {
        let (scrapes, made) = scrapes(LARGE - 1);
        let texts = join_all((0..8).map(|_| scrapes.text(false))).await;
        assert!(texts.into_iter().all(|text| plain(text).len() == LARGE - 1));
        assert_eq!(made.load(Ordering::SeqCst), 8);
    }

    #[tokio::test]
    async fn a_failure_is_reported_and_not_kept() {
        let fails = AtomicUsize::new(2);
        let scrapes = Scrapes::new(move || match fails.fetch_sub(1, Ordering::SeqCst) {
            2 => panic!("a panic, for the test"),
            1 => Err("a failure, for the test".into()),
            _ => Ok(vec![b'x'; LARGE]),
        });
        assert!(scrapes.text(false).await.err().unwrap().contains("panic"));
        assert_eq!(scrapes.text(false).await.err().unwrap(), "a failure, for the test");
        assert_eq!(plain(scrapes.text(false).await).len(), LARGE);
    }
}
