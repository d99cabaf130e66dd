//! A file that is rotated by its size, either here or by another program such as logrotate.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Rotation;
use crate::files::refuse_pipe;

/// While lines are written, the interval at which the file is checked for a move by another program.
const LOOK: Duration = Duration::from_secs(1);

/// A rotated file. Lines are appended to the newest file.
pub(super) struct RotatedFile {
    rotation: Rotation,
    /// `None` after an error; it is reopened for the next line.
    newest: Option<Newest>,
}

struct Newest {
    file: File,
    identity: Identity,
    /// End of the last complete line.
    bytes: u64,
    /// Time when the file was last seen under its name.
    looked: Instant,
}

/// Device and inode number; `None` if the system does not provide them.
type Identity = Option<(u64, u64)>;

impl RotatedFile {
    /// Opens or creates the newest file.
    pub(super) fn open(rotation: Rotation) -> io::Result<RotatedFile> {
        let newest = Some(Newest::open(&rotation, Instant::now())?);
        Ok(RotatedFile { rotation, newest })
    }

    /// Appends the lines of a request. If another program moved the file, a new one is created first. This is checked
    /// before the last lines in the queue, and every [`LOOK`].
    pub(super) fn write(&mut self, lines: &[u8], is_last: bool, now: Instant) -> io::Result<()> {
        let is_there = |newest: &mut Newest| {
            if !is_last && now.saturating_duration_since(newest.looked) < LOOK {
                return true;
            }
            newest.looked = now;
            fs::metadata(&self.rotation.path).is_ok_and(|there| identity(&there) == newest.identity)
        };
        let mut newest = match self.newest.take_if(|newest| is_there(newest)) {
            Some(newest) => newest,
            None => Newest::open(&self.rotation, now)?,
        };
        if newest.bytes > 0 && newest.bytes + lines.len() as u64 > self.rotation.bytes {
            drop(newest);
            self.rotate()?;
            newest = Newest::open(&self.rotation, now)?;
        }
        newest.append(lines)?;
        self.newest = Some(newest);
        Ok(())
    }

    /// Renames the newest file to the first of the older ones, and deletes the oldest.
    fn rotate(&self) -> io::Result<()> {
        let Rotation { path, kept, .. } = &self.rotation;
        if *kept == 0 {
            return fs::remove_file(path);
        }
        for number in (1..*kept).rev() {
            match fs::rename(self.before(number), self.before(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(path, self.before(1))
    }

    fn before(&self, number: u32) -> PathBuf {
        let mut name = self.rotation.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

impl Newest {
    fn open(rotation: &Rotation, now: Instant) -> io::Result<Newest> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            // Lines may contain users and addresses.
            options.mode(0o640);
        }
        refuse_pipe(&rotation.path)?;
        let file = options.open(&rotation.path)?;
        let metadata = file.metadata()?;
        Ok(Newest { file, identity: identity(&metadata), bytes: metadata.len(), looked: now })
    }

    /// Appends lines. If this fails, it removes the incomplete line, which readers of the file could not parse.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Identity {
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(folder: &std::path::Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    proptest! {
        #[test]
        fn the_files_hold_the_last_lines_in_their_order_and_each_is_as_long_as_it_may_be(
            lengths in prop::collection::vec(1_usize..60, 1..60), bytes in 20_u64..200, kept in 0_u32..4,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("decisions");
            let rotation = Rotation { path: path.clone(), bytes, kept };
            let mut all = String::new();
            let mut file = RotatedFile::open(rotation.clone()).unwrap();
            for (number, length) in lengths.iter().enumerate() {
                let line = format!("{number}{}\n", "x".repeat(*length));
                all.push_str(&line);
                // Reopens the file now and then, as after a restart.
                if number % 7 == 6 {
                    file = RotatedFile::open(rotation.clone()).unwrap();
                }
                file.write(line.as_bytes(), number % 3 == 0, Instant::now()).unwrap();
            }
            let names = names(folder.path());
            prop_assert!(names.len() as u32 <= kept + 1, "{:?}", names);
            let mut text = String::new();
            for name in names.iter().skip(1).rev().chain(&names[..1]) {
                let part = fs::read_to_string(folder.path().join(name)).unwrap();
                prop_assert!(part.len() as u64 <= bytes || part.lines().count() == 1, "{} bytes", part.len());
                text.push_str(&part);
            }
            prop_assert!(all.ends_with(&text), "{:?} of {:?}", text, all);
            prop_assert!(text.lines().last() == all.lines().last(), "{:?} of {:?}", text, all);
        }
    }

    #[test]
    fn a_file_that_another_program_has_moved_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let mut file = RotatedFile::open(Rotation { path: path.clone(), bytes: 1_000, kept: 1 }).unwrap();
        file.write(b"one\n", true, Instant::now()).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        file.write(b"two\n", true, Instant::now()).unwrap();
        fs::remove_file(&path).unwrap();
        file.write(b"three\n", true, Instant::now()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(fs::read_to_string(folder.path().join("moved")).unwrap(), "one\n");
    }

    #[test]
    fn while_lines_keep_coming_a_moved_file_is_noticed_within_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let mut file = RotatedFile::open(Rotation { path: path.clone(), bytes: 1_000, kept: 1 }).unwrap();
        let begin = Instant::now();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        for (millis, line) in [(0, "one\n"), (900, "two\n"), (1_100, "three\n"), (1_200, "four\n")] {
            file.write(line.as_bytes(), false, begin + Duration::from_millis(millis)).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join("moved")).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\nfour\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_of_each_line_and_leaves_no_half_line() {
        let rotation = Rotation { path: "/dev/full".into(), bytes: 1_000, kept: 0 };
        let mut file = RotatedFile::open(rotation).unwrap();
        for _ in 0..3 {
            assert_eq!(file.write(b"one\n", true, Instant::now()).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
