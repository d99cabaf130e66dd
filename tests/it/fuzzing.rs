//! Fuzzing of all external input: rules files, requests, addresses of Redis, replies of the script, and the contents of
//! keys in Redis. Each case is generated from a seed, which reproduces it (apart from Redis's clock); most are valid
//! inputs with random damage.
//!
//! `make fuzz` runs each target for five minutes; `TOLLGATE_FUZZ_SEED=N cargo test --test it NAME` repeats a case.
//!
//! Why without a fuzzer: libFuzzer needs a nightly compiler to see what a case reaches. Without that view, on stable,
//! bolero draws at random as this does, and is one more dependency; proptest's strategies cannot mutate a file.

use crate::support;

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};

use deadpool_redis::redis::{Client, Connection, cmd};
use fastrand::Rng;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use prost::Message as _;
use support::limits::{any_limit, any_penalty, ask, small_limit};
use support::redis::Redis;
use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Charge, Limit, MAX_HITS, Options, Penalty};
use tollgate::engine::check::{Check, Key, Origin, Penalized, StoreError};
use tollgate::engine::descriptor::Role;
use tollgate::engine::rules::Rules;
use tollgate::grpc::{Headers, RequestLimits, Service, ServiceOptions, Upstream};
use tollgate::limiter::{Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::sources::files::load::{self, LoadOptions, Sources};
use tollgate::store::memory::MemoryStore;
use tollgate::store::redis::script::{self, ANSWER, Group, Reply, TIME};
use tollgate::store::redis::topology::address::RedisAddress;
use tollgate::wire::rate_limit_descriptor::{Entry, RateLimitOverride};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitService as _};

/// A case that takes this long is a hang.
const HANG: Duration = Duration::from_secs(60);

/// Runs this many cases; or, depending on the environment, as many as fit into a time, or a single one.
fn fuzz(cases: u64, mut case: impl FnMut(&mut Rng) + Send + 'static) {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seconds = setting("TOLLGATE_FUZZ_SECONDS");
    let (first, end) = match (setting("TOLLGATE_FUZZ_SEED"), seconds) {
        (Some(seed), _) => (seed, seed + 1),
        (None, Some(_)) => (fastrand::u64(..1 << 48), u64::MAX),
        (None, None) => (0, cases),
    };
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(u32::MAX.into()));
    let (begins, begun) = mpsc::channel();
    let runs = std::thread::spawn(move || {
        for seed in first..end {
            if Instant::now() > until {
                eprintln!("{} cases from seed {first} on", seed - first);
                break;
            }
            begins.send((seed, None::<Box<dyn Any + Send>>)).unwrap();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut Rng::with_seed(seed)))) {
                begins.send((seed, Some(panic))).unwrap();
                return;
            }
        }
    });
    // Resources of the cases, including a Redis, are dropped with their thread.
    let wait = || runs.join().unwrap();
    let mut last = first;
    loop {
        match begun.recv_timeout(HANG) {
            Ok((seed, None)) => last = seed,
            Ok((seed, Some(panic))) => {
                eprintln!("it was TOLLGATE_FUZZ_SEED={seed}");
                wait();
                std::panic::resume_unwind(panic)
            }
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("TOLLGATE_FUZZ_SEED={last} does not end"),
            Err(mpsc::RecvTimeoutError::Disconnected) => return wait(),
        }
    }
}

/// Generates a value with a strategy of the other tests.
fn draw<T: std::fmt::Debug>(rng: &mut Rng, strategy: impl Strategy<Value = T>) -> T {
    let mut seed = [0; 32];
    rng.fill(&mut seed);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    strategy.new_tree(&mut TestRunner::new_with_rng(Config::default(), rng)).unwrap().current()
}

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.usize(..=most)];
    rng.fill(&mut bytes);
    bytes
}

/// A double at which arithmetic likes to break.
fn double(rng: &mut Rng) -> f64 {
    let two_53 = MAX_HITS as f64;
    let odd =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.5, -1.0, 1e300, 5e-324, two_53, -two_53, two_53 - 1.0];
    match rng.usize(..4) {
        0 => odd[rng.usize(..odd.len())],
        1 => f64::from_bits(rng.u64(..)),
        2 => rng.i64(-100..100) as f64,
        _ => 1.8e12 + rng.i64(-1_000_000_000_000..1_000_000_000_000) as f64,
    }
}

/// Damages bytes in a few places.
pub fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=bytes.len());
        let end = (at + rng.usize(..24)).min(bytes.len());
        match rng.usize(..7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            2 if at < bytes.len() => bytes[at] = rng.u8(..),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                // Damages four bytes at an aligned position, where a double may be.
                let at = at / 4 * 4;
                if let Some(place) = bytes.get_mut(at..at + 8) {
                    place.copy_from_slice(&double(rng).to_le_bytes());
                } else {
                    bytes.extend(double(rng).to_le_bytes());
                }
            }
        }
    }
}

/// Every rules file of the tests and the examples.
static FILES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folders = ["config/rules", "tests/rules/accepted", "tests/rules/warned", "tests/rules/refused"];
    let mut paths: Vec<_> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).collect()
});

/// Fragments of rules files: YAML's special characters, and boundary values.
const WORDS: &[&str] = &[
    "&a",
    "*a",
    "<<: *a",
    "? ",
    "- ",
    ": ",
    "|",
    ">-",
    "!!binary",
    "!!str ",
    "%YAML 1.2\n",
    "---\n",
    "...\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "#",
    "\t",
    "\u{feff}",
    "\0",
    "\u{85}",
    "\u{2028}",
    "~",
    "null",
    "true",
    ".nan",
    "-.inf",
    "0x7fffffffffffffff",
    "-1",
    "0",
    "1e309",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "99999999999999999999",
    "0.5",
    "1ms",
    "366d",
    "9999999999999d",
    "-1s",
    "year",
    "week",
    "domain",
    "descriptors",
    "key",
    "value",
    "value_prefix",
    "rate_limit",
    "rate_limits",
    "unit",
    "requests_per_unit",
    "period",
    "unlimited",
    "algorithm",
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "token_bucket",
    "leaky_bucket",
    "concurrency",
    "burst",
    "max_delay",
    "hold",
    "initial",
    "segments",
    "weighting",
    "time_zone",
    "starts_on",
    "starts",
    "first_request",
    "Asia/Shanghai",
    "count_denied",
    "penalty",
    "lease",
    "shadow_mode",
    "quota_mode",
    "replaces",
    "name",
    "cost",
    "share_threshold",
    "failure_mode",
    "give_back",
    "defaults",
    "detailed_metric",
    "*",
    "é\u{301}",
    "\u{10ffff}",
];

/// A rules file that is damaged: by lines, words, or bytes.
fn damaged_rules(rng: &mut Rng) -> Vec<u8> {
    let file = |rng: &mut Rng| &FILES[rng.usize(..FILES.len())];
    let mut text = file(rng).clone();
    for _ in 0..rng.usize(..5) {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = rng.usize(..lines.len().max(1)).min(lines.len());
        match rng.usize(..8) {
            0 if at < lines.len() => drop(lines.remove(at)),
            1 if at < lines.len() => lines.insert(at, lines[at].clone()),
            2 if at < lines.len() => lines[at].insert_str(0, &" ".repeat(rng.usize(..5))),
            3 if at < lines.len() => lines[at] = lines[at].trim_start().to_owned(),
            4 => {
                let others: Vec<&str> = file(rng).lines().collect();
                let from = rng.usize(..others.len().max(1)).min(others.len());
                let to = (from + rng.usize(1..12)).min(others.len());
                lines.splice(at..at, others[from..to].iter().map(|line| (*line).to_owned()));
            }
            5 if at < lines.len() => {
                // A word for a word.
                let words: Vec<&str> = lines[at].split_inclusive(' ').collect();
                let (place, word) = (rng.usize(..words.len().max(1)), WORDS[rng.usize(..WORDS.len())]);
                lines[at] = words.iter().enumerate().map(|(i, old)| if i == place { word } else { old }).collect();
            }
            6 if at < lines.len() => {
                // Something deep, or long.
                let word = WORDS[rng.usize(..WORDS.len())];
                lines[at].push_str(&word.repeat(rng.usize(..3_000)));
            }
            _ if at < lines.len() => {
                let line = &mut lines[at];
                let places: Vec<usize> = line.char_indices().map(|(i, _)| i).chain([line.len()]).collect();
                line.insert_str(places[rng.usize(..places.len())], WORDS[rng.usize(..WORDS.len())]);
            }
            _ => {}
        }
        text = lines.join("\n");
    }
    let mut bytes = text.into_bytes();
    if rng.usize(..4) == 0 {
        damage(rng, &mut bytes);
    }
    bytes
}

/// The service on the memory store under these rules.
fn service(rules: Rules) -> Service<MemoryStore> {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let limiter =
        Limiter::new(LimiterOptions::default(), Arc::default(), Arc::<MemoryStore>::default(), Arc::clone(&metrics));
    limiter.put_in_force(rules);
    let options = ServiceOptions {
        limits: RequestLimits { descriptors: 10, entries: 10, key_bytes: 100, value_bytes: 100 },
        headers: Headers::Off,
        decided_by_header: None,
        dynamic_metadata: false,
        upstream: Upstream::default(),
        store_timeout: Duration::from_secs(1),
        request_ids: false,
    };
    Service::new(Arc::new(limiter), metrics, options)
}

/// A clock that needs no waiting.
fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// The words of a text of rules: keys, values, names.
fn words(text: &str) -> Vec<&str> {
    let is_part = |char: char| char.is_alphanumeric() || "_-./*".contains(char);
    text.split(|char| !is_part(char)).filter(|word| !word.is_empty()).collect()
}

/// A request of these words, mostly a valid one.
fn request(rng: &mut Rng, words: &[&str]) -> RateLimitRequest {
    let word = |rng: &mut Rng| match rng.usize(..30) {
        0 => String::new(),
        1 => "x".repeat(rng.usize(..120)),
        2 => WORDS[rng.usize(..WORDS.len())].to_owned(),
        _ => (*rng.choice(words).unwrap_or(&"a")).to_owned(),
    };
    // A plausible value for this word in rules.
    let of = |rng: &mut Rng, name: &str| {
        let named: Vec<&str> = words.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1]).collect();
        if rng.usize(..8) == 0 { word(rng) } else { (*rng.choice(&named).unwrap_or(&"a")).to_owned() }
    };
    let hits = |rng: &mut Rng| match rng.usize(..6) {
        0 => rng.u64(..),
        1 => MAX_HITS - rng.u64(..2),
        2 => u64::from(u32::MAX) + rng.u64(..2),
        _ => rng.u64(..5),
    };
    let descriptor = |rng: &mut Rng| RateLimitDescriptor {
        entries: (0..rng.usize(..3))
            .map(|_| Entry { key: of(rng, "key").into(), value: of(rng, "value").into() })
            .collect(),
        limit: (rng.usize(..8) == 0).then(|| RateLimitOverride {
            requests_per_unit: rng.u32(..) >> rng.u32(..32),
            unit: rng.i32(-1..9),
            unit_multiplier: rng.bool().then(|| rng.u32(..) >> rng.u32(..32)),
        }),
        hits_addend: (rng.usize(..4) == 0).then(|| hits(rng)),
        is_negative_hits: rng.usize(..6) == 0,
    };
    let descriptors = (0..rng.usize(..5)).map(|_| descriptor(rng)).collect();
    let hits_addend = if rng.bool() { 0 } else { rng.u32(..) >> rng.u32(..32) };
    RateLimitRequest { domain: of(rng, "domain").into(), descriptors, hits_addend }
}

/// Sends a request, and checks the response.
fn judge(service: &Service<MemoryStore>, runtime: &tokio::runtime::Runtime, asked: RateLimitRequest) {
    let mut call = tonic::Request::new(asked.clone());
    call.set_timeout(Duration::from_millis(500));
    let answer = match runtime.block_on(service.should_rate_limit(call)) {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            let expected = [tonic::Code::InvalidArgument, tonic::Code::Unavailable, tonic::Code::DeadlineExceeded];
            assert!(expected.contains(&status.code()), "{status:?} for {asked:?}");
            assert!(status.message().len() < 1_000, "{} bytes are told", status.message().len());
            return;
        }
    };
    assert_eq!(answer.statuses.len(), asked.descriptors.len(), "{asked:?}");
    for status in &answer.statuses {
        assert_ne!(status.code(), Code::Unknown, "{asked:?}: {answer:?}");
        if let Some(reset) = &status.duration_until_reset {
            assert!(reset.seconds >= 0 && reset.nanos == 0, "{asked:?}: {answer:?}");
        }
    }
    let any_over = answer.statuses.iter().any(|status| status.code() == Code::OverLimit);
    assert!(answer.overall_code() == Code::Ok || any_over, "{asked:?}: {answer:?}");
    let travelled = tollgate::wire::RateLimitResponse::decode(&answer.encode_to_vec()[..]).unwrap();
    assert_eq!(travelled, answer);
}

#[test]
fn rules_are_refused_or_hold() {
    let folder = ["/dev/shm", "/tmp"].map(std::path::PathBuf::from).into_iter().find(|folder| folder.is_dir()).unwrap();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile_in(folder).unwrap();
    let sources = Sources { paths: vec![file.path().to_owned()] };
    let runtime = paused();
    fuzz(6_000, move |rng| {
        let text = damaged_rules(rng);
        std::fs::write(file.path(), &text).unwrap();
        match load::load(&sources, &LoadOptions::default()) {
            Ok(loaded) => {
                let text = String::from_utf8(text).expect("rules are UTF-8");
                let (service, words) = (service(loaded.rules), words(&text));
                for _ in 0..5 {
                    judge(&service, &runtime, request(rng, &words));
                }
            }
            Err(error) => {
                let told = error.to_string();
                assert!(!told.is_empty() && told.len() < 100_000, "{} bytes are told", told.len());
                assert!(!told.contains(['\0', '\u{1b}']), "{told:?} would reach a terminal");
            }
        }
    });
}

#[test]
fn every_request_is_decided_or_refused() {
    let runtime = paused();
    // A service for each rules file, recreated now and then, so that limits are used up and yet some requests pass.
    let mut services: HashMap<usize, (u32, Service<MemoryStore>)> = HashMap::new();
    let accepted = |text: &String| {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, text).unwrap();
        let sources = Sources { paths: vec![file.path().to_owned()] };
        load::load(&sources, &LoadOptions::default()).is_ok().then_some((file, sources, text.clone()))
    };
    let rules: Vec<_> = FILES.iter().filter_map(accepted).collect();
    fuzz(60_000, move |rng| {
        let chosen = rng.usize(..rules.len());
        let (_, sources, text) = &rules[chosen];
        let fresh = || (0, service(load::load(sources, &LoadOptions::default()).unwrap().rules));
        let (asked, service) = services.entry(chosen).or_insert_with(fresh);
        *asked += 1;
        let words = words(text);
        let mut request = request(rng, &words);
        if rng.usize(..3) == 0 {
            let mut bytes = request.encode_to_vec();
            damage(rng, &mut bytes);
            request = RateLimitRequest::decode(&bytes[..]).unwrap_or_default();
        }
        judge(service, &runtime, request);
        if *asked > 500 {
            services.remove(&chosen);
        }
    });
}

/// The messages of a request as prost generates them.
mod generated {
    use tollgate::wire::rate_limit_descriptor::RateLimitOverride;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RateLimitRequest {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(message, repeated, tag = "2")]
        descriptors: Vec<RateLimitDescriptor>,
        #[prost(uint32, tag = "3")]
        hits_addend: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct RateLimitDescriptor {
        #[prost(message, repeated, tag = "1")]
        entries: Vec<Entry>,
        #[prost(message, optional, tag = "2")]
        limit: Option<RateLimitOverride>,
        #[prost(message, optional, tag = "3")]
        hits_addend: Option<u64>,
        #[prost(bool, tag = "4")]
        is_negative_hits: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Entry {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }
}

/// Unknown groups in one another, about as many as prost reads.
fn nested_groups(rng: &mut Rng) -> Vec<u8> {
    let depth = rng.usize(94..104);
    [vec![0x7b; depth], vec![0x7c; depth]].concat()
}

/// A request with unknown fields in some of its messages.
fn extended_request(rng: &mut Rng) -> Vec<u8> {
    fn field(tag: u8, message: &[u8], rest: &[u8]) -> Vec<u8> {
        let mut out = vec![tag << 3 | 2];
        prost::encode_length_delimiter(message.len() + rest.len(), &mut out).unwrap();
        [&out, message, rest].concat()
    }
    let mut asked = request(rng, WORDS);
    let unknown = |rng: &mut Rng| if rng.usize(..4) == 0 { nested_groups(rng) } else { Vec::new() };
    let descriptors: Vec<_> = asked
        .descriptors
        .drain(..)
        .flat_map(|mut descriptor| {
            let entries =
                descriptor.entries.drain(..).flat_map(|entry| field(1, &entry.encode_to_vec(), &unknown(rng)));
            let entries: Vec<u8> = entries.collect();
            let rest = [entries, unknown(rng)].concat();
            field(2, &descriptor.encode_to_vec(), &rest)
        })
        .collect();
    [asked.encode_to_vec(), descriptors, unknown(rng)].concat()
}

#[test]
fn a_request_is_read_as_prost_reads_it() {
    fuzz(60_000, |rng| {
        let mut bytes = if rng.bool() { extended_request(rng) } else { request(rng, WORDS).encode_to_vec() };
        if rng.bool() {
            damage(rng, &mut bytes);
        }
        let expected = generated::RateLimitRequest::decode(&bytes[..]);
        let read = RateLimitRequest::decode(&bytes[..]);
        let (first, last) = bytes.split_at(rng.usize(..=bytes.len()));
        assert_eq!(RateLimitRequest::decode(prost::bytes::Buf::chain(first, last)), read, "in two pieces: {bytes:?}");
        match (read, expected) {
            (Ok(read), Ok(expected)) => {
                assert_eq!(read.encoded_len(), expected.encoded_len(), "{bytes:?}");
                assert_eq!(read.encode_to_vec(), expected.encode_to_vec(), "{bytes:?}");
            }
            (read, expected) => assert_eq!(read.err(), expected.err(), "{bytes:?}"),
        }
    });
}

#[test]
fn an_address_is_refused_or_shown_without_its_password() {
    const FORMS: &[&str] = &[
        "localhost:6379",
        "[::1]:6380",
        "redis://cache",
        "redis://cache:7000/3",
        "redis://u:s3cr3t@cache:7000",
        "redis://:s3cr3t@cache",
        "redis://s3cr3t@[::1]:1/2",
        "unix:///run/redis.sock",
        "/run/redis.sock",
        "rediss://u:s3cr3t@cache",
        "redis://a%40b:s3cr3t%25@cache",
        "redis+sentinel://u:s3cr3t@a:1,b:2/main/3",
        "rediss+sentinel://s3cr3t@a/main",
        "redis-cluster://u:s3cr3t@a:1,b:2",
    ];
    const PARTS: &[&str] =
        &["@", ":", "/", "[", "]", "%", "%00", "%zz", "%c3", ",", " ", "\0", "é", "redis://", "unix://", "65536", "-1"];
    fuzz(150_000, |rng| {
        let mut text = FORMS[rng.usize(..FORMS.len())].to_owned();
        for _ in 0..rng.usize(..4) {
            let places: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
            let at = rng.usize(..places.len());
            if rng.bool() {
                text.insert_str(places[at], PARTS[rng.usize(..PARTS.len())]);
            } else if places[at] < text.len() {
                text.remove(places[at]);
            }
        }
        let address = match text.parse::<RedisAddress>() {
            Ok(address) => address,
            Err(error) => return assert!(!error.to_string().contains("s3cr3t"), "{text:?}: {error}"),
        };
        let shown = address.to_string();
        let credentials = text.split_once("://").filter(|(scheme, _)| scheme.starts_with("redis"));
        let credentials = credentials.and_then(|(_, rest)| rest.rsplit_once('@'));
        if let Some((_, place)) = credentials {
            assert!(place.contains("s3cr3t") || !shown.contains("s3cr3t"), "{text:?} is shown as {shown}");
        } else {
            assert!(shown.parse() == Ok(address), "{text:?} is shown as {shown}, which is another");
        }
    });
}

/// The checks of one request.
fn checks(rng: &mut Rng, name: &str) -> Vec<Check> {
    let mut descriptor = 0;
    let mut check = |i: usize, rng: &mut Rng| {
        let limit = if rng.bool() { draw(rng, any_limit()) } else { draw(rng, small_limit()) };
        let penalty = (rng.usize(..3) == 0).then(|| draw(rng, any_penalty()));
        let role = [Role::Enforced, Role::Quota, Role::Shadow][rng.usize(..3)];
        let wants = wants(rng);
        descriptor += usize::from(rng.bool());
        Check { role, descriptor, ..limited(&format!("{name}{i}"), limit, penalty, wants) }
    };
    (0..rng.usize(1..4)).map(|i| check(i, rng)).collect()
}

fn wants(rng: &mut Rng) -> Ask {
    match rng.usize(..12) {
        0 => Ask::Reset,
        1 => ask(rng.i64(-(MAX_HITS as i64)..=MAX_HITS as i64)),
        2 | 3 => ask(-rng.i64(1..6)),
        4 => {
            let (hits, at_ms) = (rng.u64(1..6), rng.u64(..MAX_HITS));
            Ask::TakeBack(Charge { hits, at_ms, reset_after_ms: rng.u64(..MAX_HITS) })
        }
        _ => ask(rng.i64(..).rem_euclid(6)),
    }
}

fn limited(name: &str, limit: Limit, penalty: Option<Penalty>, wants: Ask) -> Check {
    let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
    let penalty = penalty.map(|penalty| Penalized { key: key.of_penalty(&penalty), penalty });
    Check { penalty, ..Check::new(key, limit, wants) }
}

#[test]
fn a_reply_is_refused_or_says_something_to_each_check() {
    fuzz(9_000, |rng| {
        let groups: Vec<Group> = (0..rng.usize(1..4)).map(|_| Group::new(&checks(rng, "c"))).collect();
        let counters: usize = groups.iter().map(Group::counters).sum();
        let mut reply = f64::from(rng.u32(..)).to_le_bytes().to_vec();
        // A budget may tell two more numbers, which follow behind all answers.
        let mut more = Vec::new();
        for _ in 0..counters {
            let tells_more = rng.u8(..8) == 0;
            reply.extend([rng.u8(..2) + if tells_more { 8 } else { 0 }]);
            more.extend(tells_more.then(|| [0; 2].map(|_| f64::from(rng.u32(..)))));
            reply.extend(rng.u32(..).to_le_bytes());
            (0..3).for_each(|_| reply.extend((rng.u32(..) as f64).to_le_bytes()));
        }
        reply.extend(more.into_iter().flatten().flat_map(f64::to_le_bytes));
        match rng.usize(..4) {
            0 => {}
            1 => reply = bytes(rng, TIME + counters * ANSWER + 50),
            _ => damage(rng, &mut reply),
        }
        let Ok(mut read) = Reply::new(&reply, counters) else {
            let is_whole = |bytes: &[u8; 8]| {
                let number = f64::from_le_bytes(*bytes);
                number.fract() == 0.0 && (0.0..MAX_HITS as f64).contains(&number)
            };
            let Some((answers, behind)) = reply.get(TIME..).and_then(|rest| rest.split_at_checked(counters * ANSWER))
            else {
                return;
            };
            let told = answers.chunks(ANSWER).filter(|answer| answer[0] & 8 != 0).count();
            let are_whole = |more: &[u8]| more.as_chunks().0.iter().all(is_whole);
            let is_sound = behind.get(..told * 16).is_some_and(are_whole);
            return assert!(!reply.first_chunk().is_some_and(is_whole) || !is_sound);
        };
        for (i, group) in groups.iter().enumerate() {
            let Ok(verdicts) = read.next(group) else { continue };
            assert_eq!(verdicts.len(), group.checks(), "group {i}");
            for verdict in verdicts {
                let verdict = verdict.expect("every check was asked");
                let own = verdict.own;
                let ban_ms = verdict.ban.map_or(0, |ban| ban.left_ms);
                let times = [own.reset_after_ms, own.delay_ms, own.retry_after_ms.unwrap_or(0), ban_ms];
                assert!(times.iter().all(|time| *time < MAX_HITS), "{verdict:?}");
            }
        }
        assert!(matches!(read.next(&groups[0]), Err(StoreError::Answer)), "more groups than were asked");
    });
}

/// Writes a damaged counter to Redis.
fn spoil(rng: &mut Rng, redis: &mut Connection, key: &str) {
    let kind: String = cmd("TYPE").arg(key).query(redis).unwrap();
    let garbage = match rng.usize(..12) {
        0 => Some(("SET", vec![bytes(rng, 200)])),
        1 => Some(("SET", vec![bytes(rng, 4).repeat(rng.usize(..50_000))])),
        2 => Some(("RPUSH", (0..rng.usize(1..30)).map(|_| bytes(rng, 24)).collect())),
        3 => Some(("HSET", vec![bytes(rng, 9), bytes(rng, 9)])),
        4 => Some(("SADD", vec![bytes(rng, 9)])),
        5 => Some(("SET", vec![(0..rng.usize(..8)).flat_map(|_| double(rng).to_le_bytes()).collect()])),
        6 => {
            let item = |rng: &mut Rng| {
                let mut item = [double(rng), double(rng)].map(f64::to_le_bytes).concat();
                item.extend(rng.u32(..).to_le_bytes());
                item
            };
            Some(("RPUSH", (0..rng.usize(1..30)).map(|_| item(rng)).collect()))
        }
        _ => None,
    };
    match (garbage, &*kind) {
        (Some((command, values)), _) => {
            cmd("DEL").arg(key).exec(redis).unwrap();
            cmd(command).arg(key).arg(values).exec(redis).unwrap();
        }
        (None, "string") => {
            // It may have expired by now.
            let state: Option<Vec<u8>> = cmd("GET").arg(key).query(redis).unwrap();
            let Some(mut state) = state else { return };
            damage(rng, &mut state);
            cmd("SET").arg(key).arg(state).arg("PX").arg(60_000).exec(redis).unwrap();
        }
        (None, "list") => {
            let length: i64 = cmd("LLEN").arg(key).query(redis).unwrap();
            let at = rng.i64(..length.max(1));
            let item: Option<Vec<u8>> = cmd("LINDEX").arg(key).arg(at).query(redis).unwrap();
            let Some(mut item) = item else { return };
            damage(rng, &mut item);
            let _expired: Result<(), _> = cmd("LSET").arg(key).arg(at).arg(item).exec(redis);
        }
        (None, "hash") => {
            let fields: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = cmd("HGETALL").arg(key).query(redis).unwrap();
            let Some((field, mut value)) = fields.into_iter().nth(rng.usize(..4)) else { return };
            damage(rng, &mut value);
            cmd("HSET").arg(key).arg(field).arg(value).exec(redis).unwrap();
        }
        (None, _) => {}
    }
}

#[test]
fn a_damaged_counter_is_decided_and_disturbs_no_other() {
    // A busy machine can suspend Redis's thread, so only a very long call counts as a failure.
    const TOO_LONG_US: u32 = 1_000_000;
    let server = Redis::start_with(&["--slowlog-log-slower-than", &TOO_LONG_US.to_string()]);
    let mut redis = Client::open(server.url()).unwrap().get_connection().unwrap();
    script::load(false).for_each(|load| load.exec(&mut redis).unwrap());
    let healthy = Limit::new(Algorithm::SlidingWindow, 10, Duration::from_secs(3_600), Options::default()).unwrap();
    fuzz(4_500, move |rng| {
        let _runs = &server;
        cmd("FLUSHDB").exec(&mut redis).unwrap();
        let (before, after) =
            (limited("before", healthy, None, Ask::Take(1)), limited("after", healthy, None, Ask::Take(1)));
        let mut damaged = checks(rng, "damaged");
        for check in &mut damaged {
            check.caller = Caller { holder: rng.u64(..3), ..Caller::default() };
        }
        for turn in 1..8 {
            for check in &mut damaged {
                check.ask = wants(rng);
            }
            let groups = [slice::from_ref(&before), &damaged, slice::from_ref(&after)].map(Group::new);
            let reply: Vec<u8> = script::call(&groups).query(&mut redis).unwrap();
            let mut reply = Reply::new(&reply, groups.iter().map(Group::counters).sum()).unwrap();
            for (i, group) in groups.iter().enumerate() {
                let verdicts =
                    reply.next(group).unwrap_or_else(|error| panic!("{error:?} in turn {turn}: {damaged:?}"));
                if i != 1 {
                    let verdict = verdicts[0].unwrap();
                    assert!(verdict.allowed() && verdict.own.remaining == 10 - turn, "{verdict:?}");
                }
            }
            if turn == 3 {
                let keys: Vec<&Key> = tollgate::engine::check::group::keys(&damaged).collect();
                let key = keys[rng.usize(..keys.len())];
                spoil(rng, &mut redis, key.as_str());
            }
        }
        let slow: u32 = cmd("SLOWLOG").arg("LEN").query(&mut redis).unwrap();
        assert_eq!(slow, 0, "Redis was held up by {damaged:?}");
    });
}

#[test]
fn streams_of_one_name_do_not_hold_redis_up() {
    const SLOTS: u32 = 10_000;
    let server = Redis::start_with(&["--slowlog-log-slower-than", "1000000"]);
    let mut redis = Client::open(server.url()).unwrap().get_connection().unwrap();
    script::load(false).for_each(|load| load.exec(&mut redis).unwrap());
    let limit =
        Limit::new(Algorithm::Concurrency, SLOTS.into(), Duration::from_secs(3_600), Options::default()).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as f64;
    let slot = |holder: u32| [&f64::from(holder).to_le_bytes()[..], &now.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    let head = [SLOTS, SLOTS].map(u32::to_le_bytes).concat();
    // All slots of one name; and a name for each, which has been denied too.
    let one_name: Vec<u8> = (0..SLOTS).flat_map(|_| slot(1)).collect();
    let names: Vec<u8> = (0..SLOTS).chain((0..SLOTS).rev()).flat_map(slot).collect();
    for (slots, wants, free) in
        [(one_name.clone(), ask(-1), 1), (one_name, ask(-10_000), SLOTS.into()), (names, ask(1), 0)]
    {
        let check =
            Check { caller: Caller { holder: 1, ..Caller::default() }, ..limited("stream", limit, None, wants) };
        cmd("SET").arg(check.key.as_str()).arg([&head[..], &slots].concat()).exec(&mut redis).unwrap();
        let group = Group::new(&[check]);
        let reply: Vec<u8> = script::call([&group]).query(&mut redis).unwrap();
        let verdict = Reply::new(&reply, 1).unwrap().next(&group).unwrap()[0].unwrap();
        assert_eq!(verdict.own.remaining, free, "{wants:?}");
    }
    let slow: u32 = cmd("SLOWLOG").arg("LEN").query(&mut redis).unwrap();
    assert_eq!(slow, 0, "Redis was held up for more than a second");
}

#[test]
fn many_streams_of_few_names_are_the_same_in_redis_and_in_memory() {
    let server = Redis::start();
    let mut redis = Client::open(server.url()).unwrap().get_connection().unwrap();
    script::load(false).for_each(|load| load.exec(&mut redis).unwrap());
    let limit = Limit::new(Algorithm::Concurrency, 120, Duration::from_secs(3_600), Options::default()).unwrap();
    let (mut rng, memory) = (Rng::with_seed(1), MemoryStore::default());
    for call in 0..3_000 {
        // Mostly denied requests, so that the cache gets more denials than it can store.
        let wants = ask(if rng.usize(..8) == 0 { -rng.i64(1..4) } else { rng.i64(1..3) });
        let holder = rng.u64(..if call < 1_500 { 150 } else { 1_000 });
        let check = Check { caller: Caller { holder, ..Caller::default() }, ..limited("stream", limit, None, wants) };
        let group = Group::new(slice::from_ref(&check));
        let reply: Vec<u8> = script::call([&group]).query(&mut redis).unwrap();
        let there = Reply::new(&reply, 1).unwrap().next(&group).unwrap()[0].unwrap().own;
        let here = memory.decide(&[check]).unwrap()[0].unwrap().own;
        assert_eq!(
            (there.allowed, there.remaining),
            (here.allowed, here.remaining),
            "call {call}: {wants:?} of {holder}"
        );
    }
}
