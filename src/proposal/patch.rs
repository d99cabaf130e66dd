//! The difference of two texts, as `patch` and `git apply` take it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use similar::{Algorithm, TextDiff};

/// Time after which the search for the shortest difference ends with a longer one.
const LONGEST: Duration = Duration::from_secs(1);

/// Returns the difference from a file's text to another; `None` if they are equal, or if one ends in the middle of a
/// line break. A file without a text is created.
///
/// A relative name is kept, so a patch that is applied where the service was started finds the file. Of an absolute
/// name only the last part is kept: where a file is mounted is seldom where it is edited.
pub(super) fn patch(old: Option<&str>, new: &str, name: &Path) -> Option<String> {
    let name: PathBuf = match name.is_absolute() || name.components().any(|part| part.as_os_str() == "..") {
        true => name.file_name()?.into(),
        false => name.components().filter(|part| part.as_os_str() != ".").collect(),
    };
    // The library takes a carriage return at the very end for the end of a line, and the tools do not.
    if old == Some(new) || new.ends_with('\r') || old.is_some_and(|old| old.ends_with('\r')) {
        return None;
    }
    // Cut at line feeds alone, as the tools do.
    let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<_>>();
    let (before, after) = (lines(old.unwrap_or_default()), lines(new));
    let mut config = TextDiff::configure();
    let diff =
        config.algorithm(Algorithm::Myers).timeout(LONGEST).newline_terminated(true).diff_slices(&before, &after);
    let name = name.display();
    let old_name = if old.is_some() { format!("a/{name}") } else { "/dev/null".to_owned() };
    let header = (&*old_name, &*format!("b/{name}"));
    // The library may leave gaps between its steps; a patch of those is corrupt.
    let ends = diff.ops().iter().try_fold((0, 0), |at, op| {
        let (old, new) = (op.old_range(), op.new_range());
        (at == (old.start, new.start)).then_some((old.end, new.end))
    });
    let patch = match ends == Some((before.len(), after.len())) {
        true => diff.unified_diff().context_radius(3).header(header.0, header.1).to_string(),
        false => whole(header, (&before, &after)),
    };
    Some(patch)
}

/// Returns the difference that replaces every line.
fn whole((old_name, new_name): (&str, &str), (before, after): (&[&str], &[&str])) -> String {
    let range = |lines: &[&str]| format!("{},{}", usize::from(!lines.is_empty()), lines.len());
    let mut patch = format!("--- {old_name}\n+++ {new_name}\n@@ -{} +{} @@\n", range(before), range(after));
    let signed = before.iter().map(|line| ('-', line)).chain(after.iter().map(|line| ('+', line)));
    for (sign, line) in signed {
        patch.push(sign);
        patch.push_str(line);
        if !line.ends_with('\n') {
            patch.push_str("\n\\ No newline at end of file\n");
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Applies a patch with `git apply`, and returns the text of the file.
    fn applied(old: Option<&str>, patch: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shop.yaml");
        old.into_iter().for_each(|old| fs::write(&file, old).unwrap());
        fs::write(folder.path().join("patch"), patch).unwrap();
        let git = Command::new("git").args(["apply", "patch"]).current_dir(&folder).env("GIT_DIR", "none").output();
        let git = git.ok()?;
        assert!(git.status.success(), "{patch:?}: {}", String::from_utf8_lossy(&git.stderr));
        Some(fs::read_to_string(file).unwrap())
    }

    fn texts() -> impl Strategy<Value = String> {
        let line = prop::sample::select(vec!["a\n", "b\n", "  c: 1\n", "\n", "\r\n", "x\ry\n", "é\n"]);
        let last = prop::sample::select(vec!["", "end", "\r"]);
        (prop::collection::vec(line, 1..14), last).prop_map(|(lines, last)| lines.concat() + last)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn git_makes_the_new_text_of_the_old(old in prop::option::of(texts()), new in texts()) {
            match patch(old.as_deref(), &new, Path::new("/etc/rules/shop.yaml")) {
                None => {
                    let has_return = |text: &str| text.ends_with('\r');
                    let is_cut = has_return(&new) || old.as_deref().is_some_and(has_return);
                    prop_assert!(is_cut || old.as_deref() == Some(&*new));
                }
                Some(patch) => {
                    if let Some(made) = applied(old.as_deref(), &patch) {
                        prop_assert_eq!(made, new);
                    }
                }
            }
        }
    }

    #[test]
    fn every_line_can_be_replaced() {
        for (old, new) in [("a\nb\n", "c\n"), ("a", "b\n"), ("", "a"), ("a\n", "")] {
            let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<_>>();
            let patch = whole(("a/shop.yaml", "b/shop.yaml"), (&lines(old), &lines(new)));
            if let Some(made) = applied(Some(old), &patch) {
                assert_eq!(made, new, "{patch}");
            }
        }
    }

    #[test]
    fn a_relative_name_is_kept() {
        let named = |name: &str| patch(Some("a\n"), "b\n", Path::new(name)).unwrap().lines().next().unwrap().to_owned();
        assert_eq!(named("config/rules/shop.yaml"), "--- a/config/rules/shop.yaml");
        assert_eq!(named("./shop.yaml"), "--- a/shop.yaml");
        assert_eq!(named("/etc/tollgate/shop.yaml"), "--- a/shop.yaml");
        assert_eq!(named("../shop.yaml"), "--- a/shop.yaml");
    }
}
