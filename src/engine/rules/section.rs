//! Mappings in rules: their keys, and the type of each key's value.

/// A mapping and its known keys.
#[derive(Debug)]
pub struct Section {
    /// Name in messages.
    pub name: &'static str,
    /// Description for editors.
    pub about: &'static str,
    /// Its keys, in groups.
    pub(super) keys: &'static [&'static [Key]],
    /// The required keys.
    pub required: &'static [&'static str],
}

/// A key of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The type of its value.
    pub takes: Takes,
    /// Description for editors.
    pub about: &'static str,
    /// An effective value, as in a rules file.
    pub example: &'static str,
    /// Keys and algorithms that it conflicts with, each with the reason.
    pub conflicts: &'static [(&'static str, &'static str)],
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A text; a whole number or a truth value counts as the text that was written.
    Text,
    /// A required text.
    Name,
    /// A whole number.
    Number,
    /// A whole number below 2^53.
    Wide,
    /// A truth value.
    Flag,
    /// A length of time.
    Length,
    /// The name of a unit, in any letter case.
    Unit,
    /// One of these names.
    Choice(fn() -> Vec<&'static str>),
    /// A list of required texts.
    Names,
    /// A mapping of any keys.
    Mapping,
    /// Decimal numbers, nested in mappings of any keys.
    Prices,
    /// A mapping of known keys.
    One(&'static Section),
    /// A list of mappings of known keys.
    Many(&'static Section),
}

/// Declares a key without conflicts.
pub const fn key(name: &'static str, takes: Takes, about: &'static str) -> Key {
    Key { name, takes, about, example: "", conflicts: &[] }
}

impl Key {
    /// Sets the example, an effective value.
    pub(super) const fn example(self, example: &'static str) -> Key {
        Key { example, ..self }
    }

    /// Sets the keys and algorithms that it conflicts with.
    pub(super) const fn conflicts(self, conflicts: &'static [(&'static str, &'static str)]) -> Key {
        Key { conflicts, ..self }
    }
}

impl Section {
    /// Declares a mapping with these keys.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        keys: &'static [&'static [Key]],
        required: &'static [&'static str],
    ) -> Section {
        Section { name, about, keys, required }
    }

    /// Returns its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        self.keys.iter().copied().flatten()
    }

    /// Returns the key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Returns the names of its keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys().map(|key| key.name)
    }

    /// Returns whether this is the same section.
    pub fn is(&self, other: &Section) -> bool {
        std::ptr::eq(self, other)
    }
}
