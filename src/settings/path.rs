//! Paths in settings. A word that switches something on or off is not one: as a path it would silently name a file
//! `on`.

use std::path::PathBuf;

/// Returns whether the text is a word for on.
pub(super) fn is_on(text: &str) -> bool {
    ["true", "t", "1", "yes", "y", "on"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Returns whether the text is a word for off.
pub(super) fn is_off(text: &str) -> bool {
    ["false", "f", "0", "no", "n", "off", "none"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Parses a path.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if is_on(text) || is_off(text) {
        return Err(format!("must be a path; if that is its name, write ./{text}, and if none is meant, unset it"));
    }
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use crate::settings::Settings;

    #[test]
    fn no_setting_takes_a_word_for_on_or_off_as_a_path() {
        let command = Settings::augment_args(Command::new("tollgate"));
        let is_path = |arg: &&clap::Arg| {
            let named: Vec<_> = arg.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
            named.iter().any(|name| ["FILE", "PATH"].contains(name))
        };
        // Folders below another folder, and the path of a URL, which begins with a slash.
        let others = ["RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY", "PROMETHEUS_PATH"];
        let name = |arg: &clap::Arg| arg.get_env().unwrap().to_string_lossy().into_owned();
        let paths: Vec<_> =
            command.get_arguments().filter(is_path).filter(|arg| !others.contains(&&*name(arg))).collect();
        assert!(paths.len() > 15, "{paths:?}");
        for arg in paths {
            let flag = arg.get_long().unwrap();
            for word in ["on", "true", "Yes", "1", "no"] {
                let read = command.clone().try_get_matches_from(["tollgate", &format!("--{flag}={word}")]);
                assert!(read.is_err(), "--{flag}={word}");
            }
            let read = command.clone().try_get_matches_from(["tollgate", &format!("--{flag}=./on")]);
            assert!(read.is_ok(), "--{flag}=./on");
        }
    }
}
