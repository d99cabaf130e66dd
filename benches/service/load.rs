//! Requests of many users, and what to expect of each.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use prost::Message as _;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitRequest, RateLimitResponse};

use crate::http2::{Connection, Server};
use crate::support::tollgate::{descriptor, request};

/// Connections of a closed loop, as an Envoy of eight workers has.
const CONNECTIONS: usize = 8;
/// Calls on their way over each.
const CALLS: usize = 32;
/// Together: so many are in flight.
pub const IN_FLIGHT: usize = CONNECTIONS * CALLS;
/// Every this many'th answer is decoded completely.
const SAMPLE: usize = 64;
/// Every this many'th user is always denied.
const REFUSED: usize = 64;
/// A timeout that calls do not reach.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A timeout that is over before the server has read the call.
const TOO_LATE: Duration = Duration::ZERO;
/// Duration of the load before a measurement.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Every request is limited by user, and by further keys for further descriptors. The value `refused` is always denied.
pub const RULES: &str = "
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 4000000000}
  - key: user
    value: refused
    rate_limit: {unit: minute, requests_per_unit: 0}
  - {key: address, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
  - {key: device, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
";

/// The keys of a request's descriptors.
const KEYS: [&str; 5] = ["user", "address", "path", "tenant", "device"];

/// A request, ready to be sent.
pub struct Call {
    /// With gRPC's prefix.
    pub message: Vec<u8>,
    expected: Code,
    descriptors: usize,
}

/// The users that send requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Some users are denied.
    Mixed,
    /// All of them pass.
    Passing,
    /// Users that have used up their limits.
    Over,
}

/// The deadline of the calls of a closed loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// Calls do not reach it.
    Ample,
    /// It has passed when the server reads a call, so that the server refuses it without a decision.
    Passed,
}

/// Returns one request for each of this many users, with this many descriptors.
pub fn calls(users: usize, descriptors: usize, kind: Users) -> Vec<Call> {
    let call = |user: usize| {
        let refused = kind == Users::Mixed && user.is_multiple_of(REFUSED);
        let name = if refused { "refused".into() } else { format!("user-{user:07}") };
        let mut request: RateLimitRequest = request("bench", &[]);
        request.descriptors = KEYS[..descriptors].iter().map(|key| descriptor(&[(key, &name)])).collect();
        Call::new(&request, if refused || kind == Users::Over { Code::OverLimit } else { Code::Ok })
    };
    (0..users).map(call).collect()
}

impl Call {
    /// Creates a call with this request and its expected answer.
    pub fn new(request: &RateLimitRequest, expected: Code) -> Call {
        let body = request.encode_to_vec();
        let message = [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat();
        Call { message, expected, descriptors: request.descriptors.len() }
    }

    /// Checks the code, the first field of an answer to the call of this turn; in some turns, decodes all fields.
    ///
    /// # Panics
    /// Where it is not the answer to this call.
    pub fn check(&self, answer: &[u8], turn: usize) {
        let message = answer.get(5..).expect("an answer has a prefix");
        assert_eq!(message.get(..2), Some(&[8, self.expected as u8][..]), "not the code {:?}", self.expected);
        if turn.is_multiple_of(SAMPLE) {
            let response = RateLimitResponse::decode(message).unwrap();
            assert_eq!(response.overall_code(), self.expected);
            assert_eq!(response.statuses.len(), self.descriptors);
            for status in &response.statuses {
                match &status.current_limit {
                    Some(limit) => assert!(limit.requests_per_unit > 0 || status.code() == Code::OverLimit),
                    // The limit was not checked, because another limit denies the request; or Redis was late on a busy
                    // machine, and the limit failed open. The metadata say so.
                    None => assert!(
                        response.overall_code() == Code::OverLimit || response.dynamic_metadata.is_some(),
                        "every descriptor is limited"
                    ),
                }
            }
        }
    }
}

/// A closed loop: each client sends its next request after the answer.
pub struct Closed<'a> {
    server: Server,
    calls: &'a [Call],
    deadline: Deadline,
    next: AtomicUsize,
    /// Number of requests to send.
    most: usize,
    /// Number of calls that ended as they should.
    answered: AtomicU64,
    stop: AtomicBool,
}

impl<'a> Closed<'a> {
    fn new(server: Server, calls: &'a [Call], most: usize) -> Self {
        let (next, answered, stop) = Default::default();
        Closed { server, calls, deadline: Deadline::Ample, next, most, answered, stop }
    }

    /// Runs the load during `measure`, which receives the number of answers so far.
    pub fn during<R>(server: impl Into<Server>, calls: &'a [Call], measure: impl FnOnce(&AtomicU64) -> R) -> R {
        Closed::during_with(Deadline::Ample, server, calls, measure)
    }

    /// The same with calls that have this deadline.
    pub fn during_with<R>(
        deadline: Deadline,
        server: impl Into<Server>,
        calls: &'a [Call],
        measure: impl FnOnce(&AtomicU64) -> R,
    ) -> R {
        let closed = Closed { deadline, ..Closed::new(server.into(), calls, usize::MAX) };
        std::thread::scope(|scope| {
            (0..CONNECTIONS).for_each(|_| drop(scope.spawn(|| closed.run())));
            std::thread::sleep(WARM_UP);
            let measured = measure(&closed.answered);
            closed.stop.store(true, Ordering::Relaxed);
            measured
        })
    }

    /// Sends each call once.
    pub fn once(server: impl Into<Server>, calls: &'a [Call]) {
        let closed = Closed::new(server.into(), calls, calls.len());
        std::thread::scope(|scope| (0..CONNECTIONS).for_each(|_| drop(scope.spawn(|| closed.run()))));
        assert_eq!(closed.answered.into_inner(), calls.len() as u64);
    }

    /// The next call to send.
    fn turn(&self) -> Option<usize> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        (turn < self.most && !self.stop.load(Ordering::Relaxed)).then_some(turn)
    }

    fn run(&self) {
        let (timeout, is_answered) = match self.deadline {
            Deadline::Ample => (TIMEOUT, true),
            Deadline::Passed => (TOO_LATE, false),
        };
        let mut connection = Connection::open(self.server.clone(), timeout).unwrap();
        let call = |turn: usize| &self.calls[turn % self.calls.len()];
        let ask = |connection: &mut Connection<usize>| {
            if let Some(turn) = self.turn() {
                connection.call(&call(turn).message, turn);
            }
        };
        (0..CALLS).for_each(|_| ask(&mut connection));
        connection.flush().unwrap();
        while connection.waiting() > 0 {
            let mut ended = 0;
            connection
                .receive(
                    |turn, answer| call(*turn).check(answer, *turn),
                    |_, answered| {
                        assert_eq!(answered, is_answered, "whether a call is answered");
                        ended += 1;
                    },
                )
                .unwrap();
            self.answered.fetch_add(ended, Ordering::Relaxed);
            (0..ended).for_each(|_| ask(&mut connection));
            connection.flush().unwrap();
        }
    }
}

/// Sends this many calls over a connection, each after the answer to the one before. Returns how many were answered.
pub fn one_by_one(connection: &mut Connection<usize>, calls: &[Call], count: usize) -> usize {
    let mut answered = 0;
    for turn in 0..count {
        connection.call(&calls[turn % calls.len()].message, turn);
        connection.flush().unwrap();
        while connection.waiting() > 0 {
            let check = |turn: &usize, answer: &[u8]| calls[turn % calls.len()].check(answer, *turn);
            connection.receive(check, |_, is_answered| answered += usize::from(is_answered)).unwrap();
        }
    }
    answered
}

/// An open loop: calls are sent when they are due, regardless of earlier calls, and their latency counts from then. A
/// call is sent later if the server has reached its limit of concurrent calls.
pub struct OpenLoop<'a> {
    /// The servers, used in turn.
    pub ports: &'a [u16],
    pub calls: &'a [Call],
    /// To all of them together.
    pub per_second: u32,
    pub run: Duration,
    pub idle: Idle,
}

/// The behavior of an open loop while no call is due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Spins on a separate core.
    Spin,
    /// Leaves the core to other processes; calls may be sent a fraction of a tenth of a millisecond late.
    Pause,
}

/// Time for which it leaves the core to other processes.
const PAUSE: Duration = Duration::from_micros(20);

impl OpenLoop<'_> {
    /// Runs it, and checks every answer.
    pub fn checked(&self) -> Latencies {
        self.run(|turn, answer| self.call(turn).check(answer, turn))
    }

    /// Runs it, and gives `answer` every message with the turn of its call.
    pub fn run(&self, mut answer: impl FnMut(usize, &[u8])) -> Latencies {
        let open = |port: &u16| {
            let mut connection = Connection::open(*port, TIMEOUT).unwrap();
            connection.never_wait().unwrap();
            connection
        };
        let mut connections: Vec<Connection<(usize, Instant)>> = self.ports.iter().map(open).collect();
        let (mut turn, mut taken) = (0, Vec::new());
        let (start, gap) = (Instant::now(), Duration::from_secs(1) / self.per_second);
        loop {
            // Calls that are due at the same time are sent together.
            let now = Instant::now();
            while start + gap * turn <= now.min(start + self.run) {
                let (place, due) = (turn as usize, start + gap * turn);
                let connection = &mut connections[place % self.ports.len()];
                if !connection.has_room() {
                    break;
                }
                connection.call(&self.call(place).message, (place, due));
                turn += 1;
            }
            for connection in connections.iter_mut().filter(|connection| connection.waiting() > 0) {
                connection.flush().unwrap();
                let end = |(_, due): (usize, Instant), answered: bool| {
                    assert!(answered, "a call failed");
                    taken.push(due.elapsed());
                };
                connection.receive(|(turn, _), message| answer(*turn, message), end).unwrap();
            }
            let is_all_sent = start + gap * turn > start + self.run;
            if is_all_sent && connections.iter().all(|connection| connection.waiting() == 0) {
                return Latencies::new(taken);
            }
            if self.idle == Idle::Pause {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn call(&self, turn: usize) -> &Call {
        &self.calls[turn % self.calls.len()]
    }
}

/// Creates a spinning open loop for one server.
pub fn open_loop(port: u16, calls: &[Call], per_second: u32, run: Duration) -> Latencies {
    OpenLoop { ports: &[port], calls, per_second, run, idle: Idle::Spin }.checked()
}

/// Latencies.
#[derive(Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// In any order.
    pub fn new(mut taken: Vec<Duration>) -> Latencies {
        taken.sort_unstable();
        Latencies(taken)
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns this percentile, in microseconds.
    pub fn us(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share) as usize;
        self.0[place.min(self.0.len() - 1)].as_secs_f64() * 1e6
    }
}
