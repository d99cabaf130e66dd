//! The tables of HPACK (RFC 7541, section 2.3): the static table, and the dynamic table of one connection.
//!
//! The names and values of the dynamic table lie in one buffer, in the order of insertion. An insertion appends to it.
//! Once its end is reached, the live bytes move to its start. A table without entries has allocated nothing.

use std::collections::VecDeque;

/// Bytes that an entry counts beside its name and value (RFC 7541, section 4.1).
const ENTRY_BYTES: usize = 32;
/// Smallest allocation for names and values.
const FIRST_BYTES: usize = 256;

/// The static table (RFC 7541, appendix A): names and values. The first entry has the index 1.
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Both tables of a connection.
pub(super) struct Table<K> {
    static_kinds: [K; STATIC.len()],
    /// The entries of the dynamic table, newest first.
    entries: VecDeque<Place<K>>,
    /// Names and values of the entries, oldest first. Bytes of evicted entries may precede them.
    bytes: Vec<u8>,
    /// Size of the dynamic table (RFC 7541, section 4.1).
    size: usize,
    max_size: usize,
    /// Largest value of `max_size` that the client may set.
    limit: usize,
}

/// One field of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a, K> {
    pub(super) kind: K,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

/// The place of an entry in the buffer.
struct Place<K> {
    kind: K,
    start: u32,
    name_length: u32,
    value_length: u32,
}

impl<K: Copy> Table<K> {
    pub(super) fn new(limit: usize, classify: fn(&[u8]) -> K) -> Table<K> {
        let limit = limit.min(u32::MAX as usize);
        Table {
            static_kinds: STATIC.map(|(name, _)| classify(name.as_bytes())),
            entries: VecDeque::new(),
            bytes: Vec::new(),
            size: 0,
            max_size: limit,
            limit,
        }
    }

    /// Returns the entry with this index in the space of both tables (RFC 7541, section 2.3.3).
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Entry<'_, K>> {
        let at = index.checked_sub(1)?;
        if let (Some((name, value)), Some(kind)) = (STATIC.get(at), self.static_kinds.get(at)) {
            return Some(Entry { kind: *kind, name: name.as_bytes(), value: value.as_bytes() });
        }
        let place = self.entries.get(at - STATIC.len())?;
        let (name, rest) = self.bytes.get(place.start as usize..)?.split_at_checked(place.name_length as usize)?;
        Some(Entry { kind: place.kind, name, value: rest.get(..place.value_length as usize)? })
    }

    /// Returns kind and name of the entry with this index. A name in the dynamic table is copied into the buffer,
    /// because the insertion of a field with this name may evict the entry.
    #[inline]
    pub(super) fn name<'b>(&self, index: usize, buffer: &'b mut Vec<u8>) -> Option<(K, &'b [u8])> {
        let entry = self.get(index)?;
        if let Some((name, _)) = STATIC.get(index.wrapping_sub(1)) {
            return Some((entry.kind, name.as_bytes()));
        }
        buffer.clear();
        buffer.extend_from_slice(entry.name);
        Some((entry.kind, buffer))
    }

    /// Evicts the oldest entries until the new one has space, and inserts it. An entry larger than the table
    /// leaves the table empty (RFC 7541, section 4.4).
    pub(super) fn insert(&mut self, kind: K, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len();
        let size = length + ENTRY_BYTES;
        self.evict_down_to(self.max_size.saturating_sub(size));
        if size > self.max_size {
            return;
        }
        if self.bytes.len() + length > self.bytes.capacity() {
            self.make_room(length);
        }
        // Lengths and positions are less than the table's limit, which fits 32 bits.
        let (start, name_length, value_length) = (self.bytes.len() as u32, name.len() as u32, value.len() as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_front(Place { kind, start, name_length, value_length });
        self.size += size;
    }

    /// Sets the size that the table may have. Returns whether the limit allows it.
    #[must_use]
    pub(super) fn resize(&mut self, max_size: usize) -> bool {
        let is_allowed = max_size <= self.limit;
        if is_allowed {
            self.max_size = max_size;
            self.evict_down_to(max_size);
        }
        is_allowed
    }

    /// Evicts the oldest entries until the table has at most this size.
    fn evict_down_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.name_length as usize + oldest.value_length as usize + ENTRY_BYTES;
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Moves the live bytes to the start of the buffer. If they fill more than half of it, the buffer grows, at most to
    /// the table's limit.
    fn make_room(&mut self, added: usize) {
        let dead = self.entries.back().map_or(0, |oldest| oldest.start);
        let live = self.bytes.len() - dead as usize;
        self.bytes.copy_within(dead as usize.., 0);
        self.bytes.truncate(live);
        for place in &mut self.entries {
            place.start -= dead;
        }
        let capacity = self.bytes.capacity();
        if (live + added) * 2 > capacity {
            let wanted = (capacity * 2).max(live + added).max(FIRST_BYTES).min(self.limit);
            self.bytes.reserve_exact(wanted.saturating_sub(live));
        }
    }

    /// Entries of the dynamic table, newest first.
    #[cfg(test)]
    pub(super) fn dynamic(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = (STATIC.len() + 1..).map_while(|index| self.get(index));
        entries.map(|entry| (entry.name.to_vec(), entry.value.to_vec())).collect()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Bytes that the dynamic table has allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Place<K>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty table whose entries have the length of their name as kind.
    fn table(limit: usize) -> Table<usize> {
        Table::new(limit, <[u8]>::len)
    }

    fn names(table: &Table<usize>) -> Vec<String> {
        table.dynamic().into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn a_table_without_entries_has_allocated_nothing() {
        let mut table = table(4_096);
        assert!(table.resize(0) && table.resize(4_096));
        assert_eq!(table.get(31).unwrap(), Entry { kind: 12, name: b"content-type", value: b"" });
        assert_eq!(table.get(61).unwrap().name, b"www-authenticate");
        assert_eq!((table.get(0), table.get(62), table.get(usize::MAX)), (None, None, None));
        assert_eq!(table.allocated(), 0);
    }

    #[test]
    fn the_oldest_entries_are_evicted_for_new_ones() {
        let mut table = table(100);
        for name in ["a", "b", "c"] {
            table.insert(1, name.as_bytes(), b"");
        }
        assert_eq!((names(&table), table.size()), (vec!["c".to_owned(), "b".into(), "a".into()], 99));
        table.insert(1, b"dd", b"");
        assert_eq!(names(&table), ["dd", "c", "b"]);
        table.insert(1, b"e", &[0; 34]);
        assert_eq!(names(&table), ["e"]);
        table.insert(1, b"f", b"");
        assert_eq!((names(&table), table.size()), (vec!["f".to_owned(), "e".into()], 100));
    }

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        let mut table = table(100);
        table.insert(1, b"a", b"");
        table.insert(1, b"b", &[0; 68]);
        assert_eq!((names(&table), table.size()), (vec![], 0));
        table.insert(1, b"b", &[0; 67]);
        assert_eq!((names(&table), table.size()), (vec!["b".to_owned()], 100));
    }

    #[test]
    fn a_smaller_size_evicts_and_a_larger_one_than_the_limit_is_rejected() {
        let mut table = table(100);
        for name in ["a", "b", "c"] {
            table.insert(1, name.as_bytes(), b"");
        }
        assert!(table.resize(66));
        assert_eq!(names(&table), ["c", "b"]);
        assert!(!table.resize(101));
        assert!(table.resize(100));
        assert_eq!(names(&table), ["c", "b"]);
        assert!(table.resize(0));
        table.insert(1, b"d", b"");
        assert_eq!((names(&table), table.size()), (vec![], 0));
    }

    #[test]
    fn a_table_that_has_reached_its_size_allocates_nothing_more() {
        let mut table = table(4_096);
        let mut allocated = 0;
        for turn in 0..10_000_usize {
            table.insert(turn, format!("x-{}", turn % 7).as_bytes(), &[b'v'; 60][..turn % 60]);
            if turn == 1_000 {
                allocated = table.allocated();
                assert!(table.bytes.capacity() <= 4_096);
            }
        }
        assert_eq!(table.allocated(), allocated);
        assert_eq!(table.get(62).unwrap().kind, 9_999);
    }
}
