//! `/metrics`, for Prometheus. A hundred thousand rules make a text of tens of megabytes, which takes a while: it is made on a thread that
//! answers nothing else, by one at a time, and whoever asks within a second of it gets the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::metrics::Metrics;

/// For so long a large text is shared.
const SHARED: Duration = Duration::from_secs(1);
/// A text below so many bytes is made in some milliseconds: everybody gets one of their own, which is of this moment.
const LARGE: usize = 256 * 1024;

/// The metrics, and their last text.
struct Scrapes {
    metrics: Arc<Metrics>,
    /// Whoever makes the next has the lock, until it is made: also if nobody waits for it any more.
    last: Arc<Mutex<Option<Scrape>>>,
}

struct Scrape {
    text: Bytes,
    made: Instant,
}

pub(super) fn router(metrics: Arc<Metrics>) -> Router {
    let scrapes = Scrapes { metrics, last: Arc::default() };
    Router::new().route("/metrics", any(scrape)).with_state(Arc::new(scrapes))
}

async fn scrape(State(scrapes): State<Arc<Scrapes>>) -> Response {
    match scrapes.text().await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

impl Scrapes {
    async fn text(&self) -> Result<Bytes, String> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(scrape) = last.as_ref().filter(|scrape| scrape.made.elapsed() < SHARED) {
            return Ok(scrape.text.clone());
        }
        let metrics = Arc::clone(&self.metrics);
        let made = spawn_blocking(move || {
            *last = None;
            let text = Bytes::from(metrics.render()?);
            *last = (text.len() >= LARGE).then(|| Scrape { text: text.clone(), made: Instant::now() });
            Ok(text)
        });
        made.await.map_err(|error| error.to_string())?.map_err(|error: prometheus::Error| error.to_string())
    }
}
