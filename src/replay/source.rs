//! The requests of all logs, merged in order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::path::PathBuf;

use csv::{ReaderBuilder, StringRecord};
use serde::Serialize;

use super::decisions::{self, Joined};
use super::format::{self, FormatError, Pattern};
use super::lines::{Lines, Log};
use super::mapping::{Mapping, MappingError, MappingOptions, Unmapped};
use super::order::{Order, Simultaneous};
use super::packed::Packed;
use super::template::Values;
use super::{Event, Format};

/// The most unreadable lines in a report.
const TOLD: usize = 10;

/// Usual fields for the time.
const TIMES: [&str; 5] = ["start_time", "time", "timestamp", "@timestamp", "ts"];
/// Fields that usually have the duration in milliseconds.
const DURATIONS: [&str; 2] = ["duration", "duration_ms"];

/// Options for reading logs.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The format; `None` to detect it for each log.
    pub format: Option<Format>,
    /// The mapping from lines to requests; not needed for decision logs.
    pub mapping: MappingOptions,
    /// The default domain.
    pub domain: Option<String>,
    /// How far lines may be out of order, in milliseconds.
    pub window_ms: u64,
    /// Whether the first unreadable line is an error.
    pub is_strict: bool,
}

/// Counts of the lines read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Read {
    /// Number of lines, without empty ones and rows of names.
    pub lines: u64,
    /// Number of unreadable lines.
    pub unreadable: u64,
    /// The first unreadable lines, each with its place and the reason.
    pub unreadable_first: Vec<String>,
    /// What of Envoy's configuration is not replayed, each with the reason.
    pub left_out: Vec<String>,
    /// Number of lines about which Envoy would not have asked: their route has no descriptors, or each lacks a field.
    pub without_descriptor: u64,
    /// Number of requests that were later than the window allows. They count at the time of the preceding request.
    pub late: u64,
    /// Number of lines from decision logs. These contain the denials that were not dropped, but at most a sample of the
    /// other requests.
    pub decisions: u64,
    /// Number of decision log lines that do not name their call. Each of their descriptors counts as a separate
    /// request.
    pub unnamed: u64,
    /// Number of decision log lines that are refunds, which are not replayed.
    pub refunds: u64,
    /// Number of decision log lines with values that are hidden or look like hashes. They do not match rules with a
    /// specific value.
    pub masked: u64,
}

impl Read {
    /// Returns whether there are lines, and none of them can be read.
    pub fn is_unreadable(&self) -> bool {
        self.lines > 0 && self.unreadable == self.lines
    }
}

/// The reason why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("{}: {error}", .log.display())]
    Io {
        /// Path of the log.
        log: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The log does not have this format.
    #[error("{}: {error}", .log.display())]
    Format {
        /// Path of the log.
        log: PathBuf,
        /// The error.
        error: FormatError,
    },
    /// There is no mapping from its lines to requests.
    #[error("{}: {error}", .log.display())]
    Mapping {
        /// Path of the log.
        log: PathBuf,
        /// The error.
        error: MappingError,
    },
    /// The log is not text.
    #[error("{}: is binary: a log is text, plain or compressed with gzip", .0.display())]
    Binary(PathBuf),
    /// The log is one JSON array.
    #[error("{}: is a JSON array: write one object on each line, for example with jq -c '.[]'", .0.display())]
    Array(PathBuf),
    /// A line is unreadable, and all lines must be readable.
    #[error("{0}")]
    Line(String),
}

/// The requests of several logs.
pub struct Requests {
    sources: Vec<Source>,
    /// Time of each source's next event, with the index of the source.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    read: Read,
    is_strict: bool,
}

/// One log.
struct Source {
    name: PathBuf,
    rows: Rows,
    order: Order<Packed>,
    ready: VecDeque<Simultaneous<Packed>>,
    /// The request of the last row, if it has one.
    packed: Packed,
    is_done: bool,
}

/// The lines of a log by format.
enum Rows {
    Text(Lines, Pattern, Mapping),
    /// The keys stand for the names of the mapping.
    Json(Lines, Mapping, Vec<String>),
    Decisions(Lines, Joined),
    Csv(Box<Csv>),
    /// An empty log.
    Empty,
}

struct Csv {
    reader: csv::Reader<Log>,
    record: StringRecord,
    count: u64,
    /// Column of each field.
    columns: Vec<Option<usize>>,
    mapping: Mapping,
}

/// The content of one row.
enum Row {
    /// A request of this time was packed.
    Request(u64),
    /// The row belongs to a request that is not complete yet.
    Part,
    Unmapped(Unmapped),
    End,
}

impl Requests {
    /// Starts to read logs, each with its name.
    ///
    /// # Errors
    /// Fails if a log cannot be read at all.
    pub fn new(logs: Vec<(PathBuf, Log)>, reading: &Reading) -> Result<Requests, ReadError> {
        let sources = logs.into_iter().map(|(name, log)| Source::open(name, log, reading));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let (read, is_strict) = (Read::default(), reading.is_strict);
        let mut requests = Requests { sources, heads: BinaryHeap::new(), read, is_strict };
        for index in 0..requests.sources.len() {
            requests.refill(index)?;
        }
        Ok(requests)
    }

    /// Returns the next request; `None` at the end.
    ///
    /// # Errors
    /// Fails if reading fails, or at an unreadable line if all lines must be readable.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        let mut event = Event::empty();
        Ok(self.read_into(&mut event)?.then_some(event))
    }

    /// Reads the next request into `event`, whose memory is reused. Returns `false` at the end.
    ///
    /// # Errors
    /// As [`Requests::next_event`].
    pub fn read_into(&mut self, event: &mut Event) -> Result<bool, ReadError> {
        let Some(Reverse((_, index))) = self.heads.pop() else { return Ok(false) };
        self.sources[index].take(event);
        self.refill(index)?;
        Ok(true)
    }

    /// Returns the counts so far.
    pub fn read(&self) -> Read {
        let mut read = self.read.clone();
        let mappings = self.sources.iter().filter_map(|source| source.rows.mapping());
        for left_out in mappings.flat_map(Mapping::left_out) {
            if !read.left_out.contains(left_out) {
                read.left_out.push(left_out.clone());
            }
        }
        for Source { rows, order, .. } in &self.sources {
            read.lines += rows.count();
            read.late += order.late();
            if let Rows::Decisions(lines, joined) = rows {
                read.decisions += lines.count();
                read.unnamed += joined.unnamed();
                read.refunds += joined.refunds();
                read.masked += joined.masked();
            }
        }
        read
    }

    /// Reads until the source's next event is known.
    fn refill(&mut self, index: usize) -> Result<(), ReadError> {
        let source = &mut self.sources[index];
        while source.ready.is_empty() && !source.is_done {
            let io = |error| ReadError::Io { log: source.name.clone(), error };
            source.packed.clear();
            match source.rows.next(&mut source.packed).map_err(io)? {
                Row::Request(at_ms) => {
                    source.order.push(at_ms, |events| events.append(&source.packed), &mut source.ready);
                }
                Row::Part => {}
                Row::Unmapped(Unmapped::NoDescriptor) => self.read.without_descriptor += 1,
                Row::Unmapped(Unmapped::Wrong(why)) => {
                    let line = format!("{}:{}: {why}", source.name.display(), source.rows.line());
                    if self.is_strict {
                        return Err(ReadError::Line(line));
                    }
                    self.read.unreadable += 1;
                    if self.read.unreadable_first.len() < TOLD {
                        self.read.unreadable_first.push(line);
                    }
                }
                Row::End => {
                    source.order.finish(&mut source.ready);
                    source.is_done = true;
                }
            }
        }
        if let Some(first) = source.ready.front() {
            self.heads.push(Reverse((first.at_ms, index)));
        }
        Ok(())
    }
}

impl Source {
    fn open(name: PathBuf, mut log: Log, reading: &Reading) -> Result<Source, ReadError> {
        let io = |error| ReadError::Io { log: name.clone(), error };
        let begin = log.fill_buf().map_err(io)?;
        if begin.contains(&0) {
            return Err(ReadError::Binary(name));
        }
        if reading.format.as_ref().is_none_or(|format| *format == Format::Json) && format::is_array(begin) {
            return Err(ReadError::Array(name));
        }
        let of_envoy = || reading.mapping.envoy.as_ref()?.format.clone();
        let format = reading.format.clone().or_else(of_envoy).unwrap_or_else(|| Format::detect(&name, begin));
        let is_empty = begin.is_empty();
        let of_format = |error| ReadError::Format { log: name.clone(), error };
        let mapping = || {
            let mapping = Mapping::new(&reading.mapping, reading.domain.as_deref(), &format);
            mapping.map_err(|error| ReadError::Mapping { log: name.clone(), error })
        };
        let rows = match &format {
            // The format of an empty log is unknown, so it needs no mapping.
            _ if is_empty => Rows::Empty,
            Format::Text(format) => {
                let durations: &[_] = if format.contains("%DURATION%") { &["DURATION"] } else { &[] };
                let mapping = mapping()?.with_fields(&["START_TIME"], durations);
                let pattern = Pattern::new(format, mapping.names()).map_err(of_format)?;
                Rows::Text(Lines::new(log), pattern, mapping)
            }
            Format::Json => {
                let mapping = mapping()?.with_fields(&TIMES, &DURATIONS);
                let keys = mapping.names().to_vec();
                Rows::Json(Lines::new(log), mapping, keys)
            }
            Format::Keyed(fields) => {
                let has_duration = format.operators().is_some_and(|all| all.contains(&"DURATION"));
                let durations: &[_] = if has_duration { &["DURATION"] } else { &[] };
                let mapping = mapping()?.with_fields(&["START_TIME"], durations);
                let keys = format::keys(fields, mapping.names()).map_err(of_format)?;
                Rows::Json(Lines::new(log), mapping, keys)
            }
            Format::Decisions => Rows::Decisions(Lines::new(log), Joined::default()),
            Format::Csv => {
                let csv = Csv::open(log, &mapping()?).map_err(io)?;
                Rows::Csv(Box::new(csv.map_err(of_format)?))
            }
        };
        let (order, ready, packed) = (Order::new(reading.window_ms), VecDeque::new(), Packed::default());
        Ok(Source { name, rows, order, ready, packed, is_done: false })
    }

    /// Moves the next event that is ready into `event`.
    fn take(&mut self, event: &mut Event) {
        let Some(first) = self.ready.front_mut() else { return };
        self.rows.unpack(first.at_ms, &mut first.events, event);
        first.len -= 1;
        if first.len == 0
            && let Some(Simultaneous { mut events, .. }) = self.ready.pop_front()
        {
            events.clear();
            self.order.recycle(events);
        }
    }
}

impl Csv {
    fn open(log: Log, mapping: &Mapping) -> io::Result<Result<Csv, FormatError>> {
        let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(log);
        let header = reader.headers()?.clone();
        let column = |name: &String| header.iter().position(|column| column == name);
        if let Some(name) = mapping.names().iter().find(|name| column(name).is_none()) {
            let all: Vec<String> = header.iter().map(|column| format!("%{column}%")).collect();
            return Ok(Err(FormatError::NoField(name.clone(), all.join(" "))));
        }
        let mapping = mapping.with_fields(&TIMES, &DURATIONS);
        let columns = mapping.names().iter().map(column).collect();
        Ok(Ok(Csv { reader, record: StringRecord::new(), count: 0, columns, mapping }))
    }

    fn next(&mut self, packed: &mut Packed) -> io::Result<Row> {
        let read = self.reader.read_record(&mut self.record);
        self.count += u64::from(!matches!(read, Ok(false)));
        match read {
            Ok(false) => return Ok(Row::End),
            Ok(true) => {}
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => return Ok(Row::Unmapped(Unmapped::Wrong(error.to_string()))),
        }
        let value = |column: &Option<usize>| format::present(self.record.get((*column)?)?);
        let values: Values<'_> = self.columns.iter().map(value).collect();
        Ok(Row::of_mapped(self.mapping.pack(&values, packed)))
    }
}

impl Rows {
    /// Returns the number of the last line.
    fn line(&self) -> u64 {
        match self {
            Rows::Text(lines, ..) | Rows::Json(lines, ..) | Rows::Decisions(lines, _) => lines.number(),
            Rows::Csv(csv) => csv.record.position().map_or(0, csv::Position::line),
            Rows::Empty => 0,
        }
    }

    /// Returns the number of rows so far.
    fn count(&self) -> u64 {
        match self {
            Rows::Text(lines, ..) | Rows::Json(lines, ..) | Rows::Decisions(lines, _) => lines.count(),
            Rows::Csv(csv) => csv.count,
            Rows::Empty => 0,
        }
    }

    /// Returns the mapping, if the log has one.
    fn mapping(&self) -> Option<&Mapping> {
        match self {
            Rows::Text(.., mapping) | Rows::Json(_, mapping, _) => Some(mapping),
            Rows::Csv(csv) => Some(&csv.mapping),
            Rows::Decisions(..) | Rows::Empty => None,
        }
    }

    /// Reads a packed request into `event`, whose memory is reused.
    fn unpack(&self, at_ms: u64, packed: &mut Packed, event: &mut Event) {
        match self {
            Rows::Text(.., mapping) | Rows::Json(_, mapping, _) => mapping.unpack(at_ms, packed, event),
            Rows::Csv(csv) => csv.mapping.unpack(at_ms, packed, event),
            Rows::Decisions(..) => decisions::unpack(at_ms, packed, event),
            Rows::Empty => {}
        }
    }

    /// Returns the next row. Its request is appended to `packed`.
    fn next(&mut self, packed: &mut Packed) -> io::Result<Row> {
        match self {
            Rows::Csv(csv) => csv.next(packed),
            Rows::Empty => Ok(Row::End),
            Rows::Text(lines, pattern, mapping) => lines.next().map(|line| {
                Row::of_line(line, |line| {
                    let values = pattern.values(line);
                    let values = values.ok_or_else(|| Unmapped::Wrong("is not as the format says".to_owned()));
                    Row::of_mapped(values.and_then(|values| mapping.pack(&values, packed)))
                })
            }),
            Rows::Json(lines, mapping, keys) => lines.next().map(|line| {
                Row::of_line(line, |line| {
                    let values = format::json_values(line, keys);
                    let values = values.map_err(|error| Unmapped::Wrong(format::no_object(line, &error)));
                    Row::of_mapped(values.and_then(|values| mapping.pack(&values, packed)))
                })
            }),
            Rows::Decisions(lines, joined) => Ok(match lines.next()? {
                None => joined.finish(packed).map_or(Row::End, Row::Request),
                line => Row::of_line(line, |line| match joined.push(line, packed) {
                    Ok(at_ms) => at_ms.map_or(Row::Part, Row::Request),
                    Err(why) => Row::Unmapped(Unmapped::Wrong(why)),
                }),
            }),
        }
    }
}

impl Row {
    /// Reads a line with `read`.
    fn of_line(line: Option<Result<&str, &'static str>>, read: impl FnOnce(&str) -> Row) -> Row {
        match line {
            None => Row::End,
            Some(Ok(line)) => read(line),
            Some(Err(why)) => Row::Unmapped(Unmapped::Wrong(why.to_owned())),
        }
    }

    fn of_mapped(packed: Result<u64, Unmapped>) -> Row {
        packed.map_or_else(Row::Unmapped, Row::Request)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn reading(format: Option<&str>) -> Reading {
        let mapping = MappingOptions { entries: vec!["user=%user%".to_owned()], ..MappingOptions::default() };
        let format = format.and_then(|format| Format::parse(format).unwrap());
        Reading { format, mapping, domain: Some("shop".to_owned()), window_ms: 100, is_strict: false }
    }

    /// Returns the time and user of each request, in order, and the counts.
    fn read(logs: &[(&str, &str)], reading: &Reading) -> Result<(Vec<(u64, String)>, Read), ReadError> {
        let log = |(name, text): &(&str, &str)| -> (PathBuf, Log) {
            (PathBuf::from(name), Box::new(Cursor::new((*text).to_owned().into_bytes())))
        };
        let mut requests = Requests::new(logs.iter().map(log).collect(), reading)?;
        let mut all = Vec::new();
        while let Some(Event { at_ms, request, .. }) = requests.next_event()? {
            all.push((at_ms, request.descriptors[0].entries[0].value.to_string()));
        }
        Ok((all, requests.read()))
    }

    fn users(all: &[(u64, String)]) -> Vec<(u64, &str)> {
        all.iter().map(|(at_ms, user)| (*at_ms, user.as_str())).collect()
    }

    #[test]
    fn logs_are_joined_in_the_order_of_time_whatever_they_are_written_in() {
        let json = "{\"ts\":0.001,\"user\":\"a\"}\n{\"ts\":0.004,\"user\":\"b\"}\n";
        let csv = "user, time\nc,0.002\n\"d,e\",0.003\n";
        let decisions = "{\"time\":\"1970-01-01T00:00:00.005Z\",\"domain\":\"shop\",\"rule\":\"r\",\"descriptor\":\
                         [{\"key\":\"user\",\"value\":\"f\"}],\"hits\":1,\"outcome\":\"denied\"}";
        let (all, read) = read(&[("a.log", json), ("b.csv", csv), ("c.log", decisions)], &reading(None)).unwrap();
        assert_eq!(users(&all), [(1, "a"), (2, "c"), (3, "d,e"), (4, "b"), (5, "f")]);
        assert_eq!((read.lines, read.decisions, read.unreadable), (5, 1, 0));
    }

    #[test]
    fn what_cannot_be_read_is_told_by_its_place_and_the_rest_counts() {
        let json = "{\"ts\":1,\"user\":\"a\"}\n\n{\"ts\":1}\nno json\n{\"user\":\"b\"}\n{\"ts\":9,\"user\":\"c\"}\n\
                    {\"ts\":2,\"user\":\"d\"}\n";
        let (all, said) = read(&[("a.log", json)], &reading(None)).unwrap();
        assert_eq!(users(&all), [(1_000, "a"), (2_000, "d"), (9_000, "c")]);
        assert_eq!((said.lines, said.without_descriptor, said.late, said.unreadable), (6, 1, 0, 2));
        assert!(said.unreadable_first[0].starts_with("a.log:4: is not a JSON object: "), "{said:?}");
        assert!(said.unreadable_first[1].starts_with("a.log:5: has no time"), "{said:?}");
        let error = read(&[("a.log", json)], &Reading { is_strict: true, ..reading(None) }).unwrap_err();
        assert!(error.to_string().starts_with("a.log:4: is not a JSON object: "), "{error}");
        let (_, said) = read(&[("a.csv", "time,user\n1,a\n1\n2,b\n")], &reading(None)).unwrap();
        assert_eq!((said.lines, said.unreadable), (3, 1));
        assert!(said.unreadable_first[0].starts_with("a.csv:3: "), "{said:?}");
    }

    #[test]
    fn a_log_that_lacks_a_mapped_field_is_refused() {
        let error = |format| read(&[("a.log", "time,usr\n")], &reading(Some(format))).unwrap_err().to_string();
        assert_eq!(error("csv"), "a.log: lines have no %user%; they have %time% %usr%");
        assert_eq!(error("%START_TIME% %REQ(x)%"), "a.log: lines have no %user%; they have %START_TIME% %REQ(x)%");
        let nothing = Reading { mapping: MappingOptions::default(), ..reading(Some("json")) };
        assert!(matches!(read(&[("a.log", "{}")], &nothing), Err(ReadError::Mapping { .. })));
    }

    #[test]
    fn a_log_without_a_byte_needs_no_mapping_and_leaves_the_others() {
        let nothing = |format| Reading { mapping: MappingOptions::default(), ..reading(format) };
        let decision = "{\"time\":\"1970-01-01T00:00:00.005Z\",\"domain\":\"shop\",\"rule\":\"r\",\"descriptor\":\
                        [{\"key\":\"user\",\"value\":\"f\"}],\"hits\":1,\"outcome\":\"denied\"}";
        let (all, said) = read(&[("a.log", ""), ("b.log", decision)], &nothing(None)).unwrap();
        assert_eq!((users(&all), said.lines), (vec![(5, "f")], 1));
        for format in ["json", "csv", "envoy", "decisions"] {
            let (all, said) = read(&[("a.log", "")], &nothing(Some(format))).unwrap();
            assert_eq!((all, said), (Vec::new(), Read::default()), "{format}");
        }
    }
}
