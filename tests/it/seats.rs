//! The table of seats in Rust and in Lua are the same function.

use std::time::Duration;

use crate::support;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Value, cmd};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::redis::Redis;
use tollgate::engine::share::{Answer, Beat, Seat, Table};
use tollgate::shared::seats::redis::{SOURCE, answer, arguments};

const KEY: &str = "{|seats|}table";

const INSTANCES: [&str; 4] = ["a", "b-1", "host.local-2", "d"];

#[derive(Clone, Debug)]
enum Step {
    Beat {
        instance: usize,
        /// By how much its number is larger than the last one, and whether it is smaller instead.
        later: u64,
        is_late: bool,
        seat: Seat,
        stated: String,
        /// Whether it knows the present incarnation, and for how long.
        knows: bool,
        known_ms: u64,
        /// Instances that it calls silent, and whether their beats are the last ones.
        silent: Vec<(usize, bool)>,
    },
    /// Another server has the table.
    Move,
    /// The table is lost.
    Lose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = || 0..INSTANCES.len();
    let seat = prop_oneof![
        1 => Just(Seat::None),
        2 => (0..3_u32).prop_map(Seat::Hold),
        2 => (0..3_u32, 0..3_000_u64).prop_map(|(seat, after_ms)| Seat::Take(seat, after_ms)),
    ];
    let stated = prop_oneof![
        Just(String::new()),
        Just("600000 7:fe:500:2 7:fd:1000:4:0".to_owned()),
        Just("a future release says  this ".to_owned()),
    ];
    let silent = prop::collection::vec((one(), any::<bool>()), 0..3);
    let beat = (one(), 0..3_u64, prop::bool::weighted(0.1), seat, stated, any::<bool>(), 0..4_000_u64, silent);
    let beat = beat.prop_map(|(instance, later, is_late, seat, stated, knows, known_ms, silent)| Step::Beat {
        instance,
        later,
        is_late,
        seat,
        stated,
        knows,
        known_ms,
        silent,
    });
    prop::collection::vec(prop_oneof![20 => beat, 1 => Just(Step::Move), 1 => Just(Step::Lose)], 1..60)
}

/// The incarnation is named after the server, and Redis's name differs from that of the test.
fn without_server(answer: Answer) -> Answer {
    let incarnation = answer.incarnation.split('@').next().unwrap().to_owned();
    Answer { incarnation, ..answer }
}

async fn send(redis: &mut MultiplexedConnection, beat: &Beat<'_>) -> Answer {
    let mut call = cmd("EVAL");
    call.arg(SOURCE).arg(1).arg(KEY);
    for argument in arguments(beat) {
        call.arg(argument);
    }
    answer(call.query_async::<Value>(redis).await.unwrap()).unwrap()
}

async fn run(redis: &mut MultiplexedConnection, steps: Vec<Step>) -> Result<(), TestCaseError> {
    cmd("DEL").arg(KEY).exec_async(redis).await.unwrap();
    let (mut table, mut server, mut names) = (Table::default(), 0, 0);
    let mut last = [5_u64; INSTANCES.len()];
    let mut known = (String::new(), String::new());
    for step in steps {
        match step {
            Step::Move => {
                server += 1;
                let about: Option<String> = cmd("HGET").arg(KEY).arg("").query_async(redis).await.unwrap();
                if let Some(about) = about {
                    let mut words: Vec<&str> = about.split(' ').collect();
                    words[1] = "another";
                    cmd("HSET").arg(KEY).arg("").arg(words.join(" ")).exec_async(redis).await.unwrap();
                }
            }
            Step::Lose => {
                table = Table::default();
                cmd("DEL").arg(KEY).exec_async(redis).await.unwrap();
            }
            Step::Beat { instance, later, is_late, seat, stated, knows, known_ms, silent } => {
                let number = if is_late { last[instance] - 1 } else { last[instance] + later };
                last[instance] = number.max(last[instance]);
                let of_silent = |(other, is_last): &(usize, bool)| {
                    (INSTANCES[*other].to_owned(), last[*other] + u64::from(!is_last))
                };
                let silent: Vec<(String, u64)> = silent.iter().map(of_silent).collect();
                names += 1;
                let incarnation = format!("name{names}");
                let other = "other".to_owned();
                let (here, there) = if knows { (&known.0, &known.1) } else { (&other, &other) };
                let beat = |known| Beat {
                    id: INSTANCES[instance],
                    beat: number,
                    seat,
                    stated: &stated,
                    incarnation: &incarnation,
                    known: (known, known_ms),
                    silent: &silent,
                };
                let in_memory = table.beat(&format!("s{server}"), &beat(here));
                let in_redis = send(redis, &beat(there)).await;
                known = (in_memory.incarnation.clone(), in_redis.incarnation.clone());
                prop_assert_eq!(without_server(in_memory), without_server(in_redis));
            }
        }
    }
    Ok(())
}

#[test]
fn the_table_is_the_same_in_rust_and_in_lua() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connection = runtime.block_on(redis.connection());
    let tried = TestRunner::default().run(&steps(), |steps| runtime.block_on(run(&mut connection.clone(), steps)));
    tried.unwrap();
}

#[tokio::test]
async fn the_table_outlives_the_longest_period_and_a_damaged_entry_breaks_nothing() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let beat = Beat { id: "a", beat: 7, seat: Seat::Hold(1), stated: "x", incarnation: "i", ..Beat::default() };
    cmd("HSET").arg(KEY).arg("b").arg("nonsense").arg("").arg("?").exec_async(&mut connection).await.unwrap();
    let answer = send(&mut connection, &beat).await;
    assert_eq!((answer.entries["a"].seat, answer.entries["b"].seat), (Some(1), None));
    let ttl_ms: u64 = cmd("PTTL").arg(KEY).query_async(&mut connection).await.unwrap();
    assert!(Duration::from_millis(ttl_ms) > Duration::from_secs(400 * 24 * 60 * 60), "{ttl_ms} ms");
}
