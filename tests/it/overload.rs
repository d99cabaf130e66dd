//! Overload: a proxy that cancels late calls loses only those calls, and the memory of a connection is bounded. The
//! load sends what it should.

#[allow(dead_code, reason = "the load of the benchmarks, which need more of it")]
#[path = "../../benches/service/http2.rs"]
mod http2;
use crate::support;

use std::collections::BTreeSet;
use std::net::TcpListener;

use http2::{Connection, Headers, Server};
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

/// Accepts a connection by h2 with a table of this many bytes, answers its calls, and returns their headers.
fn served(listener: TcpListener, table: u32) -> Vec<http::HeaderMap> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let mut connection = h2::server::Builder::new().header_table_size(table).handshake(stream).await.unwrap();
        let mut headers = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!(request.uri().path(), "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
            headers.push(request.into_parts().0.headers);
            let mut answer = respond.send_response(http::Response::new(()), false).unwrap();
            answer.send_data(hyper::body::Bytes::from_static(b"answer"), true).unwrap();
        }
        headers
    })
}

#[test]
fn the_headers_of_the_load_arrive_whole_and_some_are_new_in_each_call() {
    // Enough that each constant header is pushed out of the table several times.
    const CALLS: usize = 200;
    for (kind, table) in [(Headers::Constant, 4096), (Headers::New, 4096), (Headers::New, 300)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::from(listener.local_addr().unwrap().port()).with(kind);
        let served = std::thread::spawn(move || served(listener, table));
        let mut connection = Connection::open(server, SOON).unwrap();
        // The settings of the server come with its first answer.
        for calls in [0..1, 1..CALLS] {
            for call in calls {
                connection.call(b"\0\0\0\0\0", call);
            }
            while connection.waiting() > 0 {
                connection.flush().unwrap();
                connection.receive(|_, answer| assert_eq!(answer, b"answer"), |_, answered| assert!(answered)).unwrap();
            }
        }
        drop(connection);
        let served = served.join().unwrap();
        let of = |name: &str| -> Vec<&str> {
            served.iter().filter_map(|headers| Some(headers.get(name)?.to_str().unwrap())).collect()
        };
        for (name, value) in [("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", "60000m")] {
            assert_eq!(of(name), [value; CALLS]);
        }
        for (name, groups) in [("x-request-id", &[8, 4, 4, 4, 12][..]), ("traceparent", &[2, 32, 16, 2])] {
            let values = of(name);
            let expected = if kind == Headers::New { CALLS } else { 0 };
            assert_eq!((values.len(), BTreeSet::from_iter(&values).len()), (expected, expected), "{name}");
            for value in values {
                assert_eq!(value.split('-').map(str::len).collect::<Vec<_>>(), groups, "{name}: {value}");
                assert!(value.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{name}: {value}");
            }
        }
    }
}
