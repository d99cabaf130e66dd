//! A token of an administrator: the hash of it, who holds it, and what its holder may do.

use std::collections::BTreeSet;

use ring::digest::{SHA256, digest};

/// Most tokens in a file.
pub const MOST: usize = 1_000;

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256([u8; 32]);

/// What the holder of a token may do. Each role includes reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See everything.
    Read,
    /// Begin and end adjustments.
    Adjust,
    /// Reset counters and lift bans.
    Reset,
    /// Top up and refund budgets.
    Credit,
    /// Put candidate rules in force.
    Promote,
    /// Everything, as with the `ADMIN_TOKEN`.
    Admin,
}

/// A token of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    /// The name of its holder.
    pub name: String,
    /// Its hash.
    pub sha256: Sha256,
    /// The roles of its holder, at least one.
    pub roles: BTreeSet<Role>,
    /// The domains that its holder may change; `None` for all.
    pub domains: Option<BTreeSet<String>>,
}

/// What a file of tokens is held to.
#[derive(Clone, Debug)]
pub struct TokenOptions<'o> {
    /// Fewest characters of a token that the file contains itself.
    pub least_characters: usize,
    /// Tokens of settings, which must not be in the file as well.
    pub others: &'o [(&'static str, Sha256)],
}

impl NamedToken {
    /// Longest name.
    pub const LONGEST_NAME: usize = 64;
}

impl Role {
    /// Names of all roles.
    pub const NAMES: [&'static str; 6] = ["read", "adjust", "reset", "credit", "promote", "admin"];

    /// Parses a name, one of [`Role::NAMES`].
    pub fn parse(name: &str) -> Option<Role> {
        let roles = [Role::Read, Role::Adjust, Role::Reset, Role::Credit, Role::Promote, Role::Admin];
        roles.into_iter().find(|role| role.name() == name)
    }

    /// Returns the name, one of [`Role::NAMES`].
    pub const fn name(self) -> &'static str {
        Role::NAMES[self as usize]
    }
}

impl Sha256 {
    /// Hashes a token.
    pub fn of(token: &[u8]) -> Sha256 {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Sha256(hash)
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Sha256> {
        let digits: Vec<u8> =
            text.chars().map(|char| char.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)).collect();
        (digits.len() == 64).then_some(())?;
        bytes.try_into().ok().map(Sha256)
    }
}

/// Hides the hash: nobody needs it in a log.
impl std::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sha256(..)")
    }
}
