//! `/metrics`, for Prometheus. A hundred thousand rules make a text of tens of megabytes, which takes a while: it is made on a thread that
//! answers nothing else, by one at a time, and whoever asks within a second of it gets the same.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// For so long a large text is shared.
const SHARED: Duration = Duration::from_secs(1);
/// A text below so many bytes is made in some milliseconds: everybody gets one of their own, which is of this moment.
const LARGE: usize = 256 * 1024;

/// What makes the text, and the last that it has made.
struct Scrapes<R> {
    render: Arc<R>,
    /// Whoever makes the next has the lock, until it is made: also if nobody waits for it any more.
    last: Arc<Mutex<Option<Scrape>>>,
}

struct Scrape {
    text: Bytes,
    made: Instant,
}

pub(super) fn router(metrics: Arc<Metrics>) -> Router {
    let scrapes = Arc::new(Scrapes::new(move || metrics.render().map_err(|error| error.to_string())));
    Router::new().route("/metrics", any(async move || answer(scrapes.text().await)))
}

fn answer(text: Result<Bytes, String>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

impl<R: Fn() -> Result<Vec<u8>, String> + Send + Sync + 'static> Scrapes<R> {
    fn new(render: R) -> Scrapes<R> {
        Scrapes { render: Arc::new(render), last: Arc::default() }
    }

    async fn text(&self) -> Result<Bytes, String> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(scrape) = last.as_ref().filter(|scrape| scrape.made.elapsed() < SHARED) {
            return Ok(scrape.text.clone());
        }
        let render = Arc::clone(&self.render);
        let made = spawn_blocking(move || {
            *last = None;
            let text = Bytes::from(render()?);
            *last = (text.len() >= LARGE).then(|| Scrape { text: text.clone(), made: Instant::now() });
            Ok(text)
        });
        made.await.map_err(|error| error.to_string())?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::{advance, timeout};

    use super::*;

    /// Makes texts of so many bytes, and counts how often.
    fn scrapes(bytes: usize) -> (Scrapes<impl Fn() -> Result<Vec<u8>, String>>, Arc<AtomicUsize>) {
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
    async fn a_large_text_is_made_once_for_all_who_ask_within_a_second() {
        let (scrapes, made) = scrapes(LARGE);
        // Some go away before they have it.
        for _ in 0..3 {
            assert!(timeout(Duration::ZERO, scrapes.text()).await.is_err());
        }
        let texts = join_all((0..8).map(|_| scrapes.text())).await;
        assert!(texts.iter().all(|text| text.as_ref().unwrap().len() == LARGE));
        assert_eq!(made.load(Ordering::SeqCst), 1);
        advance(SHARED).await;
        scrapes.text().await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_small_text_is_of_the_moment_and_made_by_one_at_a_time() {
        let (scrapes, made) = scrapes(LARGE - 1);
        let texts = join_all((0..8).map(|_| scrapes.text())).await;
        assert!(texts.iter().all(Result::is_ok));
        assert_eq!(made.load(Ordering::SeqCst), 8);
    }

    #[tokio::test]
    async fn a_failure_is_told_and_not_kept() {
        let fails = AtomicUsize::new(2);
        let scrapes = Scrapes::new(move || match fails.fetch_sub(1, Ordering::SeqCst) {
            2 => panic!("a panic, for the test"),
            1 => Err("a failure, for the test".into()),
            _ => Ok(vec![b'x'; LARGE]),
        });
        assert!(scrapes.text().await.unwrap_err().contains("panic"));
        assert_eq!(scrapes.text().await.unwrap_err(), "a failure, for the test");
        assert_eq!(scrapes.text().await.unwrap().len(), LARGE);
    }
}
