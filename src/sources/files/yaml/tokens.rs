//! The file of administrators' tokens: their names, roles and domains. What would be a warning in rules is a mistake
//! here: a key that is ignored could give more rights than its author meant.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::document::{self, Entry, Node, Visitor};
use super::fields::{File, Spot};
use super::manifest;
use super::place::Place;
use super::refuse;
use crate::engine::rules::config::{FieldPath, Raw, Text};
use crate::engine::rules::report::{Position, Report, Severity, quoted, unknown};
use crate::engine::rules::section::{Section, Takes, key};
use crate::sources::files::token::{MOST, NamedToken, Role, Sha256, TokenOptions};

static ROOT: Section = Section::new(
    "the file's top level",
    "The tokens of administrators.",
    &[&[key("tokens", Takes::Many(&TOKEN), "The tokens.")]],
    &["tokens"],
);

static TOKEN: Section = Section::new(
    "a token",
    "A token, and what its holder may do.",
    &[&[
        key("name", Takes::Name, "The name of its holder."),
        key("sha256", Takes::Text, "The hash of the token."),
        key("token", Takes::Text, "The token itself, in place of its hash."),
        key("roles", Takes::Text, "What its holder may do."),
        key("domains", Takes::Text, "The domains that its holder may change."),
    ]],
    &["name", "roles"],
);

/// Receives nothing: the tree of the file is complete.
struct Whole;

impl<'a> Visitor<'a> for Whole {
    fn begin(&mut self, _before: &[Entry<'a>]) -> usize {
        0
    }

    fn item(&mut self, _item: Node<'a>) {}

    fn end(&mut self) {}

    fn read(&mut self, _bytes: usize) {}
}

/// Reads the tokens of a file, and adds its mistakes to the report.
pub(in crate::sources::files) fn tokens(
    name: &Path,
    text: &str,
    options: &TokenOptions<'_>,
    report: &mut Report,
) -> Vec<NamedToken> {
    let mut file = File { place: Place::whole(name), report };
    let document = match document::parse(text, text.len() as u64, &mut Whole) {
        Ok(document) => document,
        Err(error) => {
            refuse(&mut file, text, &error);
            return Vec::new();
        }
    };
    let start = Position { line: 1, column: 1 };
    let mut wrong = |position, message: &str| file.add(Severity::Error, position, FieldPath::Root, message.to_owned());
    if let Some(position) = document.second {
        wrong(position, "a second YAML document begins here: write all tokens into the first one");
    }
    let Some(root) = document.root.filter(|root| !root.is_null()) else {
        wrong(start, "the file is empty; write tokens: [], if there are none");
        return Vec::new();
    };
    if let Some(kind) = manifest::kind(&root) {
        let message = format!("this is a Kubernetes {}: mount it as a volume, and name the file in it", quoted(kind));
        wrong(start, &message);
        return Vec::new();
    }
    let root = Spot { node: &root, path: FieldPath::Root };
    let Some(fields) = file.fields(root, &ROOT) else { return Vec::new() };
    let Some(list) = fields.get("tokens") else {
        file.error(root, "tokens is missing: a list of tokens; write tokens: [], if there are none");
        return Vec::new();
    };
    let Some(items) = file.items(list) else { return Vec::new() };
    if items.len() > MOST {
        file.error(list, format!("has {} tokens, and may have {MOST}", items.len()));
        return Vec::new();
    }
    let mut reader = Reader { file, options, names: HashMap::new(), hashes: HashMap::new() };
    let items = items.iter().enumerate();
    items.filter_map(|(index, node)| reader.token(Spot { node, path: list.path.item(index) })).collect()
}

struct Reader<'r> {
    file: File<'r>,
    options: &'r TokenOptions<'r>,
    /// Lines of the names so far.
    names: HashMap<String, usize>,
    /// Lines of the tokens so far.
    hashes: HashMap<Sha256, usize>,
}

impl Reader<'_> {
    /// Reads a token. Returns `None` if it has reported a mistake.
    fn token(&mut self, spot: Spot<'_, '_>) -> Option<NamedToken> {
        let fields = self.file.fields(spot, &TOKEN)?;
        let missing = |file: &mut File<'_>, key, what| {
            if fields.missing::<()>(key).is_missing() {
                file.error(spot, format!("{key} is missing: {what}"));
            }
        };
        let name = match fields.get("name") {
            Some(of) => self.name(of),
            None => {
                missing(&mut self.file, "name", "the name of who holds the token, for the audit trail");
                None
            }
        };
        let sha256 = match (fields.get("sha256"), fields.get("token")) {
            (Some(_), Some(of)) => {
                self.file.error(of, "the token has a sha256 as well: leave one of them out");
                None
            }
            (Some(of), None) => self.sha256(of),
            (None, Some(of)) => self.plain(of),
            (None, None) => {
                let what = "the hash of the token, from printf %s TOKEN | sha256sum; or write the token itself";
                missing(&mut self.file, "sha256", what);
                None
            }
        };
        let roles = match fields.get("roles") {
            Some(of) => self.roles(of),
            None => {
                missing(&mut self.file, "roles", &format!("a list of {}", Role::NAMES.join(", ")));
                None
            }
        };
        let domains = fields.get("domains").map(|of| self.domains(of, roles.as_ref()));
        let domains = match domains {
            None => None,
            Some(read) => Some(read?),
        };
        Some(NamedToken { name: name?, sha256: sha256?, roles: roles?, domains })
    }

    fn text<'n>(&mut self, of: Spot<'n, '_>) -> Option<Text<'n>> {
        match self.file.text(of) {
            Raw::Given(text) => Some(text),
            Raw::Missing | Raw::Unreadable => None,
        }
    }

    fn name(&mut self, of: Spot<'_, '_>) -> Option<String> {
        let name = self.text(of)?.into_owned();
        let is_plain = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
        if name.len() > NamedToken::LONGEST_NAME || !name.chars().all(is_plain) {
            self.file.error(of, "use up to 64 letters, digits, dots, dashes and underscores");
            return None;
        }
        if name.is_empty() {
            self.file.error(of, "is empty: the audit trail would not say who has changed something");
            return None;
        }
        // The audit trail names the tokens of these settings so.
        if ["ADMIN_TOKEN", "ADMIN_READ_TOKEN"].contains(&&*name) {
            self.file.error(of, "is the name of a setting, whose token it would be mistaken for: choose another name");
            return None;
        }
        match self.names.insert(name.clone(), of.node.position.line) {
            Some(line) => {
                self.file.error(of, format!("the token of line {line} has this name, too: give each its own"));
                None
            }
            None => Some(name),
        }
    }

    fn sha256(&mut self, of: Spot<'_, '_>) -> Option<Sha256> {
        let text = self.text(of)?;
        let Some(hash) = Sha256::parse(&text) else {
            self.file.error(of, "must be 64 hexadecimal digits, from printf %s TOKEN | sha256sum");
            return None;
        };
        if hash == Sha256::of(b"") || hash == Sha256::of(b"\n") {
            self.file.error(of, "is the hash of an empty text: hash a token, with printf %s TOKEN | sha256sum");
            return None;
        }
        self.unique(of, hash)
    }

    fn plain(&mut self, of: Spot<'_, '_>) -> Option<Sha256> {
        let text = self.text(of)?;
        let (length, least) = (text.chars().count(), self.options.least_characters);
        if length < least {
            let message = format!("has {length} characters, which is too easy to guess: it needs at least {least}");
            self.file.error(of, message);
            return None;
        }
        if text.trim() != text || text.contains(char::is_control) {
            self.file.error(of, "no HTTP header can carry it: leave out spaces at its ends, line ends and tabs");
            return None;
        }
        self.unique(of, Sha256::of(text.as_bytes()))
    }

    fn unique(&mut self, of: Spot<'_, '_>, hash: Sha256) -> Option<Sha256> {
        let other = self.options.others.iter().find(|(_, other)| *other == hash);
        let message = match (other, self.hashes.insert(hash, of.node.position.line)) {
            (Some((setting, _)), _) => format!("is the {setting}, too: choose another token"),
            (None, Some(line)) => format!("is the token of line {line}, too: give each name its own"),
            (None, None) => return Some(hash),
        };
        self.file.error(of, message);
        None
    }

    fn roles(&mut self, of: Spot<'_, '_>) -> Option<BTreeSet<Role>> {
        let items = self.file.items(of)?;
        if items.is_empty() {
            self.file.error(of, format!("an empty list permits nothing: name some of {}", Role::NAMES.join(", ")));
            return None;
        }
        let mut roles = Some(BTreeSet::new());
        for (index, node) in items.iter().enumerate() {
            let spot = Spot { node, path: of.path.item(index) };
            let role = self.text(spot).and_then(|name| {
                let role = Role::parse(&name);
                if role.is_none() {
                    self.file.error(spot, unknown("role", &name, &Role::NAMES));
                }
                role
            });
            match role {
                Some(role) => roles.as_mut().map(|roles| roles.insert(role)),
                None => roles.take().map(|_| false),
            };
        }
        roles
    }

    fn domains(&mut self, of: Spot<'_, '_>, roles: Option<&BTreeSet<Role>>) -> Option<BTreeSet<String>> {
        let items = self.file.items(of)?;
        let wrong = match roles {
            _ if items.is_empty() => Some("an empty list permits no domain: name some, or leave domains out for all"),
            Some(roles) if roles.contains(&Role::Admin) => {
                Some("the role admin is for everything: leave domains out, or name the roles adjust and reset")
            }
            Some(roles) if roles.contains(&Role::Promote) => {
                Some("the role promote replaces the rules of all domains: leave domains out")
            }
            Some(roles) if [Role::Adjust, Role::Credit, Role::Reset].iter().all(|role| !roles.contains(role)) => Some(
                "limits what the roles adjust, credit and reset may change, and read sees all domains: leave it out",
            ),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.file.error(of, wrong);
            return None;
        }
        let mut domains = BTreeSet::new();
        for (index, node) in items.iter().enumerate() {
            let spot = Spot { node, path: of.path.item(index) };
            let domain = self.text(spot)?.into_owned();
            if domain.is_empty() {
                self.file.error(spot, "must be the name of a domain");
                return None;
            }
            domains.insert(domain);
        }
        Some(domains)
    }
}
