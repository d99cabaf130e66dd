//! Measures the server's CPU time for a request with the console, relative to a server without `ADMIN_API`. The console
//! needs that API, and the API switches on the recorder of requests, so the figure includes both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::cost::{Cost, median};
use crate::load::{Call, RULES, Users, calls};
use crate::rows::Target::AtMost;
use crate::rows::{Measured, Row, USERS, closed_loop};
use crate::stage::Stage;
use crate::support::tollgate::Tollgate;

pub const ROWS: &[Row] = &[
    Row { figure: "console closed, memory store, server CPU per request", target: AtMost(1.02, WITHOUT) },
    Row { figure: "the same, Overview and Limits open", target: AtMost(1.05, WITHOUT) },
];
const WITHOUT: &str = "x without ADMIN_API";
const TOKEN: &str = "bench-0123456789abcdef";

/// What the two pages ask again and again, and how often: the same paths and times as in their files.
const ASKED: [(&str, Duration); 4] = [
    ("/overview", Duration::from_secs(5)),
    ("/top?by=denied&n=8&remaining=true", Duration::from_secs(5)),
    ("/audit?days=1&limit=8", Duration::from_secs(15)),
    ("/rules?limit=100", Duration::from_secs(3)),
];

/// Gives one for each of [`ROWS`].
pub fn measure(stage: &Stage) -> Vec<Measured> {
    let without = stage.tollgate(RULES, &["CONSOLE=false"]);
    let with = stage.tollgate(RULES, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let users = calls(USERS, 1, Users::Mixed);
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    for _ in 0..stage.runs {
        let base = of(stage, &without, &users);
        let shut = of(stage, &with, &users);
        let seen = with_pages(&with, || of(stage, &with, &users));
        closed.push((shut, base.each_us(0)));
        open.push((seen, base.each_us(0)));
    }
    vec![row(&closed), row(&open)]
}

fn of(stage: &Stage, server: &Tollgate, users: &[Call]) -> Cost {
    closed_loop(stage, server.grpc_port, users, &[("server", server.pid())])
}

/// Runs this while two pages of the console ask.
fn with_pages<R>(server: &Tollgate, run: impl FnOnce() -> R) -> R {
    const STEP: Duration = Duration::from_millis(100);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut waits = ASKED.map(|_| Duration::ZERO);
            while !has_ended.load(Ordering::Relaxed) {
                for ((path, every), wait) in ASKED.into_iter().zip(&mut waits) {
                    *wait = wait.saturating_sub(STEP);
                    if wait.is_zero() {
                        let (status, _) = server.admin("GET", path, TOKEN);
                        assert_eq!(status, 200, "{path}");
                        *wait = every;
                    }
                }
                thread::sleep(STEP);
            }
        });
        let result = run();
        has_ended.store(true, Ordering::Relaxed);
        result
    })
}

/// Makes a row. Each turn has a run with the console, and the time that a request took without it, in microseconds.
fn row(runs: &[(Cost, f64)]) -> Measured {
    let us = median(runs.iter().map(|(cost, _)| cost.each_us(0)).collect());
    let base = median(runs.iter().map(|(_, base)| *base).collect());
    let ratio = median(runs.iter().map(|(cost, base)| cost.each_us(0) / base).collect());
    Measured::new(ratio, format!("{us:.2} µs; without {base:.2} µs")).under(&[("", &runs[runs.len() - 1].0)])
}
