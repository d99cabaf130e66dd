//! Loads small files again when they change: certificates, the tokens of administrators.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Debounce, INTERVAL, Stamp, blocking};

/// Interval of retries after rejected files, even if no file has changed: a certificate may become valid, or a disk may
/// come back.
const RETRY: Duration = Duration::from_secs(30);

/// Files, with their state at some moment.
#[derive(Clone, Debug)]
pub struct Watched {
    paths: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
}

impl Watched {
    /// Records the present state of the files. Call this before first reading them, to miss no change in between.
    pub fn new(paths: Vec<PathBuf>) -> Watched {
        let seen = stamps(&paths);
        Watched { paths, seen }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| Stamp::of(path)).collect()
}

/// Loads whenever the files change, and calls `on_change` with the result. An error is reported once, until something
/// changes. Never returns.
pub async fn watch<T, E, L>(watched: Watched, load: L, mut on_change: impl FnMut(Result<T, E>))
where
    T: Send + 'static,
    E: Send + 'static,
    L: Fn() -> Result<T, E> + Clone + Send + 'static,
{
    let Watched { paths, seen } = watched;
    let mut debounce = Debounce::after(seen);
    let mut refused: Option<Instant> = None;
    loop {
        sleep(INTERVAL).await;
        let paths = paths.clone();
        let is_new = debounce.settled(blocking(move || stamps(&paths)).await);
        let is_again = refused.is_some_and(|at| at.elapsed() >= RETRY);
        if is_new || is_again {
            let loaded = blocking(load.clone()).await;
            refused = loaded.is_err().then(Instant::now);
            if is_new || loaded.is_ok() {
                on_change(loaded);
            }
        }
    }
}
