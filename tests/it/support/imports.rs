//! The imports of the code, read from its text: which file names something that another file defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// A path in the code, a segment each, from the root of the crate.
type Segments = Vec<String>;

/// The folder of `src` that is a crate of its own, where `crate` means that folder.
const CRATE: &str = "engine";

/// The files of `src` with the files that each uses outside of its tests.
pub struct Imports(BTreeMap<PathBuf, BTreeSet<PathBuf>>);

/// The modules that are files.
#[derive(Default)]
struct Modules {
    files: BTreeMap<Segments, PathBuf>,
    /// The names that a module takes from another one and offers under its own path.
    reexports: BTreeMap<Segments, BTreeMap<String, Segments>>,
}

impl Imports {
    /// Reads these files. A re-export is not a use: a path leads to the file that defines what it names.
    pub fn of(files: &[PathBuf]) -> Imports {
        let mut modules = Modules::default();
        for file in files {
            modules.files.insert(module(file), file.clone());
        }
        let texts: BTreeMap<&Segments, String> = modules.files.iter().map(|(own, file)| (own, code(file))).collect();
        let mut uses: BTreeMap<&Segments, Vec<Segments>> = BTreeMap::new();
        let mut reexports: BTreeMap<Segments, BTreeMap<String, Segments>> = BTreeMap::new();
        for (own, text) in &texts {
            let mut names = BTreeMap::new();
            for statement in USE.captures_iter(text) {
                let mut paths = Vec::new();
                expand(&[], &statement[2], &mut paths);
                for (path, name) in paths {
                    let Some(path) = modules.absolute(own, &BTreeMap::new(), &path) else { continue };
                    names.insert(name.clone(), path.clone());
                    if statement.get(1).is_some() {
                        reexports.entry((*own).clone()).or_default().insert(name, path);
                    } else {
                        uses.entry(own).or_default().push(path);
                    }
                }
            }
            for path in PATH.captures_iter(&USE.replace_all(text, "")) {
                let path: Segments = path[1].split("::").map(str::to_owned).collect();
                uses.entry(own).or_default().extend(modules.absolute(own, &names, &path));
            }
        }
        let uses: BTreeMap<Segments, Vec<Segments>> = uses.into_iter().map(|(own, all)| (own.clone(), all)).collect();
        drop(texts);
        modules.reexports = reexports;
        let mut edges = BTreeMap::new();
        for (own, file) in &modules.files {
            let of = uses.get(own).into_iter().flatten();
            let used: BTreeSet<PathBuf> = of.filter_map(|path| modules.definition(path, 8)).cloned().collect();
            edges.insert(file.clone(), used.into_iter().filter(|used| used != file).collect());
        }
        Imports(edges)
    }

    /// Returns each use: the file that uses, and the file used.
    pub fn uses(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.0.iter().flat_map(|(user, all)| all.iter().map(move |used| (&**user, &**used)))
    }
}

impl Modules {
    /// Returns a path from the root of the crate, or `None` if it leads out of the crate.
    fn absolute(&self, own: &Segments, names: &BTreeMap<String, Segments>, path: &[String]) -> Option<Segments> {
        let rest = |path: &[String], from: Segments| Some([from, path.to_vec()].concat());
        let mut above = own.clone();
        match path[0].as_str() {
            "crate" => rest(&path[1..], own.iter().filter(|_| own[0] == CRATE).take(1).cloned().collect()),
            "self" => rest(&path[1..], above),
            "super" => {
                let levels = path.iter().take_while(|segment| *segment == "super").count();
                above.truncate(own.len().saturating_sub(levels));
                rest(&path[levels..], above)
            }
            first => {
                above.push(first.to_owned());
                if self.files.contains_key(&above) {
                    return rest(&path[1..], above);
                }
                let named = names.get(first).filter(|named| self.files.contains_key(*named))?;
                rest(&path[1..], named.clone())
            }
        }
    }

    /// Returns the file that defines what the path names.
    fn definition(&self, path: &[String], most: usize) -> Option<&PathBuf> {
        let length = (1..=path.len()).rev().find(|length| self.files.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let reexport = rest.first().and_then(|name| self.reexports.get(module)?.get(name)).filter(|_| most > 0);
        match reexport {
            Some(from) => self.definition(&[from, &rest[1..]].concat(), most - 1),
            None => self.files.get(module),
        }
    }
}

/// Returns the groups in which each member reaches each other by these arrows.
pub fn circles<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    arrows.iter().for_each(|(begin, end)| next.entry(begin).or_default().push(end));
    let reach = |from| {
        let (mut seen, mut ways) = (BTreeSet::new(), vec![from]);
        while let Some(at) = ways.pop() {
            ways.extend(next.get(at).into_iter().flatten().filter(|end| seen.insert(**end)));
        }
        seen
    };
    let reached: BTreeMap<&T, BTreeSet<&T>> = next.keys().map(|begin| (*begin, reach(*begin))).collect();
    let is_back = |one: &T, other: &T| reached.get(other).is_some_and(|all| all.contains(one));
    let group = |(one, all): (&&T, &BTreeSet<&T>)| -> BTreeSet<T> {
        all.iter().filter(|other| is_back(one, other)).map(|other| (*other).clone()).collect()
    };
    let groups: BTreeSet<BTreeSet<T>> = reached.iter().map(group).filter(|group| group.len() > 1).collect();
    groups.into_iter().collect()
}

static USE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^[ \t]*(pub(?:\([^)]*\))?[ \t]+)?use ([^;]+);").unwrap());
static PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?:^|[^\w:])([a-z_]\w*(?:::\w+)+)").unwrap());

/// Returns the path of a file's module: `src/grpc/mod.rs` is `grpc`.
fn module(file: &Path) -> Segments {
    let path = file.strip_prefix("src").unwrap().with_extension("");
    let path: Segments = path.iter().map(|segment| segment.to_str().unwrap().to_owned()).collect();
    path.into_iter().filter(|segment| segment != "mod").collect()
}

/// Returns the code of a file without its tests and its comments.
fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Returns the paths of `a::{b, c as d}`, each with the name that it gets.
fn expand(before: &[String], tree: &str, paths: &mut Vec<(Segments, String)>) {
    let (mut depth, mut begin) = (0, 0);
    let mut parts = Vec::new();
    for (at, char) in tree.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[begin..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let segments = |path: &str| -> Segments {
            let own = path.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned);
            before.iter().cloned().chain(own).collect()
        };
        if let Some((path, inside)) = part.split_once('{') {
            expand(&segments(path), inside.trim_end().trim_end_matches('}'), paths);
            continue;
        }
        let (path, name) = part.split_once(" as ").unwrap_or((part, ""));
        let mut path = segments(path);
        // `a::{self}` is `a`.
        path.pop_if(|last| last == "self" && !before.is_empty());
        let name = if name.is_empty() { path.last().cloned().unwrap_or_default() } else { name.trim().to_owned() };
        paths.push((path, name));
    }
}
