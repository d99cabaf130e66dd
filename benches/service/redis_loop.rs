//! The client to compare with: writes calls that are ready, and counts the bytes of the replies.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use deadpool_redis::redis::{Cmd, Script, cmd};
use tollgate::engine::check::Check;
use tollgate::store::redis::script::{self, Group};

use crate::load::Latencies;
use crate::support::redis::Redis;

/// The expected length of replies.
#[derive(Clone, Copy)]
enum Expected {
    Bytes(usize),
    Lines(usize),
}

impl Expected {
    /// Returns the number of replies in a part of the data.
    fn in_part(self, part: &[u8]) -> usize {
        match self {
            Expected::Bytes(_) => part.len(),
            Expected::Lines(_) => part.iter().filter(|byte| **byte == b'\n').count(),
        }
    }

    fn all(self) -> usize {
        match self {
            Expected::Bytes(all) | Expected::Lines(all) => all,
        }
    }
}

/// Calls that travel together.
pub struct Pipeline {
    bytes: Vec<u8>,
    /// The expected data of all replies.
    reply: Expected,
    /// The number of decisions.
    pub decisions: usize,
}

impl Pipeline {
    /// Returns this many calls of a script that does nothing.
    pub fn of_nothing(calls: usize) -> Pipeline {
        let mut call = cmd("EVALSHA");
        call.arg(Script::new(NOTHING).get_hash()).arg(0);
        Pipeline { bytes: call.get_packed_command().repeat(calls), reply: Expected::Lines(calls), decisions: calls }
    }

    /// Calls that decide so many checks each.
    pub fn of_decisions(checks: &[Check], in_each: usize) -> Pipeline {
        let groups = |checks: &[Check]| checks.chunks(1).map(Group::new).collect::<Vec<_>>();
        let call = |checks: &[Check]| script::call(&groups(checks)).get_packed_command();
        let reply = |checks: &[Check]| bulk(script::TIME + checks.len() * script::ANSWER);
        Pipeline {
            bytes: checks.chunks(in_each).flat_map(call).collect(),
            reply: Expected::Bytes(checks.chunks(in_each).map(reply).sum()),
            decisions: checks.len(),
        }
    }

    /// Returns the commands that `envoyproxy/ratelimit` sends for one decision.
    pub fn of_counting(counter: &str) -> Pipeline {
        let (mut count, mut expire) = (cmd("INCRBY"), cmd("EXPIRE"));
        count.arg(counter).arg(1);
        expire.arg(counter).arg(60);
        let bytes = [count, expire].iter().flat_map(Cmd::get_packed_command).collect();
        Pipeline { bytes, reply: Expected::Lines(2), decisions: 1 }
    }
}

/// Returns the length of a bulk string of this length in a reply.
fn bulk(bytes: usize) -> usize {
    format!("${bytes}\r\n\r\n").len() + bytes
}

const NOTHING: &str = "return 1";
/// The characters of a script's hash.
const SHA1_HEX: usize = 40;

/// A connection to Redis.
pub struct RedisLoop {
    stream: UnixStream,
    chunk: Box<[u8]>,
}

impl RedisLoop {
    /// Connects, and lets Redis know the scripts.
    pub fn connect(redis: &Redis) -> RedisLoop {
        let stream = UnixStream::connect(redis.socket()).unwrap();
        let mut connection = RedisLoop { stream, chunk: vec![0; 1 << 16].into() };
        let mut nothing = cmd("SCRIPT");
        nothing.arg("LOAD").arg(NOTHING);
        for load in std::iter::once(nothing).chain(script::load(false)) {
            connection.command(&load, Expected::Bytes(bulk(SHA1_HEX)));
        }
        connection
    }

    /// Adds a command and its expected reply.
    fn command(&mut self, command: &Cmd, reply: Expected) {
        self.run(&Pipeline { bytes: command.get_packed_command(), reply, decisions: 0 });
    }

    /// Sends the calls and takes the replies.
    pub fn run(&mut self, pipeline: &Pipeline) {
        self.stream.write_all(&pipeline.bytes).unwrap();
        let mut got = 0;
        while got < pipeline.reply.all() {
            let size = match self.stream.read(&mut self.chunk) {
                Ok(size) => size,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            let reply = &self.chunk[..size];
            // An error has another length, so it would shift what follows.
            assert!(size > 0 && !(got == 0 && reply[0] == b'-'), "{}", String::from_utf8_lossy(reply));
            got += pipeline.reply.in_part(reply);
        }
        assert_eq!(got, pipeline.reply.all(), "the replies are not what the script answers");
    }

    /// Repeats the pipelines for this time, and returns the number of decisions.
    pub fn run_for(&mut self, pipelines: &[Pipeline], time: Duration) -> u64 {
        let (start, mut decisions) = (Instant::now(), 0);
        for pipeline in pipelines.iter().cycle() {
            if start.elapsed() >= time {
                break;
            }
            self.run(pipeline);
            decisions += pipeline.decisions as u64;
        }
        decisions
    }

    /// Measures the duration of each pipeline at this rate per second. Spins between them.
    pub fn round_trips(&mut self, pipeline: &Pipeline, per_second: u32, run: Duration) -> Latencies {
        self.stream.set_nonblocking(true).unwrap();
        spread(std::slice::from_mut(self), std::slice::from_ref(pipeline), per_second, run, std::hint::spin_loop)
    }
}

/// Measures the duration of each of these commands, at this rate per second, on each connection in turn, one at a time;
/// `idle` runs until the next is due.
pub fn spread(
    connections: &mut [RedisLoop],
    pipelines: &[Pipeline],
    per_second: u32,
    run: Duration,
    idle: impl Fn(),
) -> Latencies {
    let (start, gap) = (Instant::now(), Duration::from_secs(1) / per_second);
    let mut taken = Vec::new();
    for turn in 0..(run.as_secs_f64() / gap.as_secs_f64()) as u32 {
        let due = start + gap * turn;
        while Instant::now() < due {
            idle();
        }
        let turn = turn as usize;
        let connection = turn % connections.len();
        connections[connection].run(&pipelines[turn % pipelines.len()]);
        taken.push(due.elapsed());
    }
    Latencies::new(taken)
}
