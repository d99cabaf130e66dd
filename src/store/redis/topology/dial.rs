//! Makes connections to a node.
//!
//! The pool is deadpool's, with this manager. The manager of `deadpool-redis` keeps the settings that it was created
//! with, while here the place, the password and the certificates may change before the next connection.

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
use super::diagnosis::{diagnose, diagnose_silence};
use super::sentinel::Sentinels;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::topology::address::Place;

/// A factory of connections to one node.
#[derive(Clone)]
pub(crate) struct Dialer {
    target: Target,
    access: Arc<Access>,
}

/// The place of the node.
#[derive(Clone)]
pub(crate) enum Target {
    /// A fixed place, with its name resolved for each connection.
    Fixed(Place),
    /// The place that the Sentinels report.
    Master(Arc<Sentinels>),
}

/// A connection, and the task that drives it.
pub(crate) struct Dialed {
    pub(crate) redis: MultiplexedConnection,
    /// The task runs on the runtime on which the connection was made.
    pub(crate) driver: AbortHandle,
    /// The place that the connection leads to.
    pub(crate) place: Place,
}

/// A transport of bytes.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The reason why a connection could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The cause is known.
    #[error("{0}")]
    Known(Cause),
    /// A diagnosis may find a more precise cause.
    #[error("{0}")]
    Unclear(Cause),
}

impl Dialer {
    pub(crate) fn new(target: Target, access: Arc<Access>) -> Dialer {
        Dialer { target, access }
    }

    /// Returns the credentials for the node.
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Returns the current place of the node, and its changes. Returns `None` if only the next connection can find out.
    pub(crate) fn moves(&self) -> Option<watch::Receiver<Option<Place>>> {
        match &self.target {
            Target::Fixed(_) => None,
            Target::Master(sentinels) => Some(sentinels.moves()),
        }
    }

    /// Returns why a connection to this place is outdated, if the node is elsewhere now.
    pub(crate) fn moved_from(&self, place: &Place) -> Option<String> {
        let Target::Master(sentinels) = &self.target else { return None };
        sentinels.moved_from(place).map(|now| format!("the master was {place} and is {now}"))
    }

    /// Makes a connection to the node.
    ///
    /// # Errors
    /// If it cannot be made within this time.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<Dialed, Cause> {
        match timeout(patience, self.create()).await {
            Ok(Ok(dialed)) => Ok(dialed),
            Ok(Err(error)) => Err(self.explain(error, patience).await),
            Err(_) => Err(self.explain_silence(patience).await),
        }
    }

    /// Returns the number of replicas that must confirm a durable charge: with Sentinels all that follow the master,
    /// since any of them may be promoted, and otherwise one.
    pub(crate) fn confirming(&self) -> usize {
        match &self.target {
            Target::Fixed(_) => 1,
            Target::Master(sentinels) => sentinels.replicas_in_step().max(1),
        }
    }

    /// Returns whether a Sentinel reports a failover of the node whose new master is not named yet.
    pub(crate) fn is_failing_over(&self) -> bool {
        match &self.target {
            Target::Fixed(_) => false,
            Target::Master(sentinels) => sentinels.is_failing_over(),
        }
    }

    /// Returns the places of the node's replicas according to the Sentinels, the most up-to-date first, or `None` if
    /// there are no Sentinels.
    pub(crate) async fn replicas(&self) -> Option<Result<Vec<Place>, Cause>> {
        match &self.target {
            Target::Fixed(_) => None,
            Target::Master(sentinels) => Some(sentinels.replicas().await),
        }
    }

    /// Returns the cause of a failed connection. Takes time, and uses separate connections.
    pub(crate) async fn explain(&self, error: DialError, timeout: Duration) -> Cause {
        match (error, self.last()) {
            (DialError::Known(cause), _) => cause,
            (DialError::Unclear(cause), None) => cause,
            (DialError::Unclear(cause), Some(place)) => diagnose(&place, &self.access, timeout).await.unwrap_or(cause),
        }
    }

    /// Returns the cause of a connection that takes too long.
    pub(crate) async fn explain_silence(&self, timeout: Duration) -> Cause {
        let found = match (&self.target, self.last()) {
            (Target::Master(sentinels), None) => Some(sentinels.silence()),
            (_, Some(place)) if self.access.is_secure() => diagnose_silence(&place, timeout).await,
            _ => None,
        };
        found.unwrap_or(Cause::Silent(timeout))
    }

    /// Returns the answer of each Sentinel: its place, and the master's. Empty if there are no Sentinels.
    pub(crate) async fn survey(&self) -> Vec<(String, Result<String, Cause>)> {
        match &self.target {
            Target::Fixed(_) => Vec::new(),
            Target::Master(sentinels) => sentinels.survey().await,
        }
    }

    /// Returns the last place of the node.
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
                // The Sentinels' information may be outdated. A previous master accepts no writes any more, or would
                // lose them.
                if role(&dialed).await.is_some_and(|role| role != "master") {
                    return Err(DialError::Known(Cause::NoMaster(dialed.place.to_string())));
                }
                Ok(dialed)
            }
        }
    }

    /// A connection leaves the pool for good: it serves one worker for its whole life.
    async fn recycle(&self, _: &mut Dialed, _: &Metrics) -> RecycleResult<DialError> {
        Err(RecycleError::message("it has served another"))
    }
}

impl Drop for Dialed {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Makes a connection to this place, on the caller's runtime.
pub(crate) async fn dial(place: Place, access: &Access) -> Result<Dialed, DialError> {
    let stream = access.open(&place).await?;
    // Timeouts are measured where calls are made.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    match MultiplexedConnection::new_with_config(&access.greeting(), stream, config).await {
        Ok((redis, driver)) => Ok(Dialed { redis, driver: tokio::spawn(driver).abort_handle(), place }),
        // The client library reports only that its first commands failed.
        Err(error) => Err(DialError::Unclear(Cause::of_error(&error))),
    }
}

/// Returns the role that the server reports, or `None` if the user may not ask. In that case a rejected write reveals
/// it.
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

/// Connects to a place. Resolves its name each time.
///
/// # Errors
/// If the connection is not accepted.
pub(crate) async fn connect(place: &Place) -> io::Result<Box<dyn Stream>> {
    match place {
        Place::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Place::Tcp(host, port) => {
            let addresses = lookup_host((host.as_str(), *port)).await?;
            // Tries all addresses at once, since there may be no route to the first.
            let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
            if attempts.is_empty() {
                return Err(io::Error::other("failed to lookup address information: it has none"));
            }
            let (stream, _) = select_ok(attempts).await?;
            // Small writes of many requests share a connection, and must not wait for acknowledgements of earlier ones.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}
