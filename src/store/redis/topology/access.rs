//! Tollgate's credentials for Redis: user, password, database and certificates, the same for every node of a Redis.
//! Files are read again when they change. New connections use the new content; existing connections authenticate again.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use deadpool_redis::redis::{Cmd, RedisConnectionInfo, cmd};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep};
use tokio_rustls::rustls::pki_types::ServerName;

use super::dial::{DialError, Stream, connect};
use crate::files::watch::{Watched, watch as watch_files};
use crate::files::{Debounce, INTERVAL, Stamp, blocking, refuse_pipe};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::doctor::rights;
use crate::store::redis::topology::address::{Login, Place, RedisAddress, RedisTls};
use crate::supervise;
use crate::tls::{ClientTls, HandshakeError, NamedFile, TlsErrors};

/// The largest size of a password or token, in bytes.
const MOST_BYTES: u64 = 64 * 1024;

/// Interval of the attempts to read a rejected password file again, even if it has not changed: what denied the access
/// may be over.
const RETRY: Duration = Duration::from_secs(5);

/// Tollgate's credentials for a Redis.
pub(crate) struct Access {
    login: Arc<watch::Sender<Login>>,
    database: u16,
    tls: Option<Secure>,
    /// Whether nodes of a cluster are expected.
    is_cluster: bool,
    /// Tasks that read files again, until this is dropped.
    tasks: Vec<AbortHandle>,
}

/// The current TLS configuration.
#[derive(Clone)]
struct Secure {
    client: Arc<ArcSwap<ClientTls>>,
    server_name: Option<ServerName<'static>>,
}

/// The reason why the credentials are unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("{0} cannot be read: {1}")]
    Unreadable(NamedFile, io::Error),
    #[error("{0} has more than {MOST_BYTES} bytes, which are no password")]
    TooLong(NamedFile),
    #[error("{0} is empty: it wants PASSWORD or USER:PASSWORD")]
    Empty(NamedFile),
    #[error("{0} is no text: it wants PASSWORD or USER:PASSWORD")]
    Binary(NamedFile),
    #[error("{0}")]
    Tls(TlsErrors),
    #[error("REDIS_TLS_SERVER_NAME is no name that a certificate can have: write a DNS name or an address")]
    ServerName,
}

impl Access {
    /// Reads the files, and reads them again whenever they change.
    ///
    /// # Errors
    /// If a file is unusable.
    pub(crate) fn start(address: &RedisAddress) -> Result<Access, AccessError> {
        let mut tasks = Vec::new();
        let login = match address.auth_file() {
            None => Arc::new(watch::Sender::new(address.login().clone())),
            Some(file) => {
                let (stamp, user) = (Stamp::of(&file.path), address.login().user.clone());
                let login = Arc::new(watch::Sender::new(read_login(file, user.clone())?));
                let (watched, kept) = (file.clone(), Arc::clone(&login));
                let watch = move || {
                    let (file, user) = (watched.clone(), user.clone());
                    let read = move || read_login(&file, user.clone());
                    watch_login(watched.clone(), read, stamp, Arc::clone(&kept))
                };
                tasks.push(supervise::spawn("redis password", watch).abort_handle());
                login
            }
        };
        let tls = address.tls().map(|tls| Secure::start(tls, &mut tasks)).transpose()?;
        Ok(Access { login, database: address.database(), tls, is_cluster: address.is_cluster(), tasks })
    }

    /// Returns the credentials for the Sentinels, which have separate users.
    pub(crate) fn of_sentinels(&self, address: &RedisAddress) -> Access {
        let login = Arc::new(watch::Sender::new(address.sentinel_login().clone()));
        Access { login, database: 0, tls: self.tls.clone(), is_cluster: false, tasks: Vec::new() }
    }

    /// Returns the settings that a connection starts with.
    pub(crate) fn greeting(&self) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default().set_db(self.database.into());
        let Login { user, password } = &*self.login.borrow();
        if let Some(user) = user.as_ref().filter(|_| password.is_some()) {
            info = info.set_username(user);
        }
        if let Some(password) = password {
            info = info.set_password(password);
        }
        info
    }

    /// Returns the command that authenticates Tollgate, or `None` without a password.
    pub(crate) fn auth(&self) -> Option<Cmd> {
        let Login { user, password } = &*self.login.borrow();
        let mut auth = cmd("AUTH");
        if let Some(user) = user {
            auth.arg(user);
        }
        auth.arg(password.as_ref()?);
        Some(auth)
    }

    /// Returns a receiver of changes to the login.
    pub(crate) fn renewals(&self) -> watch::Receiver<Login> {
        self.login.subscribe()
    }

    /// Returns the user, or `None` for the default user.
    pub(crate) fn user(&self) -> Option<String> {
        self.login.borrow().user.clone()
    }

    /// Returns whether nodes of a cluster are expected.
    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Returns the command that grants the user everything that Tollgate needs, and nothing else.
    pub(crate) fn grant(&self, key_prefix: &str) -> String {
        let mut line = format!("ACL SETUSER {} ~", self.user().as_deref().unwrap_or("default"));
        for char in key_prefix.chars() {
            // These characters have a special meaning in patterns.
            if "*?[]\\^".contains(char) {
                line.push('\\');
            }
            line.push(char);
        }
        // WAIT is for durable limits, SCAN for reading usage.
        line.push_str("* +evalsha +script|load +info +wait +scan");
        if self.is_cluster {
            line.push_str(" +cluster|slots +asking +readonly");
        }
        if self.database != 0 {
            line.push_str(" +select");
        }
        rights::commands().iter().for_each(|command| line.extend([" +", &command.to_ascii_lowercase()]));
        line
    }

    /// Returns whether connections use TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects to a place, over TLS if it is configured.
    ///
    /// # Errors
    /// If the connection cannot be made.
    pub(crate) async fn open(&self, place: &Place) -> Result<Box<dyn Stream>, DialError> {
        let stream = connect(place).await.map_err(|error| match Cause::of_connecting(&error) {
            Some(cause) => DialError::Known(cause),
            None => DialError::Unclear(Cause::Closed(error.to_string())),
        })?;
        let (Some(Secure { client, server_name }), Place::Tcp(host, _)) = (&self.tls, place) else { return Ok(stream) };
        let name = server_name.clone().or_else(|| ServerName::try_from(host.clone()).ok());
        let name = name.ok_or(DialError::Known(Cause::UnknownHost))?;
        let client = client.load_full();
        match client.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(DialError::Known(handshake_failed(&HandshakeError::of(&error)))),
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Secure {
    fn start(tls: &RedisTls, tasks: &mut Vec<AbortHandle>) -> Result<Secure, AccessError> {
        let server_name = tls.server_name.clone().map(ServerName::try_from).transpose();
        let server_name = server_name.map_err(|_| AccessError::ServerName)?;
        let watched = Watched::new(tls.files.paths());
        let client = Arc::new(ArcSwap::from_pointee(tls.files.load().map_err(AccessError::Tls)?));
        let (files, current) = (tls.files.clone(), Arc::clone(&client));
        let keep = move || {
            let (files, current) = (files.clone(), Arc::clone(&current));
            watch_files(
                watched.clone(),
                move || files.load(),
                move |loaded| match loaded {
                    Ok(loaded) => {
                        tracing::info!("new certificates are in force for connections to redis");
                        current.store(Arc::new(loaded));
                    }
                    Err(errors) => tracing::error!(
                        "changed certificates for redis are rejected, the previous ones stay in force: {errors}"
                    ),
                },
            )
        };
        tasks.push(supervise::spawn("redis certificates", keep).abort_handle());
        Ok(Secure { client, server_name })
    }
}

/// Returns the cause of a failed handshake, with advice.
pub(crate) fn handshake_failed(error: &HandshakeError) -> Cause {
    let advice = match error {
        HandshakeError::PlainText => return Cause::NoTls,
        HandshakeError::Untrusted(_) => {
            ": name the authority that signed it, or the certificate itself, in REDIS_TLS_CACERT"
        }
        HandshakeError::WrongName(_) => ": write a name that it has into REDIS_TLS_SERVER_NAME",
        HandshakeError::Nameless(_) => "",
        HandshakeError::Expired(_) => ": Redis needs another, or see to this machine's clock",
        HandshakeError::Refused(_) => ": does it want a REDIS_TLS_CLIENT_CERT, and trust the authority of that?",
        _ => ": check that the port uses TLS (redis:// is without TLS)",
    };
    Cause::Handshake(format!("{error}{advice}"))
}

fn read_login(file: &NamedFile, user: Option<String>) -> Result<Login, AccessError> {
    let mut bytes = Vec::new();
    let open = refuse_pipe(&file.path).and_then(|()| File::open(&file.path));
    let read = open.and_then(|open| open.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| AccessError::Unreadable(file.clone(), error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(AccessError::TooLong(file.clone()));
    }
    let text = String::from_utf8(bytes).map_err(|_| AccessError::Binary(file.clone()))?;
    // Editors and `echo` append a line end.
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(AccessError::Empty(file.clone())),
        auth => Ok(Login::of(auth, user)),
    }
}

/// Puts the login that `read` reads from the file in force whenever the file changes.
async fn watch_login(
    file: NamedFile,
    read: impl Fn() -> Result<Login, AccessError> + Clone + Send + 'static,
    stamp: Option<Stamp>,
    login: Arc<watch::Sender<Login>>,
) {
    let mut debounce = Debounce::after(stamp);
    let mut refused: Option<Instant> = None;
    loop {
        sleep(INTERVAL).await;
        let path: PathBuf = file.path.clone();
        let is_new = debounce.settled(blocking(move || Stamp::of(&path)).await);
        let is_again = refused.is_some_and(|at| at.elapsed() >= RETRY);
        if !is_new && !is_again {
            continue;
        }
        let read = blocking(read.clone()).await;
        refused = read.is_err().then(Instant::now);
        match read {
            Ok(new) => {
                let is_new = login.send_if_modified(|old| std::mem::replace(old, new.clone()) != new);
                if is_new {
                    tracing::info!(%file, "a new password is in force for redis");
                }
            }
            Err(error) if is_new => {
                tracing::error!("a changed password for redis is rejected, the previous one stays in use: {error}");
            }
            // Logged before.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// What keeps a file from being read may end without a change of the file: a right in a security policy, a limit of
    /// open files.
    #[tokio::test(start_paused = true)]
    async fn a_password_that_cannot_be_read_when_it_changes_is_read_later() {
        let folder = tempfile::tempdir().unwrap();
        let file = NamedFile { name: "REDIS_AUTH_FILE", path: folder.path().join("password") };
        std::fs::write(&file.path, "old").unwrap();
        let (stamp, login) = (Stamp::of(&file.path), Arc::new(watch::Sender::new(read_login(&file, None).unwrap())));
        let (is_denied, watched) = (Arc::new(AtomicBool::new(true)), file.clone());
        let (seen, denied) = (Arc::clone(&is_denied), Arc::new(AtomicBool::new(false)));
        let was_denied = Arc::clone(&denied);
        let read = move || match seen.load(Ordering::Relaxed) {
            true => {
                denied.store(true, Ordering::Relaxed);
                Err(AccessError::Unreadable(watched.clone(), io::ErrorKind::PermissionDenied.into()))
            }
            false => read_login(&watched, None),
        };
        let task = tokio::spawn(watch_login(file.clone(), read, stamp, Arc::clone(&login)));
        std::fs::write(&file.path, "a new one").unwrap();
        let password = || login.borrow().password.clone();
        while !was_denied.load(Ordering::Relaxed) {
            sleep(INTERVAL).await;
        }
        sleep(2 * RETRY).await;
        assert_eq!(password().as_deref(), Some("old"));
        is_denied.store(false, Ordering::Relaxed);
        let start = Instant::now();
        while password().as_deref() != Some("a new one") {
            assert!(start.elapsed() < 2 * RETRY, "it is not read again");
            sleep(INTERVAL).await;
        }
        task.abort();
    }

    #[test]
    fn the_line_names_the_user_its_keys_and_every_command() {
        let grant = |url: &str, prefix| Access::start(&url.parse().unwrap()).unwrap().grant(prefix);
        assert!(grant("redis-cluster://cache", "").contains(" +wait +scan +cluster|slots +asking +readonly +del "));
        let line = grant("redis://toll:secret@cache/3", "a*[1]:");
        let always = "* +evalsha +script|load +info +wait +scan";
        let begins = [r"ACL SETUSER toll ~a\*\[1\]:", always, " +select +del +get "].concat();
        assert!(line.starts_with(&begins), "{line}");
        assert!(
            rights::commands().iter().all(|command| line.contains(&format!(" +{}", command.to_ascii_lowercase()))),
            "{line}"
        );
        let line = grant("cache:6379", "");
        assert!(line.starts_with("ACL SETUSER default ~* +evalsha +script|load +info +wait +scan +del "), "{line}");
    }
}
