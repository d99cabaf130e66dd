//! The pages of usage in Redis, read where they are written: at the master, and at every master of a cluster, one after
//! the other. Keys are scanned a hundred at a time, over a connection of its own, so that no decision waits for more
//! than that.
//!
//! A scan knows where it is by a number that has a meaning at one server alone. So a cursor says which one that was,
//! and which slots each had: where that is not so any more, whoever reads begins again.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use deadpool_redis::redis::{Cmd, Value, cmd};
use tokio::sync::Mutex;

use super::address::Place;
use super::cause::{Cause, Rights};
use super::connection::{Call, Connection, Fault};
use super::identity::Identity;
use super::topology::{self, Access, Dialer, Layout, Reach};
use super::{RedisConfig, StartError, rights};
use crate::store::StoreError;
use crate::store::key::escape;
use crate::store::usage::{Batch, Scope, UsageReadError};
use crate::usage::page::{MARK, Page, PageName};
use crate::usage::{Time, Totals};

/// So many keys Redis looks at in one go.
const KEYS: u32 = 100;

/// So many times it does so for one answer at the most.
const SCANS: usize = 100;

/// An answer that has so many pages has enough.
const PAGES: usize = 500;

/// The same of bytes.
const BYTES: usize = 1024 * 1024;

/// The field of a page that holds the whole tag of the counter's name.
const TAG: &[u8] = b"tag";

/// The pages of a Redis, or of two.
pub struct RedisUsage {
    main: Source,
    per_second: Option<Source>,
}

/// Those of one Redis.
struct Source {
    /// What it is called.
    name: &'static str,
    config: RedisConfig,
    access: Arc<Access>,
    reach: Reach,
    /// The one that was used last: one answer is made at a time.
    link: Mutex<Option<Link>>,
}

struct Link {
    connection: Connection,
    place: Option<Place>,
    /// Which server it is, as long as it runs.
    server: u64,
}

/// Where to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// In the first Redis, or in the second.
    source: usize,
    /// At which of its masters.
    node: usize,
    /// What its scan has said; 0 to begin.
    scan: u64,
    /// Which masters have which slots; 0 where nothing is read yet.
    layout: u64,
    /// Which server it was; 0 where nothing is read yet.
    server: u64,
}

/// A master that is asked.
struct Node {
    dialer: Option<Dialer>,
    place: Option<Place>,
    /// So many there are.
    of: usize,
    layout: u64,
}

impl RedisUsage {
    /// Those of the store with this configuration; nothing is asked yet.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub fn new(mut config: RedisConfig) -> Result<RedisUsage, StartError> {
        let per_second = config.per_second.take();
        Ok(RedisUsage {
            main: Source::new("main", config)?,
            per_second: per_second.map(|config| Source::new("per_second", *config)).transpose()?,
        })
    }

    /// Some of the pages, from the cursor on; those of one server.
    ///
    /// # Errors
    /// Where there is no such cursor, or no longer, or Redis does not answer within the timeout of the configuration.
    pub async fn read(&self, scope: &Scope<'_>, cursor: Option<&str>) -> Result<Batch, UsageReadError> {
        let cursor = cursor.map_or(Ok(Cursor::default()), str::parse).map_err(|()| UsageReadError::Cursor)?;
        let sources: Vec<&Source> = std::iter::once(&self.main).chain(&self.per_second).collect();
        let source = sources.get(cursor.source).ok_or(UsageReadError::Cursor)?;
        let (mut batch, next) = source.read(scope, cursor).await?;
        let next = next.or_else(|| {
            let another = Cursor { source: cursor.source + 1, ..Cursor::default() };
            (another.source < sources.len()).then_some(another)
        });
        batch.cursor = next.map(|next| next.to_string());
        Ok(batch)
    }
}

impl Source {
    fn new(name: &'static str, config: RedisConfig) -> Result<Source, StartError> {
        let access = Arc::new(Access::start(&config.address).map_err(StartError::new)?);
        let reach = topology::reach(&config, &access);
        Ok(Source { name, config, access, reach, link: Mutex::default() })
    }

    /// Some pages of one master, and where to go on in this Redis.
    async fn read(&self, scope: &Scope<'_>, cursor: Cursor) -> Result<(Batch, Option<Cursor>), UsageReadError> {
        let mut link = self.link.lock().await;
        let node = self.node(&cursor).await?;
        let is_new = !link.as_ref().is_some_and(|link| link.connection.is_usable() && link.place == node.place);
        let read = match self.read_at(&mut link, &node, scope, cursor).await {
            // Redis, or something on the way, has closed the connection meanwhile.
            Err(Failure::Fault(Fault::Lost(_))) if !is_new => self.read_at(&mut link, &node, scope, cursor).await,
            read => read,
        };
        let (batch, scan, server) = read.map_err(|failure| match failure {
            Failure::Changed | Failure::Fault(Fault::Elsewhere(_)) => UsageReadError::Changed,
            Failure::Fault(fault) => UsageReadError::Store(self.with_grant(fault).into()),
        })?;
        let layout = node.layout;
        let next = match scan {
            0 if cursor.node + 1 < node.of => Some(Cursor { node: cursor.node + 1, scan, layout, server: 0, ..cursor }),
            0 => None,
            scan => Some(Cursor { scan, layout, server, ..cursor }),
        };
        Ok((batch, next))
    }

    /// The master that the cursor is at.
    async fn node(&self, cursor: &Cursor) -> Result<Node, UsageReadError> {
        let Reach::Cluster(seeds) = &self.reach else {
            let is_there = cursor.node == 0 && cursor.layout == 0;
            return is_there
                .then_some(Node { dialer: None, place: None, of: 1, layout: 0 })
                .ok_or(UsageReadError::Changed);
        };
        let layout = topology::survey(seeds, &self.access, &self.config).await;
        let mut layout = layout.map_err(|cause| StoreError::from(Fault::Connect(cause)))?;
        // However a node lists them.
        layout.masters.sort_by_key(|master| master.place.to_string());
        let known = identify(&layout);
        let is_same = cursor.layout == known || cursor.layout == 0 && cursor.node == 0;
        let master = layout.masters.get(cursor.node).filter(|_| is_same).ok_or(UsageReadError::Changed)?;
        let dialer = topology::node_dialer(master.place.clone(), &self.access);
        Ok(Node { dialer: Some(dialer), place: Some(master.place.clone()), of: layout.masters.len(), layout: known })
    }

    /// Some pages of this node, what its scan says, and which server it is. A connection that fails is given up.
    async fn read_at(
        &self,
        place: &mut Option<Link>,
        node: &Node,
        scope: &Scope<'_>,
        cursor: Cursor,
    ) -> Result<(Batch, u64, u64), Failure> {
        let link = match place.take().filter(|link| link.connection.is_usable() && link.place == node.place) {
            Some(link) => link,
            None => self.connect(node).await?,
        };
        if cursor.scan != 0 && cursor.server != link.server {
            return Err(Failure::Changed);
        }
        let now = self.now(&link.connection).await?;
        let mut batch = Batch { pages: Vec::new(), store: self.name, now, cursor: None };
        let (mut scan, mut bytes) = (cursor.scan, 0);
        for _ in 0..SCANS {
            let names;
            (scan, names) = self.scan(&link.connection, scan, scope).await?;
            bytes += self.take(&link.connection, names, &mut batch).await?;
            if scan == 0 || batch.pages.len() >= PAGES || bytes >= BYTES {
                break;
            }
        }
        let server = link.server;
        *place = Some(link);
        Ok((batch, scan, server))
    }

    async fn connect(&self, node: &Node) -> Result<Link, Fault> {
        let dialer = match (&node.dialer, &self.reach) {
            (Some(dialer), _) | (None, Reach::One(dialer)) => dialer,
            (None, Reach::Cluster(_)) => return Err(Fault::Connect(Cause::ClusterDown)),
        };
        let dialed = dialer.connect(self.config.timeout).await.map_err(Fault::Connect)?;
        let connection = Connection::new(dialed, 0);
        let run_id = match connection.send(cmd("INFO")).wait(self.config.timeout).await {
            Ok(info) => Identity::read(&String::from_utf8_lossy(&info)).get("run_id").map(hash),
            Err(Fault::Refused(_) | Fault::Answer) => None,
            Err(fault) => return Err(fault),
        };
        // Who may not ask, or is not told, cannot see whether another connection leads to the same server.
        let server = run_id.unwrap_or_else(|| fastrand::u64(1..));
        Ok(Link { connection, place: node.place.clone(), server })
    }

    async fn now(&self, connection: &Connection) -> Result<Time, Fault> {
        let Value::Array(parts) = connection.send(cmd("TIME")).reply(self.config.timeout).await? else {
            return Err(Fault::Answer);
        };
        let number = |at: usize| parts.get(at).and_then(number).ok_or(Fault::Answer);
        Ok(Time(number(0)?.saturating_mul(1_000).saturating_add(number(1)? / 1_000)))
    }

    /// Where the scan goes on, and the names of pages that it has come by.
    async fn scan(&self, connection: &Connection, scan: u64, scope: &Scope<'_>) -> Result<(u64, Vec<String>), Fault> {
        let mut command = cmd("SCAN");
        command.arg(scan).arg("MATCH").arg(pattern(&self.config.key_prefix, scope.domain)).arg("COUNT").arg(KEYS);
        let Value::Array(parts) = connection.send(command).reply(self.config.timeout).await? else {
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

    /// Reads these pages, all at once; gives their bytes.
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
            let (fields, expires) = (read.reply(self.config.timeout).await, expires.reply(self.config.timeout).await?);
            let expires = match expires {
                Value::Int(ms) => u64::try_from(ms).ok().map(|ms| batch.now.plus(ms)),
                _ => None,
            };
            let mut page = Page { name, full_tag: None, expires, records: Vec::new(), damaged: 0 };
            match fields {
                Ok(fields) => bytes += read_fields(fields, &mut page).ok_or(Fault::Answer)?,
                // Something else has its name.
                Err(Fault::Refused(Cause::Other(said))) if said.contains("WRONGTYPE") => page.damaged = 1,
                Err(fault) => return Err(fault),
            }
            bytes += page.name.len();
            // An empty one has expired meanwhile.
            if !page.records.is_empty() || page.damaged > 0 {
                batch.pages.push(page);
            }
        }
        Ok(bytes)
    }

    /// A fault with the line that grants all rights, if it is that some are missing.
    fn with_grant(&self, fault: Fault) -> Fault {
        let Fault::Refused(Cause::Lacks(rights)) = fault else { return fault };
        let grant = rights::grant(&self.access, &self.config.key_prefix);
        Fault::Refused(Cause::Lacks(Rights { grant: Some(grant), ..rights }))
    }
}

/// Why no pages come of a node.
enum Failure {
    Changed,
    Fault(Fault),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::Fault(fault)
    }
}

/// What stands on a page; gives its bytes.
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

/// What the names of pages match, in the way of Redis. Whose a hashed name is, it does not say: with a domain the
/// pattern lets those through, and each letter may be one of a hash.
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

/// So many digits a hash has.
const HASH_DIGITS: usize = 64;

fn hash(text: &str) -> u64 {
    let hash = blake3::hash(text.as_bytes());
    // 0 stands for nothing.
    hash.as_bytes()[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)).max(1)
}

/// Which masters have which slots.
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
            text(&[1; 18]),
            text(b"tag"),
            text(b"shop|a=b"),
            text(b"8"),
            text(&[1; 17]),
            text(b"x"),
            text(&[1; 18]),
        ]);
        let name = "{shop}|fw1:1000|u1:60000:0".to_owned();
        let mut page = Page { name, full_tag: None, expires: None, records: Vec::new(), damaged: 0 };
        assert!(read_fields(fields, &mut page).is_some());
        assert_eq!((page.records.len(), page.records[0].0, page.damaged), (1, 7, 2));
        assert_eq!(page.full_tag.as_deref(), Some("shop|a=b"));
    }
}
