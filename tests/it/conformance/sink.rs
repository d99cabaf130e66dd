//! Collects what a server counts: statsd over UDP or TCP, or Prometheus where it serves it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use super::case::{HttpPort, Sink};
use super::http;
use super::server::Server;

/// The values received so far, by name including tags.
type Sums = Arc<Mutex<BTreeMap<String, f64>>>;

/// The receiver of statistics.
pub struct Collected {
    sink: Sink,
    port: u16,
    sums: Sums,
}

impl Collected {
    /// Opens what the server is to send to. It is read until the process ends.
    pub fn new(sink: Sink) -> Collected {
        let sums = Sums::default();
        let port = match sink {
            Sink::None | Sink::Prometheus => 0,
            Sink::StatsdUdp | Sink::Dogstatsd => datagrams(&sums),
            Sink::StatsdTcp => streams(&sums),
        };
        Collected { sink, port, sums }
    }

    /// Returns the settings that point a server at this sink.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let statsd = |protocol: &str| {
            vec![
                ("USE_STATSD", "true".to_owned()),
                ("STATSD_HOST", "127.0.0.1".to_owned()),
                ("STATSD_PORT", self.port.to_string()),
                ("STATSD_PROTOCOL", protocol.to_owned()),
            ]
        };
        let mut settings = match self.sink {
            Sink::None => vec![("USE_STATSD", "false".to_owned()), ("DISABLE_STATS", "true".to_owned())],
            Sink::StatsdUdp => statsd("udp"),
            Sink::StatsdTcp => statsd("tcp"),
            Sink::Dogstatsd => {
                let mut settings = statsd("udp");
                settings[0] = ("USE_STATSD", "false".to_owned());
                settings.push(("USE_DOG_STATSD", "true".to_owned()));
                settings
            }
            Sink::Prometheus => {
                vec![("USE_STATSD", "false".to_owned()), ("USE_PROMETHEUS", "true".to_owned())]
            }
        };
        if self.sink != Sink::None {
            settings.push(("STATS_FLUSH_INTERVAL", "20ms".to_owned()));
            settings.push(("GOSTATS_FLUSH_INTERVAL_SECONDS", "1".to_owned()));
        }
        settings
    }

    /// Returns whether statistics are received.
    pub fn is_open(&self) -> bool {
        self.sink != Sink::None
    }

    pub fn is_prometheus(&self) -> bool {
        self.sink == Sink::Prometheus
    }

    /// All sums.
    pub fn sums(&self, server: &Server) -> BTreeMap<String, f64> {
        if self.sink == Sink::Prometheus {
            return scrape(server);
        }
        self.sums.lock().unwrap().clone()
    }
}

fn datagrams(sums: &Sums) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let sums = Arc::clone(sums);
    std::thread::spawn(move || {
        let mut datagram = vec![0; 65_536];
        while let Ok(length) = socket.recv(&mut datagram) {
            String::from_utf8_lossy(&datagram[..length]).lines().for_each(|line| add(&sums, line));
        }
    });
    port
}

fn streams(sums: &Sums) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let sums = Arc::clone(sums);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sums = Arc::clone(&sums);
            std::thread::spawn(move || {
                BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| add(&sums, &line));
            });
        }
    });
    port
}

/// `name:value|c|@rate|#tags`: a counter's values add up; of another kind the last counts.
fn add(sums: &Sums, line: &str) {
    let Some((name, rest)) = line.split_once(':') else { return };
    let mut parts = rest.split('|');
    let value: f64 = parts.next().and_then(|value| value.parse().ok()).unwrap_or(0.0);
    let kind = parts.next().unwrap_or_default();
    // Tags come in any order.
    let tags = parts.find_map(|part| part.strip_prefix('#')).map(|tags| {
        let mut tags: Vec<&str> = tags.split(',').collect();
        tags.sort_unstable();
        tags.join(",")
    });
    let name = tags.map_or_else(|| name.to_owned(), |tags| format!("{name}|#{tags}"));
    let mut sums = sums.lock().unwrap();
    let sum = sums.entry(name).or_default();
    *sum = if kind == "c" { *sum + value } else { value };
}

/// The text at the Prometheus port, with labels in the alphabet's order.
fn scrape(server: &Server) -> BTreeMap<String, f64> {
    let request = http::Request { method: "GET", path: "/metrics", body: None };
    let Ok(answer) = server.http(HttpPort::Prometheus, &request) else { return BTreeMap::new() };
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    let series = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((sorted(name), value.parse().ok()?))
    });
    series.collect()
}

/// A series with its labels in the alphabet's order. No value has a comma here.
pub fn sorted(series: &str) -> String {
    let Some((name, labels)) = series.strip_suffix('}').and_then(|series| series.split_once('{')) else {
        return series.to_owned();
    };
    let mut labels: Vec<&str> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{name}{{{}}}", labels.join(","))
}
