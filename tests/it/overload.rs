//! Overload: a proxy that cancels late calls loses only those calls, and the memory of a connection is bounded.

#[allow(dead_code, reason = "the load of the benchmarks, which need more of it")]
#[path = "../../benches/service/http2.rs"]
mod http2;
use crate::support;

use http2::Connection;
use prost::Message as _;
use support::SOON;
use support::tollgate::{Tollgate, request};
use tollgate::wire::RateLimitResponse;
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}
";

fn message() -> Vec<u8> {
    let body = request("shop", &[&[("user", "ann")]]).encode_to_vec();
    [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat()
}

/// Waits until all calls have ended, and returns those that were answered, in order.
fn answered(connection: &mut Connection<usize>) -> Vec<usize> {
    let mut answered = Vec::new();
    connection.flush().unwrap();
    while connection.waiting() > 0 {
        let check = |_: &usize, answer: &[u8]| {
            assert_eq!(RateLimitResponse::decode(&answer[5..]).unwrap().overall_code(), Code::Ok);
        };
        let end = |call: usize, was_answered: bool| answered.extend(was_answered.then_some(call));
        connection.receive(check, end).expect("the server keeps the connection");
        connection.flush().unwrap();
    }
    answered.sort_unstable();
    answered
}

#[test]
fn a_proxy_that_gives_up_all_that_is_late_keeps_its_connection() {
    let tollgate = Tollgate::start(RULES, &["WORKER_THREADS=1"]);
    let mut connection = Connection::open(tollgate.grpc_port, SOON).unwrap();
    let message = message();
    // In one write, so that the calls are cancelled before the server has read them.
    for _ in 0..10 {
        let late: Vec<u32> = (0..200).map(|call| connection.call(&message, call)).collect();
        for call in late {
            connection.cancel(call);
        }
    }
    connection.call(&message, 7);
    assert_eq!(answered(&mut connection), [7]);
}

#[test]
fn a_connection_learns_how_many_calls_it_may_have() {
    let tollgate = Tollgate::start(RULES, &["GRPC_MAX_CONCURRENT_STREAMS=30"]);
    let mut connection = Connection::open(tollgate.grpc_port, SOON).unwrap();
    let message = message();
    connection.call(&message, 0);
    assert_eq!(answered(&mut connection), [0]);
    let mut calls = 0;
    while connection.has_room() {
        connection.call(&message, calls);
        calls += 1;
    }
    assert_eq!((calls, answered(&mut connection).len()), (30, 30));
}
