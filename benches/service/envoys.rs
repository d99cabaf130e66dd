//! The load of several Envoys: an open loop of one thread. Each call has a due time that does not depend on previous
//! calls, and its [`DEADLINE`] starts then. A late call is cancelled. Each thread of an Envoy has a connection, and
//! opens another if the server's limit of calls on it is reached. The circuit breaker limits the number of calls in
//! flight (`max_requests`); further calls fail in Envoy and are not sent.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::cost::memory;
use crate::http2::{Connection, Headers, Server};
use crate::load::{Call, Latencies};

/// Envoy's default timeout.
pub const DEADLINE: Duration = Duration::from_millis(20);
/// An Envoy's threads.
const THREADS: usize = 8;
/// Interval for reading the server's memory.
const LOOK: Duration = Duration::from_millis(50);
/// Time for which the load leaves its core to other processes. A call that is late by only this much does not count as
/// late.
const PAUSE: Duration = Duration::from_micros(20);
/// The decided code of an answer: its first field, 1.
const PASSED: [u8; 2] = [8, 1];

/// Number of Envoys, and their calls in flight: Envoy's default is 1,024.
#[derive(Clone, Copy)]
pub struct Envoys {
    pub count: usize,
    pub max_requests: usize,
}

/// The load on a server.
pub struct Load {
    pub port: u16,
    pub pid: u32,
    pub envoys: Envoys,
    pub per_second: f64,
    pub run: Duration,
}

/// The results.
#[derive(Default)]
pub struct Came {
    /// From when they were due to when they were decided, in time.
    pub taken: Latencies,
    /// Answered in time, but not decided.
    pub refused: u64,
    /// Sent, and given up.
    pub late: u64,
    /// Given up before they were sent.
    pub unsent: u64,
    /// Lost with their connection.
    pub lost: u64,
    pub connections_lost: u64,
    /// The most that the load itself was late.
    pub lag: Duration,
    /// The most memory that the server had.
    pub memory: u64,
}

impl Came {
    /// Returns the number of calls that were due.
    pub fn all(&self) -> u64 {
        self.taken.count() + self.refused + self.late + self.unsent + self.lost
    }

    /// Returns the number of calls that were sent, and neither decided nor refused in time.
    pub fn not_in_time(&self) -> u64 {
        self.late + self.lost
    }

    /// Returns their share of all calls.
    pub fn late_share(&self) -> f64 {
        self.not_in_time() as f64 / self.all() as f64
    }

    /// Returns the number of calls decided in time, per second of a run.
    pub fn goodput(&self, run: Duration) -> f64 {
        self.taken.count() as f64 / run.as_secs_f64()
    }
}

/// A thread of an Envoy.
#[derive(Default)]
struct Thread {
    lanes: Vec<Lane>,
}

/// A connection and its calls: their numbers and due times.
struct Lane {
    connection: Connection<Sent>,
    sent: VecDeque<(u32, Instant)>,
}

struct Sent {
    due: Instant,
    decided: Cell<bool>,
}

impl Load {
    /// Offers it for the length of a run, and waits for the last deadline.
    pub fn offer(&self, calls: &[Call]) -> Came {
        // The threads of one Envoy are adjacent.
        let mut threads: Vec<Thread> = (0..self.envoys.count * THREADS).map(|_| Thread::default()).collect();
        let mut on_their_way = vec![0; self.envoys.count];
        let (mut came, mut taken) = (Came::default(), Vec::new());
        let (start, gap) = (Instant::now(), Duration::from_secs_f64(1.0 / self.per_second));
        let (mut turn, mut look) = (0_u32, start);
        loop {
            let now = Instant::now();
            if now > start + self.run + DEADLINE * 2 {
                break;
            }
            if now >= look {
                came.memory = came.memory.max(memory(self.pid));
                look = now + LOOK;
            }
            while start + gap * turn <= now.min(start + self.run) {
                let due = start + gap * turn;
                came.lag = came.lag.max(now - due);
                let thread = turn as usize % threads.len();
                let on_its_way = &mut on_their_way[thread / THREADS];
                let message = &calls[turn as usize % calls.len()].message;
                if *on_its_way < self.envoys.max_requests && threads[thread].send(self.port, message, due).is_ok() {
                    *on_its_way += 1;
                } else {
                    came.unsent += 1;
                }
                turn += 1;
            }
            for (place, thread) in threads.iter_mut().enumerate() {
                let before = thread.waiting();
                thread.step(now, &mut came, &mut taken);
                on_their_way[place / THREADS] -= before - thread.waiting();
            }
            std::thread::sleep(PAUSE);
        }
        came.taken = Latencies::new(taken);
        came
    }
}

impl Thread {
    /// Sends a call, on an additional connection if no other has room.
    fn send(&mut self, port: u16, message: &[u8], due: Instant) -> io::Result<()> {
        let place = match self.lanes.iter().position(|lane| lane.connection.has_room()) {
            Some(place) => place,
            None => {
                let mut connection = Connection::open(Server::from(port).with(Headers::New), DEADLINE)?;
                connection.never_wait()?;
                self.lanes.push(Lane { connection, sent: VecDeque::new() });
                self.lanes.len() - 1
            }
        };
        let Lane { connection, sent } = &mut self.lanes[place];
        let id = connection.call(message, Sent { due, decided: Cell::new(false) });
        sent.push_back((id, due));
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.connection.waiting()).sum()
    }

    fn step(&mut self, now: Instant, came: &mut Came, taken: &mut Vec<Duration>) {
        for lane in std::mem::take(&mut self.lanes) {
            match lane.step(now, came, taken) {
                Ok(lane) => self.lanes.push(lane),
                Err(lost) => {
                    came.connections_lost += 1;
                    came.lost += lost as u64;
                }
            }
        }
    }
}

impl Lane {
    /// Receives, cancels late calls, and sends. An error contains the number of calls lost with the connection.
    fn step(mut self, now: Instant, came: &mut Came, taken: &mut Vec<Duration>) -> Result<Lane, usize> {
        let end = |Sent { due, decided }: Sent, answered: bool| match answered {
            _ if due.elapsed() > DEADLINE => came.late += 1,
            true if decided.get() => taken.push(due.elapsed()),
            _ => came.refused += 1,
        };
        let received =
            self.connection.receive(|sent, answer| sent.decided.set(answer.get(5..7) == Some(&PASSED[..])), end);
        while let Some((id, _)) = self.sent.front().copied().filter(|(_, due)| *due + DEADLINE <= now) {
            self.sent.pop_front();
            came.late += u64::from(self.connection.cancel(id).is_some());
        }
        match received.and_then(|()| self.connection.flush()) {
            Ok(()) => Ok(self),
            Err(_) => Err(self.connection.waiting()),
        }
    }
}
