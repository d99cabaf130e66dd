//! Clients of the administrators' paths: who each is, and what it may do, by its token.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::watch;

use super::admin::{Refusal, refuse};
use crate::sources::files::tokens::{NamedToken, Role, Sha256};

/// The tokens that open the administrators' paths.
#[derive(Clone, Debug, Default)]
pub struct AdminTokens {
    /// Token that permits everything; `None` if no client has such a token.
    pub admin: Option<String>,
    /// Token that permits reading only.
    pub reader: Option<String>,
    /// Tokens with names.
    pub named: Vec<NamedToken>,
}

/// A client, by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client(Arc<Holder>);

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    /// Name of the token; `None` for a token of a setting.
    name: Option<String>,
    /// Setting of a token without a name.
    setting: &'static str,
    roles: BTreeSet<Role>,
    /// Domains that the client may change; `None` for all.
    domains: Option<BTreeSet<String>>,
}

/// A change that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'c> {
    /// Begin or end adjustments of a domain; `None` before it is known.
    Adjust(Option<&'c str>),
    /// Begin or end an adjustment of all domains.
    AdjustEverything,
    /// Reset counters of a domain; `None` before it is known.
    Reset(Option<&'c str>),
    /// Credit hits to budgets of a domain.
    Credit(&'c str),
    /// Change the level of the log.
    LogLevel,
    /// Put candidate rules in force.
    Promote,
}

impl Client {
    fn of_setting(setting: &'static str, role: Role) -> Client {
        Client(Arc::new(Holder { name: None, setting, roles: BTreeSet::from([role]), domains: None }))
    }

    /// Returns a client with this role.
    #[cfg(test)]
    pub(super) fn of_role(role: Role) -> Client {
        Client::of_setting("ADMIN_TOKEN", role)
    }

    fn named(NamedToken { name, roles, domains, .. }: &NamedToken) -> Client {
        let (name, setting) = (Some(name.clone()), "ADMIN_TOKENS_FILE");
        Client(Arc::new(Holder { name, setting, roles: roles.clone(), domains: domains.clone() }))
    }

    /// Returns the name of its token, if it has one.
    pub(super) fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Returns the most powerful of its roles.
    pub(super) fn role(&self) -> Role {
        let roles = [Role::Admin, Role::Promote, Role::Credit, Role::Adjust, Role::Reset];
        roles.into_iter().find(|role| self.0.roles.contains(role)).unwrap_or(Role::Read)
    }

    /// Returns whether it may change anything.
    pub(super) fn may_change(&self) -> bool {
        self.role() != Role::Read
    }

    /// Returns whether it has a role, which `admin` includes.
    pub(super) fn has(&self, role: Role) -> bool {
        self.0.roles.contains(&role) || self.0.roles.contains(&Role::Admin)
    }

    /// Returns the domains that it may change; `None` for all.
    pub(super) fn domains(&self) -> Option<&BTreeSet<String>> {
        self.0.domains.as_ref()
    }

    /// Returns the name for the audit trail.
    pub(super) fn holder(&self) -> &str {
        self.name().unwrap_or(self.0.setting)
    }

    /// Returns who makes a change. A client cannot deny the name of its token, and may add one, such as that of the
    /// person who uses it: `ops (as ann)`.
    pub(super) fn who(&self, given: &str) -> String {
        match self.name() {
            None => given.to_owned(),
            Some(name) if given.trim().is_empty() || given == name => name.to_owned(),
            // As a repeated request gives it.
            Some(name) if given.strip_prefix(name).is_some_and(|rest| rest.starts_with(" (as ")) => given.to_owned(),
            Some(name) => format!("{name} (as {given})"),
        }
    }

    /// Refuses a change that it may not make.
    pub(super) fn may(&self, change: Change<'_>) -> Result<(), Refusal> {
        let (role, what) = match change {
            Change::Adjust(_) | Change::AdjustEverything => (Role::Adjust, "adjust limits"),
            Change::Reset(_) => (Role::Reset, "reset counters"),
            Change::Credit(_) => (Role::Credit, "credit budgets"),
            Change::LogLevel => (Role::Admin, "change the level of the log"),
            Change::Promote => (Role::Promote, "promote candidate rules"),
        };
        if !self.has(role) {
            let reason = match self.name() {
                None => "the ADMIN_READ_TOKEN permits only reading: send the ADMIN_TOKEN".to_owned(),
                Some(name) => format!(
                    "the token {name} may not {what}: it needs the role {} in the file of ADMIN_TOKENS_FILE",
                    role.name()
                ),
            };
            return Err(refuse(StatusCode::FORBIDDEN, reason));
        }
        let (Some(name), Some(domains)) = (self.name(), self.domains()) else { return Ok(()) };
        let wanted = match change {
            Change::Adjust(Some(domain)) | Change::Reset(Some(domain)) | Change::Credit(domain)
                if !domains.contains(domain) =>
            {
                format!("domain {domain}")
            }
            Change::AdjustEverything => "everything".to_owned(),
            _ => return Ok(()),
        };
        let listed = domains.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        Err(refuse(StatusCode::FORBIDDEN, format!("the token {name} may {what} of {listed} only, not of {wanted}")))
    }
}

/// The clients, by the hashes of their tokens.
#[derive(Debug, PartialEq, Eq)]
struct Clients(HashMap<Sha256, Client>);

/// The clients of now. The tokens with names change while the process runs.
#[derive(Clone, Debug)]
pub struct KnownClients {
    /// Those of the settings, which stay.
    of_settings: Arc<[(Sha256, Client)]>,
    now: watch::Sender<Arc<Clients>>,
}

/// Follows whether a client keeps its rights.
pub(super) struct Standing {
    token: Sha256,
    client: Client,
    now: watch::Receiver<Arc<Clients>>,
}

impl KnownClients {
    pub(super) fn new(AdminTokens { admin, reader, named }: &AdminTokens) -> KnownClients {
        let of_setting = |token: &Option<String>, setting, role| {
            token.as_ref().map(|token| (Sha256::of(token.as_bytes()), Client::of_setting(setting, role)))
        };
        let admin = of_setting(admin, "ADMIN_TOKEN", Role::Admin);
        let reader = of_setting(reader, "ADMIN_READ_TOKEN", Role::Read);
        let of_settings = admin.into_iter().chain(reader).collect();
        let clients = KnownClients { of_settings, now: watch::Sender::new(Arc::new(Clients(HashMap::new()))) };
        clients.replace(named);
        clients
    }

    /// Replaces the tokens with names. A client whose token is gone, or has other rights, loses its stream of events.
    pub fn replace(&self, named: &[NamedToken]) {
        let named = named.iter().map(|token| (token.sha256, Client::named(token)));
        let clients = named.chain(self.of_settings.iter().cloned()).collect();
        self.now.send_replace(Arc::new(Clients(clients)));
    }

    /// Returns the client of this token; `None` if it is not valid. Compares hashes: the response time then reveals
    /// nothing about a token.
    pub(super) fn of(&self, token: &[u8]) -> Option<Standing> {
        let (token, now) = (Sha256::of(token), self.now.subscribe());
        let client = now.borrow().0.get(&token).cloned()?;
        Some(Standing { token, client, now })
    }
}

impl Standing {
    /// Returns the client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until the client has lost its token or has other rights.
    pub(super) async fn lost(&self) {
        let Standing { token, client, now } = self;
        let mut now = now.clone();
        // Fails only if the process is ending.
        let _ = now.wait_for(|clients| clients.0.get(token) != Some(client)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(roles: &[Role], domains: Option<&[&str]>) -> Client {
        let domains = domains.map(|all| all.iter().map(|domain| (*domain).to_owned()).collect());
        let sha256 = Sha256::of(b"x");
        Client::named(&NamedToken { name: "ops".to_owned(), sha256, roles: roles.iter().copied().collect(), domains })
    }

    fn refused(client: &Client, change: Change<'_>) -> Option<String> {
        client.may(change).err().map(|refusal| refusal.reason().to_owned())
    }

    #[test]
    fn a_role_permits_its_changes_and_no_other() {
        let all = [
            Change::Adjust(Some("shop")),
            Change::AdjustEverything,
            Change::Reset(Some("shop")),
            Change::Credit("shop"),
            Change::Promote,
            Change::LogLevel,
        ];
        for (roles, permitted) in [
            (&[Role::Read][..], [false, false, false, false, false, false]),
            (&[Role::Adjust], [true, true, false, false, false, false]),
            (&[Role::Reset], [false, false, true, false, false, false]),
            (&[Role::Credit], [false, false, false, true, false, false]),
            (&[Role::Promote], [false, false, false, false, true, false]),
            (&[Role::Read, Role::Adjust, Role::Reset], [true, true, true, false, false, false]),
            (&[Role::Admin], [true, true, true, true, true, true]),
        ] {
            let client = client(roles, None);
            assert_eq!(all.map(|change| client.may(change).is_ok()), permitted, "{roles:?}");
            assert_eq!(client.may_change(), permitted.contains(&true));
        }
        let said = refused(&client(&[Role::Adjust], None), Change::Reset(None)).unwrap();
        assert!(said.contains("the token ops may not reset counters: it needs the role reset"), "{said}");
    }

    #[test]
    fn domains_bound_every_change_and_are_named() {
        let client = client(&[Role::Adjust, Role::Credit, Role::Reset], Some(&["api", "shop"]));
        for change in
            [Change::Adjust(Some("shop")), Change::Reset(Some("api")), Change::Adjust(None), Change::Credit("api")]
        {
            assert_eq!(refused(&client, change), None, "{change:?}");
        }
        for (change, said) in [
            (Change::Adjust(Some("Shop")), "the token ops may adjust limits of api, shop only, not of domain Shop"),
            (Change::AdjustEverything, "the token ops may adjust limits of api, shop only, not of everything"),
            (Change::Credit("x"), "the token ops may credit budgets of api, shop only, not of domain x"),
            (Change::Reset(Some("")), "the token ops may reset counters of api, shop only, not of domain "),
        ] {
            assert_eq!(refused(&client, change).as_deref(), Some(said));
        }
    }

    #[test]
    fn who_is_the_name_of_the_token_and_what_was_given_is_told_beside_it() {
        let named = client(&[Role::Adjust], None);
        for (given, who) in [
            ("", "ops"),
            (" ", "ops"),
            ("ops", "ops"),
            ("ann", "ops (as ann)"),
            ("ops (as ann)", "ops (as ann)"),
            ("opsy", "ops (as opsy)"),
        ] {
            assert_eq!(named.who(given), who);
        }
        assert_eq!(Client::of_setting("ADMIN_TOKEN", Role::Admin).who("ann"), "ann");
    }

    #[tokio::test]
    async fn a_client_notices_that_its_token_is_gone_or_has_other_rights() {
        let token = |roles: &[Role], secret: &[u8]| NamedToken {
            name: "ops".to_owned(),
            sha256: Sha256::of(secret),
            roles: roles.iter().copied().collect(),
            domains: None,
        };
        let first = token(&[Role::Adjust], b"first");
        let tokens = AdminTokens { admin: Some("the admin".to_owned()), named: vec![first.clone()], reader: None };
        let clients = KnownClients::new(&tokens);
        assert!(clients.of(b"first ").is_none() && clients.of(b"").is_none());
        let (ops, admin) = (clients.of(b"first").unwrap(), clients.of(b"the admin").unwrap());
        let (mut ops_is, mut admin_is) = (tokio_test(ops.lost()), tokio_test(admin.lost()));
        clients.replace(&[first.clone(), token(&[Role::Read], b"second")]);
        assert!(!ops_is.lost().await, "it stays as it was");
        clients.replace(&[token(&[Role::Read], b"first")]);
        assert!(ops_is.lost().await && !admin_is.lost().await);
        clients.replace(&[]);
        assert!(clients.of(b"first").is_none() && !admin_is.lost().await);
    }

    /// A future that a test asks whether it is done.
    struct Asked<F>(std::pin::Pin<Box<F>>, bool);

    fn tokio_test<F: Future<Output = ()>>(future: F) -> Asked<F> {
        Asked(Box::pin(future), false)
    }

    impl<F: Future<Output = ()>> Asked<F> {
        async fn lost(&mut self) -> bool {
            if !self.1 {
                self.1 = futures_util::poll!(self.0.as_mut()).is_ready();
            }
            self.1
        }
    }
}
