//! A stand-in for a language model with an API like OpenAI's, and the clients that use it through an Envoy.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::envoy::Envoy;

/// An origin that tells how many tokens each request has used, to be put behind an Envoy of `deploy/envoy`.
pub struct Model {
    port: u16,
    answers: Arc<Answers>,
}

#[derive(Default)]
struct Answers(Mutex<Vec<Answer>>);

/// The time just before an answer was sent, and the tokens that it told.
#[derive(Clone, Copy)]
pub struct Answer {
    pub at: Instant,
    pub tokens: u64,
}

impl Model {
    /// Starts one. `generate` is called for each request, and returns the tokens used when the answer is to be sent.
    pub fn start(generate: impl Fn() -> u64 + Send + Sync + 'static) -> Model {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (generate, answers) = (Arc::new(generate), Arc::<Answers>::default());
        let kept = Arc::clone(&answers);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (generate, answers) = (Arc::clone(&generate), Arc::clone(&kept));
                std::thread::spawn(move || answers.serve(&stream, &*generate));
            }
        });
        Model { port, answers }
    }

    /// All answers so far, in their order.
    pub fn answers(&self) -> Vec<Answer> {
        self.answers.0.lock().unwrap().clone()
    }

    /// Starts an Envoy in front of it, by a file of `deploy/envoy`, that asks the Tollgate on this port.
    pub fn envoy(&self, file: &str, tollgate: u16) -> Envoy {
        let endpoint = |port: u16| {
            format!("endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}")
        };
        Envoy::start_from(file, tollgate, &[Envoy::LONG_TIMEOUT, (&endpoint(10_001), &endpoint(self.port))])
    }
}

impl Answers {
    /// Answers requests without a body.
    fn serve(&self, mut stream: &TcpStream, generate: &dyn Fn() -> u64) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        while lines.by_ref().take_while(|line| !line.is_empty()).count() > 0 {
            let tokens = generate();
            let (input, output) = (tokens / 5, tokens - tokens / 5);
            let body = format!(
                "{{\"usage\": {{\"prompt_tokens\": {input}, \"completion_tokens\": {output}, \
                 \"total_tokens\": {tokens}}}}}\n"
            );
            let head = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
            self.0.lock().unwrap().push(Answer { at: Instant::now(), tokens });
            if stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}").as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// A budget in money beside one of tokens, which denies nothing. `deploy/envoy/llm.yaml` sends entries for it.
pub const DOLLARS: &str =
    "{name: dollars, algorithm: budget, unit: year, requests_per_unit: 9007199254740991, weigh_by: [model, direction]}";

/// The prices beside it.
pub const PRICES: &str = "prices: {gpt-4o: {input: 2.5, output: 10}, gpt-4o-mini: {input: 0.15, output: 0.6}}";

/// What a client estimates: it asks the model for no more.
pub const ESTIMATE: u64 = 500;

/// Sends a request of the tenant and user `acme` with this estimate; returns whether it passed.
pub fn passes(envoy: &Envoy, estimate: Option<u64>) -> bool {
    let estimate = estimate.map(|tokens| tokens.to_string());
    let estimate = estimate.as_ref().map(|tokens| ("x-max-tokens", tokens.as_str()));
    let headers: Vec<_> = [("x-tenant", "acme"), ("x-user", "acme")].into_iter().chain(estimate).collect();
    match envoy.ask("/chat", &headers).status {
        200 => true,
        429 => false,
        status => panic!("neither passed nor denied: {status}"),
    }
}
