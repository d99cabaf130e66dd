//! Streams of a language model in a real Envoy, and the tokens that they use: with a budget, which they hold at their
//! start, and with a limit that is charged at their end alone. `make bench-streams` prints the table of
//! `docs/streams-in-envoy.md` and draws its picture.
//!
//! No figure is a time, so other work on the machine changes little.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::plot::{Axis, Curve, Panel, Picture};
use crate::stage::Stage;
use crate::support::model::{self, ESTIMATE, Model};
use crate::support::tollgate::Tollgate;

/// Clients, each with a stream at a time.
const CLIENTS: usize = 200;
/// Tokens a minute.
const BUDGET: u64 = 10_000;
/// Tokens of a stream.
const USED: RangeInclusive<u64> = 50..=ESTIMATE;
/// The duration of a stream, and the time for which a client waits when it is denied, as shares of a minute.
const TAKES: RangeInclusive<u32> = 5..=40;
const WAITS: u32 = 10;
const OF_A_MINUTE: u32 = 600;
/// Minutes of a run.
const MINUTES: u32 = 5;
/// Points of a curve in each minute.
const POINTS: u32 = 120;
const SEED: u64 = 7;
const TOKEN: &str = "a token of the bench";

/// A way to limit tokens, as users have it.
struct Way {
    name: &'static str,
    envoy: &'static str,
    /// Its rule, with the word `BUDGET` for the number and the period, and `DOLLARS` for a budget in money that denies
    /// nothing: without one, the entries that choose a price would be in no rule.
    rule: &'static str,
    /// The descriptor of its counter.
    counter: &'static str,
    /// What each stream estimates.
    estimate: Option<u64>,
}

const WAYS: [Way; 3] = [
    Way {
        name: "a budget: held at the start, settled at the end",
        envoy: "deploy/envoy/llm.yaml",
        rule: "{key: tenant, descriptors: [{key: hold, rate_limits: [{algorithm: budget, BUDGET}, DOLLARS]}]}",
        counter: "tenant=acme&hold=none",
        estimate: Some(ESTIMATE),
    },
    Way {
        name: "a budget that learns the estimate, with 60 sub-windows",
        envoy: "deploy/envoy/llm.yaml",
        rule: "{key: tenant, descriptors: [{key: hold, rate_limits: [\
               {algorithm: budget, segments: 60, learn_estimate: true, estimate: 500, BUDGET}, DOLLARS]}]}",
        counter: "tenant=acme&hold=none",
        estimate: None,
    },
    Way {
        name: "a limit: charged at the end alone",
        envoy: "deploy/envoy/usage.yaml",
        rule: "{key: model-tokens, rate_limit: {count_denied: true, give_back: false, BUDGET}}",
        counter: "model-tokens=acme",
        estimate: Some(ESTIMATE),
    },
];

/// Measures the ways whose names have this part, one after the other, and draws the picture if those are all.
pub fn run(stage: &Stage, wanted: &str) {
    println!(
        "{CLIENTS} clients, {BUDGET} tokens in {:?}, {MINUTES} times as long. Each stream estimates {ESTIMATE} tokens \
         or nothing, uses {} to {}, and takes {:?} to {:?}.\n",
        stage.minute,
        USED.start(),
        USED.end(),
        part(stage, *TAKES.start()),
        part(stage, *TAKES.end()),
    );
    println!("{}\n{}", Outcome::HEAD, "|---".repeat(Outcome::HEAD.matches('|').count() - 1) + "|");
    let outcomes: Vec<Outcome> = WAYS
        .into_iter()
        .filter(|way| way.name.contains(wanted))
        .map(|way| {
            let outcome = way.run(stage);
            println!("{}", outcome.row());
            outcome
        })
        .collect();
    if outcomes.len() == WAYS.len() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/budgets.svg");
        std::fs::write(file, picture(&outcomes).svg()).unwrap();
    }
}

/// Returns a part of a minute.
fn part(stage: &Stage, share: u32) -> Duration {
    stage.minute * share / OF_A_MINUTE
}

impl Way {
    fn rules(&self, minute: Duration) -> String {
        let number = format!("period: {}s, requests_per_unit: {BUDGET}", minute.as_secs());
        let rule = self.rule.replace("BUDGET", &number).replace("DOLLARS", model::DOLLARS);
        format!("domain: shop\n{}\ndescriptors: [{rule}]\n", model::PRICES)
    }

    fn run(self, stage: &Stage) -> Outcome {
        let random = Mutex::new(fastrand::Rng::with_seed(SEED));
        let minute = stage.minute;
        let model = Model::start(move || {
            let (takes, tokens) = {
                let mut random = random.lock().unwrap();
                (random.u32(TAKES), random.u64(USED))
            };
            std::thread::sleep(minute * takes / OF_A_MINUTE);
            tokens
        });
        let settings = ["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")];
        let tollgate = stage.tollgate(&self.rules(minute), &settings);
        let envoy = model.envoy(self.envoy, tollgate.grpc_port);
        let (start, denied) = (Instant::now(), AtomicU64::new(0));
        let client = || {
            while start.elapsed() < minute * MINUTES {
                if !model::passes(&envoy, self.estimate) {
                    denied.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(part(stage, WAITS));
                }
            }
        };
        std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
        let of_run = |answer: model::Answer| (answer.at - start, answer.tokens);
        Outcome {
            name: self.name,
            minute,
            used: model.answers().into_iter().map(of_run).collect(),
            denied: denied.into_inner(),
            held: self.held(&tollgate, minute),
        }
    }

    /// Returns what the counter still has when all that was used has left its window.
    fn held(&self, tollgate: &Tollgate, minute: Duration) -> u64 {
        let start = Instant::now();
        loop {
            let (_, counters) = tollgate.admin("GET", &format!("/counters?domain=shop&{}", self.counter), TOKEN);
            let held = BUDGET - counters[0]["remaining"].as_u64().unwrap();
            if held == 0 || start.elapsed() > minute * 2 {
                return held;
            }
            std::thread::sleep(minute / OF_A_MINUTE);
        }
    }
}

/// The result of a way.
struct Outcome {
    name: &'static str,
    minute: Duration,
    /// The time of each answer since the start of the run, and its tokens.
    used: Vec<(Duration, u64)>,
    denied: u64,
    /// Tokens that are still held when all streams have ended.
    held: u64,
}

impl Outcome {
    const HEAD: &str = "| | most tokens used in any minute | more than the budget | mean from the second minute on \
                        | held at the end | streams that passed | denied requests |";

    fn row(&self) -> String {
        let most = self.used.iter().map(|(at, _)| self.within(*at)).max().unwrap_or_default();
        let later = (POINTS..=POINTS * MINUTES).map(|point| self.at(point).1);
        let mean = later.clone().sum::<u64>() as f64 / later.count() as f64;
        let percent = |tokens: f64| format!("{:.0} %", tokens / BUDGET as f64 * 100.0);
        format!(
            "| {} | {most} | {} | {} of the budget | {} | {} | {} |",
            self.name,
            percent(most.saturating_sub(BUDGET) as f64),
            percent(mean),
            self.held,
            self.used.len(),
            self.denied,
        )
    }

    /// Returns the tokens used within a minute before a time, its ends included.
    fn within(&self, at: Duration) -> u64 {
        let minute = at.saturating_sub(self.minute)..=at;
        self.used.iter().filter(|(at, _)| minute.contains(at)).map(|(_, tokens)| tokens).sum()
    }

    /// Returns the time of a point in minutes, and the tokens used within the minute before.
    fn at(&self, point: u32) -> (f64, u64) {
        (f64::from(point) / f64::from(POINTS), self.within(self.minute * point / POINTS))
    }
}

fn picture(outcomes: &[Outcome]) -> Picture {
    let thousands = |tokens: u64| tokens as f64 / 1e3;
    let curve = |outcome: &Outcome| {
        let point = |(at, tokens)| (at, thousands(tokens));
        (0..=POINTS * MINUTES).map(|number| point(outcome.at(number))).collect()
    };
    let mut lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(curve).collect();
    let most = lines.iter().flatten().map(|(_, tokens)| *tokens).fold(0.0, f64::max);
    let minutes = f64::from(MINUTES);
    lines.push(vec![(0.0, thousands(BUDGET)), (minutes, thousands(BUDGET))]);
    let mut legend: Vec<Curve> = WAYS.map(|way| Curve { name: way.name, is_dashed: false }).into();
    legend.push(Curve { name: "10,000 tokens a minute", is_dashed: true });
    let title = "Tokens used within the last minute, with a budget and with a limit charged at the end";
    Picture {
        title,
        across: Axis { title: "minutes".into(), most: minutes, step: 1.0 },
        legend,
        panels: vec![Panel {
            up: Axis {
                title: "tokens used within the last minute, in thousands".into(),
                most: (most / 10.0).ceil() * 10.0,
                step: 10.0,
            },
            height: 240.0,
            lines,
        }],
    }
}
