//! The stored form of a budget's counter: the fields of a hash in Redis, as the Lua twin reads and writes them. What no
//! decision writes is damaged, and is not read.

use std::collections::BTreeMap;

use super::budget::{
    Account, Contents, Counts, Credited, End, Entries, Entry, Item, Kind, MAX_CREDITS, MAX_NAMESAKES, Parameters, State,
};
use super::{Caller, CreditKind, Limit, MAX_HITS, Packed, Parameters as AnyParameters, pack_fields};

/// The fields of the hash in Redis: of the account, of an item of the queue, and of a stream.
const ACCOUNT: &[u8] = b"a";
const ITEM: u8 = b'q';
const STREAM: u8 = b's';
const CREDIT: u8 = b'c';
/// The last credits have these places, in turn.
const PLACE: u8 = b'p';

fn field(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &(number as f64).to_le_bytes()].concat()
}

/// Parses the name of a field behind its first byte. Lua finds fields by their bytes, for which -0.0 is another number
/// than 0.0.
fn number(packed: &mut Packed<'_>) -> Option<u64> {
    let bytes: [u8; 8] = packed.take()?;
    let number = f64::from_le_bytes(bytes);
    let is_one = number.fract() == 0.0 && !number.is_sign_negative() && number <= MAX_HITS as f64;
    is_one.then_some(number as u64)
}

impl State {
    /// Parses a state from [`pack`](State::pack); `None` if it is damaged.
    pub(super) fn unpack(limit: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let AnyParameters::Budget(Parameters { windows, .. }) = limit.parameters else { return None };
        let mut fields = Packed::fields(bytes)?;
        let account = Account::unpack(&fields.remove(ACCOUNT)?, windows.places())?;
        let mut streams = BTreeMap::new();
        let mut items = BTreeMap::new();
        let (mut credits, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in fields {
            let (kind, name) = name.split_first()?;
            let (mut name, mut packed) = (Packed(name), Packed(&value));
            let number = number(&mut name).filter(|_| name.is_empty())?;
            match *kind {
                ITEM => {
                    let item = Item { holder: self::number(&mut packed)?, due: packed.whole()? };
                    items.insert(number, item).is_none().then_some(())?;
                }
                STREAM => {
                    let mut entries = Entries::new();
                    while !packed.is_empty() {
                        let (at, hits, kind) = (packed.whole()?, packed.whole()?, packed.count()?);
                        entries.push(Entry { at, hits, kind: *Kind::ALL.get(kind as usize)? });
                    }
                    (entries.len() <= MAX_NAMESAKES).then(|| streams.insert(number, entries))?;
                }
                CREDIT => {
                    let (number_of, asked, done) = (packed.whole()?, packed.whole()?, packed.whole()?);
                    let kind = *CreditKind::ALL.get(packed.count()? as usize)?;
                    credits.insert(number, Credited { number: number_of, asked, done, kind });
                }
                PLACE => drop(places.insert(number, self::number(&mut packed)?)),
                _ => return None,
            }
            if !packed.is_empty() {
                return None;
            }
        }
        let queued: BTreeMap<u64, u64> = items.iter().map(|(number, item)| (item.holder, *number)).collect();
        let is_queued = items.keys().copied().eq(account.first..account.next)
            && items.values().next().map_or(0, |item| item.due) == account.due
            && queued.len() == items.len()
            && streams.keys().eq(queued.keys());
        let mut held: BTreeMap<u64, End> = BTreeMap::new();
        for one in streams.values().flatten() {
            if one.is_held(account.at) {
                let end = held.entry(one.at).or_insert(End { at: one.at, hits: 0, charged: 0, holds: 0 });
                end.hits = end.hits.checked_add(one.hits)?;
                end.charged += one.paid();
                end.holds += 1;
            } else if one.at > account.at {
                return None;
            }
        }
        let numbered: BTreeMap<u64, u64> = credits.iter().map(|(id, one)| (one.number, *id)).collect();
        let known = account.credits.saturating_sub(MAX_CREDITS) + 1..=account.credits;
        let are_credits = numbered.keys().copied().eq(known)
            && numbered.len() == credits.len()
            && places == numbered.iter().map(|(number, id)| (number % MAX_CREDITS, *id)).collect();
        let is_sound = is_queued && are_credits && held.values().eq(&account.ends);
        let queue = items.into_values().collect();
        is_sound.then(|| State(Box::new(Contents { account, streams, queue, credits })))
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let Contents { account, streams, queue, credits } = &*self.0;
        let mut fields = BTreeMap::from([(ACCOUNT.to_vec(), account.pack())]);
        for (number, Item { holder, due }) in (account.first..).zip(queue) {
            let item = [(*holder as f64).to_le_bytes(), (*due as f64).to_le_bytes()].concat();
            fields.insert(field(ITEM, number), item);
        }
        for (holder, entries) in streams {
            let pack = |Entry { at, hits, kind }: &Entry| {
                let wholes = [*at, *hits].map(|whole| (whole as f64).to_le_bytes());
                [wholes.as_flattened(), &(*kind as u32).to_le_bytes()].concat()
            };
            fields.insert(field(STREAM, *holder), entries.iter().flat_map(pack).collect());
        }
        for (id, Credited { number, asked, done, kind }) in credits {
            let wholes = [*number, *asked, *done].map(|whole| (whole as f64).to_le_bytes());
            let packed = [wholes.as_flattened(), &(*kind as u32).to_le_bytes()].concat();
            fields.insert(field(CREDIT, *id), packed);
            fields.insert(field(PLACE, number % MAX_CREDITS), (*id as f64).to_le_bytes().to_vec());
        }
        pack_fields(&fields)
    }
}

impl Account {
    fn unpack(bytes: &[u8], places: usize) -> Option<Account> {
        let mut packed = Packed(bytes);
        let (at, shift, known_until) = (packed.whole()?, packed.whole()?, packed.whole()?);
        let (first, next, due, learned) = (packed.whole()?, packed.whole()?, packed.whole()?, packed.whole()?);
        let (extra, credits, refunded) = (packed.whole()?, packed.whole()?, packed.whole()?);
        let number = packed.count()?;
        let counts = (0..places).map(|_| packed.whole()).collect::<Option<Counts>>()?;
        let mut ends = Vec::new();
        for _ in 0..number {
            let (at, hits, charged) = (packed.whole()?, packed.whole()?, packed.whole()?);
            ends.push(End { at, hits, charged, holds: packed.count()? });
        }
        let is_end = |end: &End| end.at > at && end.charged <= end.hits && (1..=end.hits).contains(&end.holds.into());
        let is_sound = packed.is_empty()
            && first <= next
            && (first < next || due == 0)
            && ends.is_sorted_by(|one, other| one.at < other.at)
            && ends.iter().map(|end| u128::from(end.hits)).sum::<u128>() < u128::from(MAX_HITS)
            && ends.iter().all(is_end);
        is_sound.then_some(Account {
            at,
            shift,
            known_until,
            first,
            next,
            due,
            learned,
            extra,
            credits,
            refunded,
            counts,
            ends,
        })
    }

    fn pack(&self) -> Vec<u8> {
        let Account { at, shift, known_until, first, next, due, learned, extra, credits, refunded, counts, ends } =
            self;
        let wholes = [at, shift, known_until, first, next, due, learned, extra, credits, refunded];
        let mut bytes: Vec<u8> = wholes.into_iter().flat_map(|whole| (*whole as f64).to_le_bytes()).collect();
        bytes.extend((ends.len() as u32).to_le_bytes());
        bytes.extend(counts.iter().flat_map(|count| (*count as f64).to_le_bytes()));
        for End { at, hits, charged, holds } in ends {
            bytes.extend([at, hits, charged].into_iter().flat_map(|whole| (*whole as f64).to_le_bytes()));
            bytes.extend(holds.to_le_bytes());
        }
        bytes
    }
}
