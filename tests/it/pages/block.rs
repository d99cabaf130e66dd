//! The fenced blocks of a page, and what each of them is.

use std::fs;
use std::path::{Path, PathBuf};

/// A page of the documentation.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block.
pub struct Block {
    /// The page and the line of its first fence.
    pub place: String,
    pub class: Class,
    pub text: String,
    /// A terminal without anything that an earlier block has started.
    pub is_fresh: bool,
    /// The name under which the reader saves it.
    pub file: Option<String>,
}

/// The kind of a block, which determines how it is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Complete rules: they load without a warning.
    Rules,
    /// Rules with a mistake, for the command below them.
    WrongRules,
    /// Lines of a project file, which is tested elsewhere.
    PartOf(PathBuf),
    /// Commands with their output.
    Screen,
    /// Commands, each of which succeeds.
    Commands,
    /// Commands for the archive of a release: `make e2e` makes one, and tests/it/dist.rs follows them there.
    Release,
}

impl Page {
    /// Returns all pages for users: those of `docs/`, at the top level and in `deploy/`.
    pub fn all() -> Vec<Page> {
        let folder = |folder: &str| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = [".", "docs", "deploy"].into_iter().flat_map(folder).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        paths.sort();
        let page = |path: PathBuf| Page {
            text: fs::read_to_string(&path).unwrap(),
            path: path.strip_prefix(".").map(Path::to_owned).unwrap_or(path),
        };
        paths.into_iter().map(page).collect()
    }

    /// Returns its blocks.
    ///
    /// # Panics
    /// Where one has no class, or no end.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                assert!(!line.trim_start().starts_with("```"), "{}:{}: a block in a list", self.name(), number + 1);
                continue;
            };
            let place = format!("{}:{}", self.name(), number + 1);
            let mut text = String::new();
            loop {
                let (_, line) = lines.next().unwrap_or_else(|| panic!("{place}: no end"));
                if line == "```" {
                    break;
                }
                text.push_str(line);
                text.push('\n');
            }
            blocks.push(Block::new(place, info, text));
        }
        blocks
    }

    /// Returns the text in backticks outside of blocks, with the line.
    pub fn code_spans(&self) -> Vec<(String, &str)> {
        let mut spans = Vec::new();
        let mut in_block = false;
        for (number, line) in self.text.lines().enumerate() {
            in_block ^= line.starts_with("```");
            if !in_block && !line.starts_with("```") {
                let code = line.split('`').skip(1).step_by(2);
                spans.extend(code.map(|code| (format!("{}:{}", self.name(), number + 1), code)));
            }
        }
        spans
    }

    /// Returns its path, for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl Block {
    fn new(place: String, info: &str, text: String) -> Block {
        let mut words = info.split(' ');
        let language = words.next().unwrap_or_default();
        let (mut is_fresh, mut file, mut attribute) = (false, None, "");
        for word in words {
            match word.split_once('=') {
                None if word == "fresh" => is_fresh = true,
                Some(("file", name)) => file = Some(name.to_owned()),
                _ => attribute = word,
            }
        }
        let class = match (language, attribute) {
            ("yaml", "") => Class::Rules,
            ("yaml", "wrong") => Class::WrongRules,
            ("console", "") => Class::Screen,
            ("sh", "") => Class::Commands,
            ("sh", "release") => Class::Release,
            (_, part) if part.starts_with("from=") => Class::PartOf(part.trim_start_matches("from=").into()),
            _ => panic!("{place}: {info:?} is no class of block that is tried"),
        };
        Block { place, class, text, is_fresh, file }
    }

    /// Returns the commands, each with its expected output.
    pub fn commands(&self) -> Vec<(String, String)> {
        let mut commands: Vec<(String, String)> = Vec::new();
        let mut is_open = false;
        for line in self.text.lines() {
            let begins = match self.class {
                Class::Screen => line.strip_prefix("$ "),
                _ => Some(line),
            };
            match (begins, commands.last_mut()) {
                (_, Some((command, _))) if is_open => {
                    command.push('\n');
                    command.push_str(line);
                }
                (Some(line), _) => commands.push((line.to_owned(), String::new())),
                (None, Some((_, printed))) => {
                    printed.push_str(line);
                    printed.push('\n');
                }
                (None, None) => panic!("{}: it begins without a command", self.place),
            }
            is_open = commands.last().is_some_and(|(command, printed)| printed.is_empty() && !is_whole(command));
        }
        commands.retain(|(command, _)| !command.trim().is_empty() && !command.starts_with('#'));
        commands
    }
}

/// Returns whether a shell could run this, or needs another line.
fn is_whole(command: &str) -> bool {
    let checked = std::process::Command::new("bash").args(["-n", "-c", command]).output().unwrap();
    !command.ends_with('\\') && checked.status.success() && checked.stderr.is_empty()
}
