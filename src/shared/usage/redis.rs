//! The pages of usage in Redis, read where they are written: at the master, and in a cluster at every master, one after
//! the other. Keys are scanned a hundred at a time over a separate connection, so no decision waits longer than one
//! such step takes.
//!
//! The position of a scan is a number that is valid only on one server. A cursor therefore identifies the server, and
//! the slots of each server. If these have changed, the reader must start again.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use deadpool_redis::redis::{Cmd, Value, cmd};
use tokio::sync::Mutex;

use super::by_name::Place as NamedPlace;
use super::reading::{Batch, UsageReadError};
use crate::engine::check::StoreError;
use crate::engine::check::key::escape;
use crate::engine::usage::page::{MARK, Page, PageName, Scope};
use crate::engine::usage::{Time, Totals};
use crate::store::redis::doctor::cause::{Cause, Rights};
use crate::store::redis::doctor::identity::Identity;
use crate::store::redis::link::connection::{Call, Connection, Fault};
use crate::store::redis::script::slot;
use crate::store::redis::topology::address::Place;
use crate::store::redis::topology::{self, Dialer, Layout, Reach, Route};

/// Number of keys that Redis scans in one step.
const KEYS: u32 = 100;

/// The most steps for one answer.
const SCANS: usize = 100;

/// Number of pages after which an answer is complete.
const PAGES: usize = 500;

/// Number of bytes after which an answer is complete.
const BYTES: usize = 1024 * 1024;

/// The field of a page with the full tag of the counter's name.
const TAG: &[u8] = b"tag";

/// The pages of a Redis, or of two.
pub struct RedisUsage {
    main: OneRedis,
    per_second: Option<OneRedis>,
}

/// The pages of one Redis.
struct OneRedis {
    /// The name of the Redis.
    name: &'static str,
    route: Route,
    /// One connection for each master, so that several readers do not close each other's. Answers are made one at a
    /// time.
    links: Mutex<Links>,
}

/// A connection to a master.
struct Link {
    connection: Connection,
    /// Identifies the server for as long as it runs.
    server: u64,
}

/// Connections by the place of the master, which is `None` outside a cluster.
type Links = HashMap<Option<Place>, Link>;

/// The position of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Index of the Redis: the first or the second.
    source: usize,
    /// Index of the master.
    node: usize,
    /// The cursor of the master's scan; 0 at the beginning.
    scan: u64,
    /// A hash of the masters and their slots; 0 before the first read.
    layout: u64,
    /// Identifies the server; 0 before the first read.
    server: u64,
}

/// A master to ask.
struct Master {
    dialer: Option<Dialer>,
    place: Option<Place>,
    /// Number of masters.
    of: usize,
    layout: u64,
}

impl RedisUsage {
    /// Returns the pages of the store over this route, without asking Redis yet.
    pub fn new(route: &Route) -> RedisUsage {
        let per_second = route.per_second.as_deref().map(|route| OneRedis::new("per_second", route));
        RedisUsage { main: OneRedis::new("main", route), per_second }
    }

    /// Returns some pages of one server, starting at the cursor.
    ///
    /// # Errors
    /// If the cursor does not exist or is no longer valid, or if Redis does not answer within the timeout of the
    /// configuration.
    pub async fn read(&self, scope: &Scope<'_>, cursor: Option<&str>) -> Result<Batch, UsageReadError> {
        let cursor = cursor.map_or(Ok(Cursor::default()), str::parse).map_err(|()| UsageReadError::Cursor)?;
        let sources: Vec<&OneRedis> = std::iter::once(&self.main).chain(&self.per_second).collect();
        let source = sources.get(cursor.source).ok_or(UsageReadError::Cursor)?;
        let (mut batch, next) = source.read(scope, cursor).await?;
        let next = next.or_else(|| {
            let another = Cursor { source: cursor.source + 1, ..Cursor::default() };
            (another.source < sources.len()).then_some(another)
        });
        batch.cursor = next.map(|next| next.to_string());
        Ok(batch)
    }

    /// Returns the pages with these names, which are in one slot of a cluster: those of one Redis. `next` is the place
    /// of the next ones.
    ///
    /// # Errors
    /// If Redis does not answer within the timeout of the configuration.
    pub(super) async fn read_named(
        &self,
        names: Vec<String>,
        (place, next): (NamedPlace, Option<NamedPlace>),
    ) -> Result<Batch, UsageReadError> {
        let sources: Vec<&OneRedis> = std::iter::once(&self.main).chain(&self.per_second).collect();
        let source = sources.get(place.source).ok_or(UsageReadError::Cursor)?;
        let mut batch = source.read_named(&names).await?;
        let another = place.source + 1;
        let next = next.or((another < sources.len()).then(|| NamedPlace::first_of(another)));
        batch.cursor = next.map(|next| next.to_string());
        Ok(batch)
    }
}

/// What is read of a node.
#[derive(Clone, Copy)]
enum Reading<'r> {
    /// What a scan finds from this position on.
    Scan(&'r Scope<'r>, Cursor),
    /// The pages with these names.
    Named(&'r [String]),
}

impl OneRedis {
    fn new(name: &'static str, route: &Route) -> OneRedis {
        OneRedis { name, route: route.clone(), links: Mutex::default() }
    }

    /// Returns some pages of one master, and the next position in this Redis.
    async fn read(&self, scope: &Scope<'_>, cursor: Cursor) -> Result<(Batch, Option<Cursor>), UsageReadError> {
        let mut links = self.links.lock().await;
        let node = self.node(&cursor, &mut links).await?;
        let (batch, scan, server) = self.read_twice(&mut links, &node, Reading::Scan(scope, cursor)).await?;
        let layout = node.layout;
        let next = match scan {
            0 if cursor.node + 1 < node.of => Some(Cursor { node: cursor.node + 1, scan, layout, server: 0, ..cursor }),
            0 => None,
            scan => Some(Cursor { scan, layout, server, ..cursor }),
        };
        Ok((batch, next))
    }

    /// Returns the pages with these names, which are in one slot.
    async fn read_named(&self, names: &[String]) -> Result<Batch, UsageReadError> {
        let mut links = self.links.lock().await;
        let node = match (&self.route.reach, names.first()) {
            (Reach::Cluster(known), Some(name)) => {
                let layout = topology::survey(known, &self.route.access, &self.route.config).await;
                let layout = layout.map_err(|cause| StoreError::from(Fault::Connect(cause)))?;
                let owner = layout.owner(slot::of(name));
                let owner = owner.ok_or_else(|| StoreError::from(Fault::Connect(Cause::ClusterDown)))?;
                let dialer = Some(topology::node_dialer(owner.place.clone(), &self.route.access));
                Master { dialer, place: Some(owner.place.clone()), of: 1, layout: 0 }
            }
            // No names are in any node, so the cursor's first one says the time.
            (Reach::Cluster(_), None) => self.node(&Cursor::default(), &mut links).await?,
            (Reach::One(_), _) => Master { dialer: None, place: None, of: 1, layout: 0 },
        };
        Ok(self.read_twice(&mut links, &node, Reading::Named(names)).await?.0)
    }

    /// Reads from this node, and once more if a connection of before is lost.
    async fn read_twice(
        &self,
        links: &mut Links,
        node: &Master,
        reading: Reading<'_>,
    ) -> Result<(Batch, u64, u64), UsageReadError> {
        let is_new = !links.contains_key(&node.place);
        let read = match self.read_at(links, node, reading).await {
            // Redis or a proxy has closed the connection meanwhile, or the master has moved.
            Err(Failure::Fault(Fault::Lost(_))) if !is_new => self.read_at(links, node, reading).await,
            read => read,
        };
        read.map_err(|failure| match failure {
            Failure::Changed | Failure::Fault(Fault::Elsewhere(_)) => UsageReadError::Changed,
            Failure::Fault(fault) => UsageReadError::Store(self.with_grant(fault).into()),
        })
    }

    /// Returns the master at the cursor. Drops connections to nodes that are masters no more.
    async fn node(&self, cursor: &Cursor, links: &mut Links) -> Result<Master, UsageReadError> {
        let Route { config, access, reach, .. } = &self.route;
        let Reach::Cluster(known) = reach else {
            let is_there = cursor.node == 0 && cursor.layout == 0;
            return is_there
                .then_some(Master { dialer: None, place: None, of: 1, layout: 0 })
                .ok_or(UsageReadError::Changed);
        };
        let layout = topology::survey(known, access, config).await;
        let mut layout = layout.map_err(|cause| StoreError::from(Fault::Connect(cause)))?;
        // Makes the order independent of the node that lists them.
        layout.masters.sort_by_key(|master| master.place.to_string());
        let is_master = |place: &Place| layout.masters.iter().any(|master| master.place == *place);
        links.retain(|place, _| place.as_ref().is_some_and(is_master));
        let known = identify(&layout);
        let is_same = cursor.layout == known || cursor.layout == 0 && cursor.node == 0;
        let master = layout.masters.get(cursor.node).filter(|_| is_same).ok_or(UsageReadError::Changed)?;
        let dialer = topology::node_dialer(master.place.clone(), access);
        Ok(Master { dialer: Some(dialer), place: Some(master.place.clone()), of: layout.masters.len(), layout: known })
    }

    /// Returns some pages of this node, the cursor of its scan, and which server it is. Drops a connection that fails.
    async fn read_at(
        &self,
        links: &mut Links,
        node: &Master,
        reading: Reading<'_>,
    ) -> Result<(Batch, u64, u64), Failure> {
        let is_current = |link: &Link| self.route.moved_from(link.connection.place()).is_none();
        let link = match links.remove(&node.place).filter(is_current) {
            Some(link) => link,
            None => self.connect(node).await?,
        };
        if let Reading::Scan(_, cursor) = reading
            && cursor.scan != 0
            && cursor.server != link.server
        {
            return Err(Failure::Changed);
        }
        let now = self.now(&link.connection).await?;
        let mut batch = Batch { pages: Vec::new(), store: self.name, now, cursor: None };
        let scan = match reading {
            Reading::Scan(scope, cursor) => self.scan_some(&link.connection, (scope, cursor.scan), &mut batch).await?,
            Reading::Named(names) => {
                self.take(&link.connection, names.to_vec(), &mut batch).await?;
                0
            }
        };
        // A previous master may have missed the latest pages.
        if let Some(why) = self.route.moved_from(link.connection.place()) {
            return Err(Fault::Lost(why).into());
        }
        let server = link.server;
        links.insert(node.place.clone(), link);
        Ok((batch, scan, server))
    }

    /// Adds pages that a scan finds until they suffice for an answer, and returns the cursor of the scan.
    async fn scan_some(
        &self,
        connection: &Connection,
        (scope, mut scan): (&Scope<'_>, u64),
        batch: &mut Batch,
    ) -> Result<u64, Fault> {
        let mut bytes = 0;
        for _ in 0..SCANS {
            let names;
            (scan, names) = self.scan(connection, scan, scope).await?;
            bytes += self.take(connection, names, batch).await?;
            if scan == 0 || batch.pages.len() >= PAGES || bytes >= BYTES {
                break;
            }
        }
        Ok(scan)
    }

    async fn connect(&self, node: &Master) -> Result<Link, Fault> {
        let Route { config, reach, .. } = &self.route;
        let dialer = match (&node.dialer, reach) {
            (Some(dialer), _) | (None, Reach::One(dialer)) => dialer,
            (None, Reach::Cluster(_)) => return Err(Fault::Connect(Cause::ClusterDown)),
        };
        let dialed = dialer.connect(config.timeout).await.map_err(Fault::Connect)?;
        let connection = Connection::new(dialed, 0);
        let run_id = match connection.send(cmd("INFO")).wait(self.route.config.timeout).await {
            Ok(info) => Identity::read(&String::from_utf8_lossy(&info)).get("run_id").map(hash),
            Err(Fault::Refused(_) | Fault::Answer) => None,
            Err(fault) => return Err(fault),
        };
        // If the server does not reveal its identity, it is unknown whether another connection leads to the same
        // server.
        let server = run_id.unwrap_or_else(|| fastrand::u64(1..));
        Ok(Link { connection, server })
    }

    async fn now(&self, connection: &Connection) -> Result<Time, Fault> {
        let Value::Array(parts) = connection.send(cmd("TIME")).reply(self.route.config.timeout).await? else {
            return Err(Fault::Answer);
        };
        let number = |at: usize| parts.get(at).and_then(number).ok_or(Fault::Answer);
        Ok(Time(number(0)?.saturating_mul(1_000).saturating_add(number(1)? / 1_000)))
    }

    /// Returns the next cursor of the scan, and the names of the pages found.
    async fn scan(&self, connection: &Connection, scan: u64, scope: &Scope<'_>) -> Result<(u64, Vec<String>), Fault> {
        let mut command = cmd("SCAN");
        command.arg(scan).arg("MATCH").arg(pattern(&self.route.config.key_prefix, scope.domain)).arg("COUNT").arg(KEYS);
        let Value::Array(parts) = connection.send(command).reply(self.route.config.timeout).await? else {
            return Err(Fault::Answer);
        };
        let [scan, Value::Array(names)] = &parts[..] else { return Err(Fault::Answer) };
        let text = |name: &Value| match name {
            Value::BulkString(name) => String::from_utf8(name.clone()).ok(),
            _ => None,
        };
        let wanted = |name: &String| {
            PageName::read(name).is_some_and(|page| {
                let is_of_another = |domain| !page.is_hashed() && page.owner(None).is_none_or(|it| it.domain != domain);
                page.may_have(scope.from, scope.to) && !scope.domain.is_some_and(is_of_another)
            })
        };
        Ok((number(scan).ok_or(Fault::Answer)?, names.iter().filter_map(text).filter(wanted).collect()))
    }

    /// Reads these pages, all at once, and returns their size in bytes.
    async fn take(&self, connection: &Connection, names: Vec<String>, batch: &mut Batch) -> Result<usize, Fault> {
        let ask = |command: &str, name: &str| -> Call {
            let mut command: Cmd = cmd(command);
            command.arg(name);
            connection.send(command)
        };
        let calls: Vec<(String, Call, Call)> = names
            .into_iter()
            .map(|name| {
                let (read, expires) = (ask("HGETALL", &name), ask("PTTL", &name));
                (name, read, expires)
            })
            .collect();
        let mut bytes = 0;
        for (name, read, expires) in calls {
            let (fields, expires) =
                (read.reply(self.route.config.timeout).await, expires.reply(self.route.config.timeout).await?);
            let expires = match expires {
                Value::Int(ms) => u64::try_from(ms).ok().map(|ms| batch.now.plus(ms)),
                _ => None,
            };
            let mut page = Page { name, full_tag: None, expires, records: Vec::new(), damaged: 0 };
            match fields {
                Ok(fields) => bytes += read_fields(fields, &mut page).ok_or(Fault::Answer)?,
                // The key holds another type of value.
                Err(Fault::Refused(Cause::Other(said))) if said.contains("WRONGTYPE") => page.damaged = 1,
                Err(fault) => return Err(fault),
            }
            bytes += page.name.len();
            // An empty page has expired meanwhile.
            if !page.records.is_empty() || page.damaged > 0 {
                batch.pages.push(page);
            }
        }
        Ok(bytes)
    }

    /// Adds the command that grants all rights to a fault about missing rights.
    fn with_grant(&self, fault: Fault) -> Fault {
        let Fault::Refused(Cause::Lacks(rights)) = fault else { return fault };
        let grant = self.route.access.grant(&self.route.config.key_prefix);
        Fault::Refused(Cause::Lacks(Rights { grant: Some(grant), ..rights }))
    }
}

/// The reason why a node returned no pages.
enum Failure {
    Changed,
    Fault(Fault),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::Fault(fault)
    }
}

/// Reads the fields of a page, and returns their size in bytes.
fn read_fields(fields: Value, page: &mut Page) -> Option<usize> {
    let pairs: Vec<(Value, Value)> = match fields {
        Value::Map(pairs) => pairs,
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect()
        }
        _ => return None,
    };
    let mut bytes = 0;
    for (field, value) in pairs {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, value) else { return None };
        bytes += field.len() + value.len();
        if field == TAG {
            page.full_tag = String::from_utf8(value).ok();
            continue;
        }
        let index = std::str::from_utf8(&field).ok().and_then(|field| field.parse().ok());
        match index.zip(Totals::unpack(&value)) {
            Some(record) => page.records.push(record),
            None => page.damaged += 1,
        }
    }
    Some(bytes)
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns a Redis pattern for the names of pages. A hashed name does not contain the domain, so with a domain the
/// pattern also matches hashed names, by allowing at each letter any character that a hash may have.
fn pattern(prefix: &str, domain: Option<&str>) -> String {
    let mut pattern = String::new();
    for char in prefix.chars() {
        if "*?[]\\^".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern.push('{');
    let mut tag = String::new();
    domain.into_iter().for_each(|domain| escape(&mut tag, domain));
    for (at, char) in tag.chars().enumerate().take(HASH_DIGITS) {
        pattern.push('[');
        if "\\^]-".contains(char) {
            pattern.push('\\');
        }
        pattern.extend([char]);
        pattern.push_str(if at == 0 { "|]" } else { "0-9a-f]" });
    }
    pattern.push_str("*}|*");
    pattern + MARK + "*"
}

/// Number of digits of a hash.
const HASH_DIGITS: usize = 64;

fn hash(text: &str) -> u64 {
    let hash = blake3::hash(text.as_bytes());
    // 0 is reserved for "nothing".
    hash.as_bytes()[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)).max(1)
}

/// Returns a hash of the masters and their slots.
fn identify(layout: &Layout) -> u64 {
    let masters = layout.masters.iter().map(|master| format!("{} {:?}\n", master.place, master.ranges));
    hash(&masters.collect::<String>())
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor { source, node, scan, layout, server } = self;
        write!(f, "{source}.{node}.{scan}.{layout:x}.{server:x}")
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Cursor, ()> {
        let parts: Vec<&str> = text.split('.').collect();
        let [source, node, scan, layout, server] = parts[..] else { return Err(()) };
        let hex = |text| u64::from_str_radix(text, 16).map_err(drop);
        Ok(Cursor {
            source: source.parse().map_err(drop)?,
            node: node.parse().map_err(drop)?,
            scan: scan.parse().map_err(drop)?,
            layout: hex(layout)?,
            server: hex(server)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let cursor = Cursor { source: 1, node: 2, scan: u64::MAX, layout: 255, server: 1 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "0", "0.0.0.0", "0.0.0.0.0.0", "0.0.-1.0.0", "0.0.0.x.0"] {
            assert_eq!(wrong.parse::<Cursor>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_escapes_what_means_something() {
        assert_eq!(pattern("a*", None), r"a\*{*}|*|u1:*");
        assert_eq!(pattern("", Some("s-a|")), r"{[s|][\-0-9a-f][a0-9a-f][%0-9a-f][70-9a-f][C0-9a-f]*}|*|u1:*");
    }

    #[test]
    fn fields_that_are_no_records_are_counted() {
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        let fields = Value::Array(vec![
            text(b"7"),
            text(&[1; 19]),
            text(b"tag"),
            text(b"shop|a=b"),
            text(b"8"),
            text(&[1; 17]),
            text(b"x"),
            text(&[1; 19]),
        ]);
        let name = "{shop}|fw1:1000|u1:60000:0".to_owned();
        let mut page = Page { name, full_tag: None, expires: None, records: Vec::new(), damaged: 0 };
        assert!(read_fields(fields, &mut page).is_some());
        assert_eq!((page.records.len(), page.records[0].0, page.damaged), (1, 7, 2));
        assert_eq!(page.full_tag.as_deref(), Some("shop|a=b"));
    }
}
