//! Rules inside a Kubernetes manifest. `tollgate check` reads them in place, with the manifest's own lines. The service
//! does not: it reads the folder as which Kubernetes mounts a ConfigMap or a Secret.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

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
    for root in roots.iter().filter(|root| !root.is_null()) {
        resources(root, &mut |resource| match kind(resource) {
            Some(kind) => {
                let before = found.len();
                if let Some(holder) = HOLDERS.iter().find(|holder| holder.kind == kind) {
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
    if !text.lines().any(begins) {
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
    match &field(node, key)?.value {
        Value::Plain(text) | Value::Quoted(text) => Some(text),
        Value::List(_) | Value::Visited(_) | Value::Map(_) => None,
    }
}
