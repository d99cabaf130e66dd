//! Rules inside a Kubernetes manifest. `tollgate check` reads them in place, with the manifest's own lines. The service
//! does not: it reads the folder as which Kubernetes mounts a ConfigMap or a Secret.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Map;

use super::document::{DocumentError, Entry, Node, Value, parse_all};
use super::fields::File;
use super::place::{Place, is_rules_file};
use crate::engine::rules::config::FieldPath;
use crate::engine::rules::report::{Position, Severity, nearest, quoted};

/// Number of resources to name if none of them holds rules.
const NAMED: usize = 5;

/// Resources that hold files, with the keys of their plain files and of those in base64.
const HOLDERS: [Holder; 2] = [
    Holder { kind: "ConfigMap", texts: "data", encoded: "binaryData" },
    Holder { kind: "Secret", texts: "stringData", encoded: "data" },
];

/// A kind of resource that can be mounted as a folder.
struct Holder {
    kind: &'static str,
    texts: &'static str,
    encoded: &'static str,
}

/// A rules file in a ConfigMap or a Secret, with its place.
pub(super) struct Embedded<'n> {
    pub(super) text: Cow<'n, str>,
    pub(super) place: Place,
}

/// Returns the kind of a resource, or `None` if the document is not one.
pub(super) fn kind<'n>(root: &'n Node<'_>) -> Option<&'n str> {
    text(root, "apiVersion")?;
    text(root, "kind")
}

/// Explains why the service does not read a resource.
pub(super) fn refusal(kind: &str) -> String {
    let hint = match kind {
        "ConfigMap" | "Secret" => "mount it as a volume and name that folder: each key becomes a file",
        "List" | "ConfigMapList" => {
            "mount the ConfigMap in it as a volume and name that folder: each key becomes a file"
        }
        "EnvoyFilter" | "BackendTrafficPolicy" | "RateLimitPolicy" => {
            "it configures proxies; rules begin with a domain"
        }
        _ => "rules begin with a domain",
    };
    format!("this is a Kubernetes {}, not rules: {hint}", quoted(kind))
}

/// Returns the documents of a text that holds resources, or `None` for any other text.
pub(super) fn documents(text: &str, max_bytes: u64) -> Option<Result<Vec<Node<'_>>, DocumentError>> {
    // Most texts are rules, and a tree of them would take much memory.
    if !text.contains("apiVersion") {
        return None;
    }
    let read = parse_all(text, max_bytes);
    let holds_resources = match &read {
        Ok(roots) => roots.iter().any(|root| kind(root).is_some()),
        Err(_) => text.lines().any(|line| line.starts_with("apiVersion:")),
    };
    holds_resources.then_some(read)
}

/// Returns the rules files in the ConfigMaps and Secrets of a manifest.
///
/// # Errors
/// If there are none; names the resources found instead.
pub(super) fn embedded<'n>(
    file: &mut File<'_>,
    text: &str,
    roots: &'n [Node<'n>],
) -> Result<Vec<Embedded<'n>>, String> {
    let (mut found, mut others) = (Vec::new(), Vec::new());
    let lines: Vec<&str> = text.lines().collect();
    let wanted = Wanted::of(roots);
    for root in roots.iter().filter(|root| !root.is_null()) {
        resources(root, &mut |resource| match kind(resource) {
            Some(kind) => {
                let before = found.len();
                let holder = HOLDERS.iter().find(|holder| holder.kind == kind);
                if let Some(holder) = holder.filter(|_| wanted.has(resource)) {
                    let held =
                        |place: Place, name: &str| place.held_by(format!("{}, {}", named(resource), quoted(name)));
                    entries(resource, holder.texts, |name, at, text| {
                        if is_rules((name, at), text, file) {
                            let place = held(place(&file.place.file, &lines, at, text), name);
                            found.push(Embedded { text: text.into(), place });
                        }
                    });
                    entries(resource, holder.encoded, |name, at, encoded| {
                        if let Some(text) = decoded(encoded)
                            && is_rules((name, at), &text, file)
                        {
                            let place = held(Place::text(&file.place.file, at), name);
                            found.push(Embedded { text: text.into(), place });
                        }
                    });
                }
                if found.len() == before {
                    others.push(named(resource));
                }
            }
            None => {
                let message = "a Kubernetes resource needs an apiVersion and a kind; this one lacks them".to_owned();
                file.add(Severity::Error, resource.position, FieldPath::Root, message);
            }
        });
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let more = others.len().saturating_sub(NAMED);
    others.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(format!("no ConfigMap or Secret in this manifest holds rules: there are {}{more}", others.join(", ")))
}

/// The resources to read the rules from. A manifest of a deployment also holds candidate rules, dashboards and files of
/// other programs.
enum Wanted<'n> {
    /// A workload in the manifest mounts these as its rules.
    Mounted(BTreeSet<&'n str>),
    /// No workload says: all but the candidates.
    AllBut(BTreeSet<&'n str>),
}

impl<'n> Wanted<'n> {
    fn of(roots: &'n [Node<'n>]) -> Wanted<'n> {
        let (mut rules, mut candidates, mut holders) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for root in roots.iter().filter(|root| !root.is_null()) {
            resources(root, &mut |resource| {
                let name = at(resource, &["metadata", "name"]).and_then(plain);
                if HOLDERS.iter().any(|holder| kind(resource) == Some(holder.kind)) {
                    holders.extend(name);
                    let component = at(resource, &["metadata", "labels", "app.kubernetes.io/component"]);
                    candidates.extend(name.filter(|_| component.and_then(plain) == Some("candidates")));
                }
                if let Some(pod) = at(resource, &["spec", "template", "spec"]) {
                    rules.extend(mounted(pod, "RULES"));
                    candidates.extend(mounted(pod, "CANDIDATE_RULES"));
                }
            });
        }
        rules.retain(|name| holders.contains(name));
        let others = || holders.iter().any(|name| !candidates.contains(name));
        match rules.is_empty() {
            false => Wanted::Mounted(rules),
            true if others() => Wanted::AllBut(candidates),
            // Only candidates are to be checked.
            true => Wanted::AllBut(BTreeSet::new()),
        }
    }

    fn has(&self, resource: &Node<'_>) -> bool {
        let name = at(resource, &["metadata", "name"]).and_then(plain).unwrap_or_default();
        match self {
            Wanted::Mounted(names) => names.contains(name),
            Wanted::AllBut(names) => !names.contains(name),
        }
    }
}

/// Returns the names of the ConfigMaps and Secrets in the folders that a variable of a pod names.
fn mounted<'n>(pod: &'n Node<'n>, variable: &str) -> Vec<&'n str> {
    let mut names = Vec::new();
    for container in items(pod, "containers") {
        let is_it = |entry: &&'n Node<'n>| text(entry, "name") == Some(variable);
        let folders = items(container, "env").find(is_it).and_then(|entry| text(entry, "value")).unwrap_or_default();
        for mount in items(container, "volumeMounts") {
            let is_inside = |folder: &str| {
                let path = text(mount, "mountPath");
                path.is_some_and(|path| Path::new(folder.trim()).starts_with(path) && !folder.trim().is_empty())
            };
            if folders.split(',').any(is_inside) {
                let volume = items(pod, "volumes").find(|volume| text(volume, "name") == text(mount, "name"));
                names.extend(volume.into_iter().flat_map(|volume| {
                    let projected = field(volume, "projected").into_iter().flat_map(|of| items(of, "sources"));
                    projected.chain([volume]).filter_map(source)
                }));
            }
        }
    }
    names
}

/// Returns the name of the ConfigMap or Secret that a volume shows.
fn source<'n>(volume: &'n Node<'n>) -> Option<&'n str> {
    let paths: [&[&str]; 3] = [&["configMap", "name"], &["secret", "secretName"], &["secret", "name"]];
    paths.iter().find_map(|path| at(volume, path).and_then(plain))
}

/// Returns the items of a list; none if there is no such list.
fn items<'n>(node: &'n Node<'n>, key: &str) -> impl Iterator<Item = &'n Node<'n>> {
    let items = match field(node, key).map(|list| &list.value) {
        Some(Value::List(items)) => &items[..],
        _ => &[],
    };
    items.iter()
}

fn at<'n>(node: &'n Node<'n>, path: &[&str]) -> Option<&'n Node<'n>> {
    path.iter().try_fold(node, |node, key| field(node, key))
}

/// Decodes base64, if it contains a text.
fn decoded(encoded: &str) -> Option<String> {
    let encoded: String = encoded.split_whitespace().collect();
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

/// Calls `each` with a resource, or with each resource of a list.
fn resources<'n>(node: &'n Node<'n>, each: &mut impl FnMut(&'n Node<'n>)) {
    match (kind(node), field(node, "items").map(|items| &items.value)) {
        (Some(kind), Some(Value::List(items))) if kind.ends_with("List") => {
            items.iter().for_each(|item| resources(item, each));
        }
        _ => each(node),
    }
}

/// Calls `each` with the name, the position and the contents of each file of a resource.
fn entries<'n>(resource: &'n Node<'n>, of: &str, mut each: impl FnMut(&'n str, Position, &'n str)) {
    if let Some(Value::Map(entries)) = field(resource, of).map(|data| &data.value) {
        for Entry { key, value, .. } in entries.iter() {
            if let (Value::Plain(name) | Value::Quoted(name), Value::Plain(text) | Value::Quoted(text)) =
                (&key.value, &value.value)
            {
                each(name, value.position, text);
            }
        }
    }
}

/// Returns whether a file contains rules. A resource can also hold other files, and only files with the right names are
/// read from a folder of rules.
fn is_rules((name, at): (&str, Position), text: &str, file: &mut File<'_>) -> bool {
    let begins = |line: &str| {
        let key = line.split(':').next().unwrap_or_default().trim_matches(['"', '\'', ' ', '{', '\t']);
        line.contains(':') && nearest(key, &["domain", "descriptors"]).is_some()
    };
    // A dashboard in JSON has a description in each panel.
    let top: Option<Map<String, serde_json::Value>> = serde_json::from_str(text).ok();
    let has_rules = match &top {
        Some(top) => top.keys().any(|key| nearest(key, &["domain", "descriptors"]).is_some()),
        None => text.lines().any(begins),
    };
    if !has_rules {
        return false;
    }
    if !is_rules_file(Path::new(name)) {
        let message = format!("{} is skipped in a folder: name rules files *.yaml, *.yml or *.json", quoted(name));
        file.add(Severity::Warning, at, FieldPath::Root, message);
    }
    true
}

/// Finds the place of a text in the manifest. The lines of a block (`|`) are lines of the manifest, apart from the
/// indentation.
fn place(file: &Arc<Path>, lines: &[&str], at: Position, text: &str) -> Place {
    let (blank, first) = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty()).unwrap_or_default();
    let shift = |above: usize| {
        let indent = lines.get(above + blank)?.strip_suffix(first)?;
        let is_there = |(line, number): (&str, usize)| {
            let whole = lines.get(number).copied().unwrap_or_default();
            line.trim().is_empty() || whole.strip_prefix(indent) == Some(line)
        };
        let is_block = indent.trim_matches(' ').is_empty() && text.lines().zip(above..).all(is_there);
        is_block.then(|| Place::block(file, above, indent.len()))
    };
    // A block has the position of its first line, or of the first that is not blank.
    let block = shift(at.line - 1).or_else(|| shift((at.line - 1).checked_sub(blank)?));
    block.unwrap_or_else(|| Place::text(file, at))
}

fn named(resource: &Node<'_>) -> String {
    let name = field(resource, "metadata").and_then(|metadata| text(metadata, "name"));
    let kind = kind(resource).unwrap_or_default();
    name.map_or_else(|| format!("a {}", quoted(kind)), |name| format!("{kind} {}", quoted(name)))
}

fn field<'n>(node: &'n Node<'n>, key: &str) -> Option<&'n Node<'n>> {
    let Value::Map(entries) = &node.value else { return None };
    let is_it =
        |entry: &&Entry<'_>| matches!(&entry.key.value, Value::Plain(name) | Value::Quoted(name) if name == key);
    entries.iter().rev().find(is_it).map(|entry| &entry.value)
}

fn text<'n>(node: &'n Node<'_>, key: &str) -> Option<&'n str> {
    plain(field(node, key)?)
}

fn plain<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match &node.value {
        Value::Plain(text) | Value::Quoted(text) => Some(text),
        Value::List(_) | Value::Visited(_) | Value::Map(_) => None,
    }
}
