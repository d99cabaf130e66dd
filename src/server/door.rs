//! Opens the gRPC port when there are rules. A client that could connect earlier would only get an error, while one
//! that the system refuses tries another instance.

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::port::{Closed, Port};

/// A port that is not open yet, and the channel to the task that will serve it.
pub(super) struct Door(Mutex<Option<(Closed, oneshot::Sender<Port>)>>);

impl Door {
    /// Returns the door, and a receiver that gets the port once it is open.
    pub(super) fn new(closed: Closed) -> (Door, oneshot::Receiver<Port>) {
        let (open, opened) = oneshot::channel();
        (Door(Mutex::new(Some((closed, open)))), opened)
    }

    /// Opens the port; when this returns, clients can connect. Later calls do nothing.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub(super) fn open(&self) -> anyhow::Result<()> {
        let Some((closed, open)) = self.0.lock().take() else { return Ok(()) };
        // The receiver is gone only if the process is ending.
        let _ = open.send(closed.listen()?);
        Ok(())
    }
}
