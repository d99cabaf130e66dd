//! What stores keep of adjustments: the script and its twin.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use proptest::prelude::*;
use support::redis::Redis;
use tollgate::engine::adjustment::{Adjustment, Id, MOST, Proposal, Written};
use tollgate::engine::clock::Clock;
use tollgate::shared::adjustment::AdjustmentStore;
use tollgate::shared::adjustment::audit::Note;
use tollgate::shared::adjustment::board::{Command, MemoryAdjustments, Offer, Outcome, remaining};
use tollgate::shared::adjustment::redis::RedisAdjustments;
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::store::redis::topology::route::Route;

use super::written;

fn config(redis: &Redis) -> RedisConfig {
    RedisConfig {
        on_call: OnCall::default(),
        address: redis.url().parse().unwrap(),
        connections: 1,
        timeout: Duration::from_secs(30),
        queue: 100,
        key_prefix: "p:".to_owned(),
        per_second: None,
    }
}

/// Returns one that takes effect by night if it lets requests pass.
fn proposal(id: &str, effect: &str, lasts: &str) -> Proposal {
    let hours = (effect == "pass").then(|| "22:00-06:00".to_owned());
    let written =
        Written { time_zone: hours.as_ref().map(|_| "Europe/Berlin".to_owned()), hours, ..written(id, effect, lasts) };
    written.proposal(|| unreachable!("it has an id")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_write_at_once_both_do_and_a_lost_connection_is_made_anew() {
    let redis = Redis::start();
    let writers = [(); 2].map(|()| Arc::new(RedisAdjustments::new(&Route::start(config(&redis)).unwrap())));
    let mut writing = tokio::task::JoinSet::new();
    for (place, writer) in writers.iter().enumerate() {
        let writer = Arc::clone(writer);
        writing.spawn(async move {
            for i in 0..50 {
                let proposal = proposal(&format!("w{place}-{i}"), "pass", "1h");
                // Repeats the command, as a client does whose reply was lost.
                for outcome in [Outcome::Done, Outcome::Same] {
                    assert_eq!(
                        writer.ask(0, Command::Begin(&proposal, &Note::default())).await.unwrap().outcome,
                        outcome
                    );
                }
            }
        });
    }
    writing.join_all().await;
    redis.command::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
    let read = writers[0].ask(0, Command::Read).await.unwrap();
    assert_eq!((read.outcome, read.adjustments.len()), (Outcome::Read, 100));
    let unchanged = writers[1].ask(read.version, Command::Read).await.unwrap();
    assert_eq!((unchanged.outcome, unchanged.adjustments.len()), (Outcome::Unchanged, 0));
    let ttl: i64 = redis.command("PTTL p:{|adjustments}|list").await;
    // An instance removes what is over; if none does, it goes a day later.
    assert!((89_800_000..=90_000_000).contains(&ttl), "{ttl}");
    // Adjustments of another version are ignored.
    redis.command::<()>("SET p:{|adjustments}|list 1").await;
    redis.command::<()>("SET p:{|adjustments}|version 7").await;
    let read = writers[0].ask(0, Command::Read).await.unwrap();
    assert_eq!((read.adjustments.len(), read.unreadable, read.version), (0, 1, 7));
}

#[tokio::test]
async fn lines_that_cannot_be_read_stay_and_stand_in_nobodys_way() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let adjustments = RedisAdjustments::new(&Route::start(config(&redis)).unwrap());
    let ask = async |command: Command<'_>| adjustments.ask(0, command).await.unwrap();
    assert_eq!(ask(Command::Begin(&proposal("one", "block", "1h"), &Note::default())).await.outcome, Outcome::Done);
    let (version, list) = ("p:{|adjustments}|version", "p:{|adjustments}|list");
    let one: String = cmd("GET").arg(list).query_async(&mut connection).await.unwrap();
    let (since, content) = (one.split(' ').next().unwrap(), one.splitn(4, ' ').nth(3).unwrap());
    let unreadable = [
        "nonsense".to_owned(),
        format!("{since}.5 {since}9 fraction {content}"),
        format!("{since} {since}9  {content}"),
        format!("-5 {since}9 negative {content}"),
        format!("{since} 1 backwards {content}"),
        format!("{since} 99999999999999999999 late {content}"),
    ]
    .map(|line| line.trim_end().as_bytes().to_vec());
    let far = format!("{since} 99999999999999 far {content}");
    for damaged_version in ["1e308", "nonsense", "99999999999999999999"] {
        let text = [one.as_bytes(), far.as_bytes(), b"\xff\xfe is no text\n", &unreadable.join(&b'\n'), b"\n"].concat();
        cmd("SET").arg(list).arg(text).arg("PX").arg(60_000).exec_async(&mut connection).await.unwrap();
        cmd("SET").arg(version).arg(damaged_version).exec_async(&mut connection).await.unwrap();
        assert_eq!(ask(Command::Read).await.unreadable, unreadable.len() + 1);
        assert_eq!(ask(Command::Begin(&proposal("two", "pass", "10s"), &Note::default())).await.outcome, Outcome::Done);
        assert_eq!(ask(Command::End(&Id::parse("one").unwrap(), &Note::default())).await.outcome, Outcome::Done);
        let read = ask(Command::Read).await;
        assert_eq!((read.adjustments.len(), read.unreadable), (2, unreadable.len() + 1), "{read:?}");
        assert_eq!(
            read.adjustments[0].lasts(),
            Duration::from_secs(7 * 86_400),
            "it is far, and no further than may be"
        );
        assert_eq!(ask(Command::End(&Id::parse("far").unwrap(), &Note::default())).await.outcome, Outcome::Done);
        assert_eq!(ask(Command::End(&Id::parse("two").unwrap(), &Note::default())).await.outcome, Outcome::Done);
        // They are kept until they expire.
        let kept: Vec<u8> = cmd("GET").arg(list).query_async(&mut connection).await.unwrap();
        let lines: Vec<&[u8]> = kept.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(lines[1..], unreadable.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let ttl: i64 = cmd("PTTL").arg(list).query_async(&mut connection).await.unwrap();
        assert!((1..=8 * 86_400_000).contains(&ttl), "{ttl}");
        assert_eq!(ask(Command::Begin(&proposal("one", "block", "1h"), &Note::default())).await.outcome, Outcome::Done);
    }
}

#[tokio::test]
async fn keys_of_another_type_stand_in_nobodys_way() {
    let redis = Redis::start();
    let adjustments = RedisAdjustments::new(&Route::start(config(&redis)).unwrap());
    let ask = async |command: Command<'_>| adjustments.ask(0, command).await.unwrap();
    for damage in ["LPUSH p:{|adjustments}|list x", "SADD p:{|adjustments}|version x"] {
        redis.command::<()>("DEL p:{|adjustments}|list p:{|adjustments}|version").await;
        redis.command::<()>(damage).await;
        assert_eq!(adjustments.ask(7, Command::Read).await.unwrap().adjustments.len(), 0, "{damage}");
        assert_eq!(ask(Command::End(&Id::parse("one").unwrap(), &Note::default())).await.outcome, Outcome::Unknown);
        assert_eq!(ask(Command::Begin(&proposal("one", "block", "1h"), &Note::default())).await.outcome, Outcome::Done);
        assert_eq!(ask(Command::Read).await.adjustments.len(), 1, "{damage}");
        assert_eq!(ask(Command::End(&Id::parse("one").unwrap(), &Note::default())).await.outcome, Outcome::Done);
    }
}

#[tokio::test]
async fn there_may_be_so_many_and_one_that_ends_makes_room() {
    let redis = Redis::start();
    let shared = AdjustmentStore::Redis(Box::new(RedisAdjustments::new(&Route::start(config(&redis)).unwrap())));
    for store in [shared, AdjustmentStore::Memory(MemoryAdjustments::default())] {
        let ask = async |command: Command<'_>| store.ask(0, command).await.unwrap().outcome;
        for i in 0..MOST {
            assert_eq!(
                ask(Command::Begin(&proposal(&i.to_string(), "pass", "1h"), &Note::default())).await,
                Outcome::Done
            );
        }
        let more = proposal("more", "pass", "1h");
        assert_eq!(ask(Command::Begin(&more, &Note::default())).await, Outcome::Full);
        assert_eq!(ask(Command::End(&Id::parse("7").unwrap(), &Note::default())).await, Outcome::Done);
        assert_eq!(ask(Command::End(&Id::parse("7").unwrap(), &Note::default())).await, Outcome::Unknown);
        assert_eq!(ask(Command::Begin(&more, &Note::default())).await, Outcome::Done);
    }
}

/// A clock that tests set.
#[derive(Clone, Default)]
struct HandClock(Arc<std::sync::atomic::AtomicU64>);

impl Clock for HandClock {
    fn now(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The script behind the clock of `support/clock.lua`.
const SCRIPT: &str = concat!(include_str!("../support/clock.lua"), include_str!("../../../lua/adjustments.lua"));

#[derive(Clone, Debug)]
enum Step {
    Move(i64),
    Begin(u8, bool, u64),
    End(u8),
    Sweep,
    /// With the ID and the effect as in `Begin`, how long it has held, and whether the version is the present one.
    Offer(u8, bool, u64, u64, bool),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_twins_keep_the_same_adjustments_whatever_the_clock_does(
        steps in prop::collection::vec(prop_oneof![
            (-20_000..20_000_i64).prop_map(Step::Move),
            (0..4_u8, any::<bool>(), 1..30_u64).prop_map(|(id, pass, lasts)| Step::Begin(id, pass, lasts)),
            (0..4_u8).prop_map(Step::End),
            Just(Step::Sweep),
            (0..4_u8, any::<bool>(), 1..30_u64, 0..30_000_u64, prop::bool::weighted(0.8))
                .prop_map(|(id, pass, lasts, held, is_known)| Step::Offer(id, pass, lasts, held, is_known)),
        ], 1..30)
    ) {
        thread_local!(static REDIS: Redis = Redis::start());
        REDIS.with(|redis| {
            let mut connection =
                deadpool_redis::redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
            deadpool_redis::redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
            let clock = HandClock(Arc::new(1_784_000_000_123.into()));
            let twin = MemoryAdjustments::new(clock.clone());
            // The versions of script and twin.
            let mut versions = (0, 0);
            for step in steps {
                if let Step::Move(ms) = step {
                    clock.0.store(clock.now().checked_add_signed(ms).unwrap(), std::sync::atomic::Ordering::Relaxed);
                }
                deadpool_redis::redis::cmd("SET").arg("clock").arg(clock.now()).exec(&mut connection).unwrap();
                let id = |id: u8| format!("id{id}");
                let proposed = match step {
                    Step::Begin(i, pass, lasts) | Step::Offer(i, pass, lasts, ..) => {
                        Some(proposal(&id(i), if pass { "pass" } else { "block" }, &format!("{lasts}s")))
                    }
                    _ => None,
                };
                let note = Note { who: Some("ann".to_owned()), ..Note::default() };
                let ended = if let Step::End(i) = step { Id::parse(&id(i)) } else { None };
                let offered = |seen: u64, of: &Step| match of {
                    Step::Offer(.., held, is_known) => {
                        Some((Duration::from_millis(*held), if *is_known { seen } else { seen + 1 }))
                    }
                    _ => None,
                };
                let command = match (&proposed, &ended) {
                    (Some(proposal), _) if let Some((held, seen)) = offered(versions.1, &step) => {
                        Command::Offer(Offer { proposal, note: &note, held, seen })
                    }
                    (Some(proposal), _) => Command::Begin(proposal, &note),
                    (_, Some(id)) => Command::End(id, &note),
                    _ if matches!(step, Step::Sweep) => Command::Sweep,
                    _ => Command::Read,
                };
                let mut call = deadpool_redis::redis::cmd("EVAL");
                call.arg(SCRIPT).arg(4).arg("version").arg("list").arg("audit").arg("refused");
                match command {
                    Command::Read => call.arg("read"),
                    Command::Begin(proposal, _) => call
                        .arg("begin")
                        .arg(proposal.id.as_str())
                        .arg(proposal.lasts.as_millis() as u64)
                        .arg(serde_json::to_string(&Written::from(&proposal.content)).unwrap())
                        .arg(1_000)
                        .arg(serde_json::to_string(&note).unwrap()),
                    Command::Offer(Offer { proposal, held, .. }) => call
                        .arg("offer")
                        .arg(proposal.id.as_str())
                        .arg(proposal.lasts.as_millis() as u64)
                        .arg(serde_json::to_string(&Written::from(&proposal.content)).unwrap())
                        .arg(1_000)
                        .arg(serde_json::to_string(&note).unwrap())
                        .arg(held.as_millis() as u64)
                        .arg(offered(versions.0, &step).unwrap().1),
                    Command::End(id, _) => {
                        let rest = ["", "", "", &serde_json::to_string(&note).unwrap()];
                        call.arg("end").arg(id.as_str()).arg(&rest)
                    }
                    Command::Sweep => call.arg("sweep"),
                };
                let (now, outcome, version, lines): (u64, String, String, String) =
                    call.query(&mut connection).unwrap();
                let reply = twin.ask(u64::MAX, command);
                versions = (version.parse().unwrap(), reply.version);
                prop_assert_eq!(now, reply.now_ms);
                prop_assert_eq!(outcome, format!("{:?}", reply.outcome).to_lowercase());
                prop_assert_eq!(version == "0", reply.version == 0);
                let ours = |one: &Adjustment| {
                    let content = serde_json::to_string(&Written::from(&one.content)).unwrap();
                    format!("{} {} {} {content}\n", one.since_ms, one.until_ms, one.id)
                };
                let trail: Vec<String> = deadpool_redis::redis::cmd("LRANGE")
                    .arg("audit")
                    .arg(0)
                    .arg(-1)
                    .query(&mut connection)
                    .unwrap();
                prop_assert_eq!(trail, twin.kept_changes());
                prop_assert_eq!(lines, reply.adjustments.iter().map(ours).collect::<String>());
                for one in &reply.adjustments {
                    prop_assert!(remaining(one, now) <= one.lasts() && one.lasts() < Duration::from_secs(30));
                }
            }
            Ok(())
        })?;
    }
}
