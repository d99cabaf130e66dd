//! The cost of a budget's streams to Redis: they begin and settle, alone and among thousands of others.

use std::ops::Range;
use std::time::Duration;

use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin};
use tollgate::engine::descriptor::Entry;

use crate::cost::{Cost, median};
use crate::redis_loop::{Pipeline, RedisLoop};
use crate::rows::Measured;
use crate::stage::{Place, Stage};

/// Decisions that travel together.
const BATCH: u64 = 1_024;
/// Batches in a run.
const BATCHES: u64 = 8;
/// As many as a budget can nearly hold, less those that begin.
const MANY: u64 = 8_900;
const PERIOD: Duration = Duration::from_secs(3_600);

/// Measures a stream beside a decision of a sliding window, and a stream among many beside a lone one.
pub fn in_redis(stage: &Stage) -> Vec<Measured> {
    let redis = stage.redis(Place::BesideLoad);
    let processes = [("Redis", redis.pid())];
    let mut connection = RedisLoop::connect(&redis);
    let window = vec![check(Algorithm::SlidingWindow, "window"); BATCH as usize];
    let window = Pipeline::of_decisions(&window, 1);
    let [one, many] = ["one", "many"].map(|name| check(Algorithm::Budget, name));
    connection.run(&streams(&many, 0..MANY, Ask::Take(1)));
    let mut next = MANY;
    let mut runs = Vec::new();
    for _ in 0..stage.runs {
        let plain = Cost::of(&processes, || (0..BATCHES).map(|_| sent(&mut connection, &window)).sum());
        let mut of_streams = |budget: &Check| {
            // Built outside the measurement. Each stream has its own name.
            let batches: Vec<Pipeline> = (0..BATCHES).map(|batch| pairs(budget, next + batch * BATCH)).collect();
            next += BATCHES * BATCH;
            Cost::of(&processes, || batches.iter().map(|batch| sent(&mut connection, batch)).sum())
        };
        let alone = of_streams(&one);
        let beside_many = of_streams(&many);
        runs.push((plain, alone, beside_many));
    }
    let of = |figure: fn(&(Cost, Cost, Cost)) -> f64| median(runs.iter().map(figure).collect());
    let (plain_us, alone_us, many_us) =
        (of(|(plain, ..)| plain.each_us(0)), of(|(_, alone, _)| alone.each_us(0)), of(|(.., many)| many.each_us(0)));
    let (plain, alone, many) = &runs[runs.len() - 1];
    let told = format!("{alone_us:.1} µs; a sliding window {plain_us:.1} µs");
    let beside = format!("{many_us:.1} µs; alone {alone_us:.1} µs");
    vec![
        Measured::new(of(|(plain, alone, _)| alone.each_us(0) / plain.each_us(0)), told)
            .under(&[("streams", alone), ("window", plain)]),
        Measured::new(of(|(_, alone, many)| many.each_us(0) / alone.each_us(0)), beside)
            .under(&[("beside many", many), ("alone", alone)]),
    ]
}

fn sent(connection: &mut RedisLoop, pipeline: &Pipeline) -> u64 {
    connection.run(pipeline);
    pipeline.decisions as u64
}

/// Returns the calls of half a batch of streams, of which each settles before the next begins.
fn pairs(budget: &Check, first: u64) -> Pipeline {
    let streams = first..first + BATCH / 2;
    let checks = streams.flat_map(|name| [Ask::Take(1), Ask::Settle(1)].map(|ask| of_stream(budget, name, ask)));
    Pipeline::of_decisions(&checks.collect::<Vec<_>>(), 1)
}

fn streams(budget: &Check, names: Range<u64>, ask: Ask) -> Pipeline {
    let checks: Vec<Check> = names.map(|name| of_stream(budget, name, ask)).collect();
    Pipeline::of_decisions(&checks, 1)
}

fn of_stream(budget: &Check, name: u64, ask: Ask) -> Check {
    Check { ask, caller: Caller { holder: name, ..budget.caller }, ..budget.clone() }
}

fn check(algorithm: Algorithm, counter: &str) -> Check {
    let options = Options { settle_within: Some(PERIOD), ..Options::default() }.of(algorithm);
    let limit = Limit::new(algorithm, u32::MAX.into(), PERIOD, options).unwrap();
    let entries = [Entry { key: "counter".into(), value: counter.into() }];
    Check::new(Key::new("", "bench", &entries, |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
}
