//! Unix sockets to listen on, and their files: creates a file, replaces one that no process listens on, and removes it
//! at the end.

use std::fs::{self, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tokio::net::UnixListener;

/// The file of a socket, removed on drop unless another file has replaced it. Drop it before the listener: while the
/// listener exists, no other file can get its inode number.
pub struct SocketFile {
    path: PathBuf,
    /// Its device and inode number.
    identity: (u64, u64),
}

/// Listens at this path, with a file of this mode.
///
/// # Errors
/// If another process listens there, if a file of another kind exists there, or if the system denies access.
pub(super) fn listen(path: &Path, mode: u32) -> anyhow::Result<(SocketFile, UnixListener)> {
    vacate(path)?;
    let listener = UnixListener::bind(path).context("cannot create the socket: may this process write there?")?;
    let identity = identity(&fs::symlink_metadata(path)?);
    let file = SocketFile { path: path.to_owned(), identity };
    fs::set_permissions(path, Permissions::from_mode(mode)).context("cannot set its mode (GRPC_UDS_MODE)")?;
    Ok((file, listener))
}

/// Removes a socket file left by a process that was killed.
///
/// # Errors
/// If another process listens there, a file of another kind exists there, or the folder does not exist.
pub(super) fn vacate(path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
        && !folder.exists()
    {
        bail!("the folder {} does not exist", folder.display());
    }
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    if !there.file_type().is_socket() {
        bail!("the path exists and is not a socket: move the file, or choose another path");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).context("cannot remove the socket of a process that has ended")?;
            tracing::info!(path = %path.display(), "replacing a socket that no process listens on");
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("cannot detect whether a process listens on it"),
        Ok(_) => bail!("another process listens on it: end that process, or choose another path"),
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the file has been replaced, another process listens on it.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| identity(&there) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_live_socket_is_left_alone_a_stale_one_replaced_and_ours_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate.sock");
        let (file, _listener) = listen(&path, 0o640).unwrap();
        assert_eq!(mode(&path), 0o640);
        let refused = listen(&path, 0o660).err().unwrap();
        assert!(refused.to_string().contains("another process listens on it"), "{refused:#}");

        fs::remove_file(&path).unwrap();
        let (other, listener) = listen(&path, 0o660).unwrap();
        assert_eq!(mode(&path), 0o660);
        drop(file);
        assert!(path.exists(), "it is another's by now");

        // Simulates a process that was killed.
        drop(listener);
        std::mem::forget(other);
        assert!(path.exists());
        let last = listen(&path, 0o660).unwrap();
        drop(last);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        let refused = listen(&path, 0o660).err().unwrap();
        assert!(refused.to_string().contains("is not a socket"), "{refused:#}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let refused = listen(&folder.path().join("none/gate.sock"), 0o660).err().unwrap();
        assert!(format!("{refused:#}").contains("does not exist"), "{refused:#}");
    }
}
