//! Makes connections to a node.
//!
//! The pool is deadpool's, and its manager this one. That of `deadpool-redis` holds what it was made with: here the
//! place, the password and the certificates may be others for the next connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Value, cmd};
use futures_util::future::select_ok;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::access::Access;
use super::sentinel::Sentinels;
use crate::store::redis::address::Place;
use crate::store::redis::cause::Cause;
use crate::store::redis::diagnosis::{diagnose, diagnose_silence};

/// Makes connections to one node.
pub(in crate::store::redis) struct Dialer {
    target: Target,
    access: Arc<Access>,
}

/// Where the node is.
pub(super) enum Target {
    /// Always there, wherever its name leads.
    Fixed(Place),
    /// Where the Sentinels say.
    Master(Arc<Sentinels>),
}

/// A connection that has been made, and what drives it.
pub(in crate::store::redis) struct Dialed {
    pub(in crate::store::redis) redis: MultiplexedConnection,
    /// It runs on the runtime that the connection was made on.
    pub(in crate::store::redis) driver: AbortHandle,
    /// Where it leads.
    pub(in crate::store::redis) place: Place,
}

/// What bytes come and go by.
pub(in crate::store::redis) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Why a connection has not come about.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::store::redis) enum DialError {
    /// That is all there is to know.
    #[error("{0}")]
    Known(Cause),
    /// A diagnosis may know more.
    #[error("{0}")]
    Unclear(Cause),
}

impl Dialer {
    pub(super) fn new(target: Target, access: Arc<Access>) -> Dialer {
        Dialer { target, access }
    }

    /// What lets Tollgate in there.
    pub(in crate::store::redis) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Where the node is now; changes when it is elsewhere. `None`: that is told by the next connection alone.
    pub(in crate::store::redis) fn moves(&self) -> Option<watch::Receiver<Option<Place>>> {
        match &self.target {
            Target::Fixed(_) => None,
            Target::Master(sentinels) => Some(sentinels.moves()),
        }
    }

    /// A connection to the node, or why there is none.
    ///
    /// # Errors
    /// Where it does not come about in this time.
    pub(in crate::store::redis) async fn connect(&self, patience: Duration) -> Result<Dialed, Cause> {
        match timeout(patience, self.create()).await {
            Ok(Ok(dialed)) => Ok(dialed),
            Ok(Err(error)) => Err(self.explain(error, patience).await),
            Err(_) => Err(self.explain_silence(patience).await),
        }
    }

    /// Where the node's replicas are, as the Sentinels say, those first that have heard the most; `None` where there
    /// are no Sentinels.
    pub(in crate::store::redis) async fn replicas(&self) -> Option<Result<Vec<Place>, Cause>> {
        match &self.target {
            Target::Fixed(_) => None,
            Target::Master(sentinels) => Some(sentinels.replicas().await),
        }
    }

    /// Why no connection comes about: takes its time, over connections of its own.
    pub(in crate::store::redis) async fn explain(&self, error: DialError, timeout: Duration) -> Cause {
        match (error, self.last()) {
            (DialError::Known(cause), _) => cause,
            (DialError::Unclear(cause), None) => cause,
            (DialError::Unclear(cause), Some(place)) => diagnose(&place, &self.access, timeout).await.unwrap_or(cause),
        }
    }

    /// The same where it takes too long.
    pub(in crate::store::redis) async fn explain_silence(&self, timeout: Duration) -> Cause {
        let found = match (&self.target, self.last()) {
            (Target::Master(sentinels), None) => Some(sentinels.silence()),
            (_, Some(place)) if self.access.is_secure() => diagnose_silence(&place, timeout).await,
            _ => None,
        };
        found.unwrap_or(Cause::Silent(timeout))
    }

    /// What the Sentinels say, each its place and the master's; empty where there are none.
    pub(in crate::store::redis) async fn survey(&self) -> Vec<(String, Result<String, Cause>)> {
        match &self.target {
            Target::Fixed(_) => Vec::new(),
            Target::Master(sentinels) => sentinels.survey().await,
        }
    }

    /// Where the node was last.
    fn last(&self) -> Option<Place> {
        match &self.target {
            Target::Fixed(place) => Some(place.clone()),
            Target::Master(sentinels) => sentinels.moves().borrow().clone(),
        }
    }
}

impl Manager for Dialer {
    type Type = Dialed;
    type Error = DialError;

    async fn create(&self) -> Result<Dialed, DialError> {
        match &self.target {
            Target::Fixed(place) => dial(place.clone(), &self.access).await,
            Target::Master(sentinels) => {
                let place = sentinels.ask().await.map_err(DialError::Known)?;
                let dialed = dial(place, &self.access).await?;
                // What the Sentinels say may be old: a master of before takes writes no more, and would lose them.
                if role(&dialed).await.is_some_and(|role| role != "master") {
                    return Err(DialError::Known(Cause::NoMaster(dialed.place.to_string())));
                }
                Ok(dialed)
            }
        }
    }

    /// A connection leaves the pool for good: it serves one worker for as long as it lives.
    async fn recycle(&self, _: &mut Dialed, _: &Metrics) -> RecycleResult<DialError> {
        Err(RecycleError::message("it has served another"))
    }
}

impl Drop for Dialed {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection to this place, on the runtime of whoever asks.
pub(super) async fn dial(place: Place, access: &Access) -> Result<Dialed, DialError> {
    let stream = access.open(&place).await?;
    // Silence is measured where calls are made.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    match MultiplexedConnection::new_with_config(&access.greeting(), stream, config).await {
        Ok((redis, driver)) => Ok(Dialed { redis, driver: tokio::spawn(driver).abort_handle(), place }),
        // The client says no more than that its first commands failed.
        Err(error) => Err(DialError::Unclear(Cause::of_error(&error))),
    }
}

/// What it says that it is; `None` where its user may not ask: then its refusal to write tells.
async fn role(dialed: &Dialed) -> Option<String> {
    let said = dialed.redis.clone().send_packed_command(&cmd("ROLE")).await.ok()?;
    match said {
        Value::Array(parts) => match parts.first()? {
            Value::BulkString(role) => Some(String::from_utf8_lossy(role).into_owned()),
            Value::SimpleString(role) => Some(role.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// Connects to a place; its name is looked up each time.
///
/// # Errors
/// Where nobody takes the connection.
pub(in crate::store::redis) async fn connect(place: &Place) -> io::Result<Box<dyn Stream>> {
    match place {
        Place::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Place::Tcp(host, port) => {
            let addresses = lookup_host((host.as_str(), *port)).await?;
            // All at once: the first may be one of a network that leads nowhere.
            let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
            if attempts.is_empty() {
                return Err(io::Error::other("failed to lookup address information: it has none"));
            }
            let (stream, _) = select_ok(attempts).await?;
            // Small writes of many requests share a connection: none shall wait for another's acknowledgement.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}
