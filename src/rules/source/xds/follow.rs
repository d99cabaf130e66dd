//! Follows a management server for as long as the process lives: streams, one after the other, and what they say.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::Options;
use super::resource::{self, Resource, Resources, TYPE_URL};
use super::stream::{Stream, StreamError, ack, nack};
use crate::files::blocking;
use crate::rules::load::Loaded;
use crate::rules::report::RulesError;
use crate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};

/// A stream that has stood for so long is one, whether the server has said anything or not.
const SETTLED: Duration = Duration::from_secs(1);

/// A server that hears of a refusal may send the same again, at once: `go-control-plane` does. Then the answer waits
/// for so long, and for twice as long each time.
const AGAIN: Duration = Duration::from_secs(1);
/// And never longer: until then the server sends nothing new.
const AGAIN_AT_MOST: Duration = Duration::from_secs(10);

/// What comes of following a management server.
#[derive(Debug)]
pub enum Event {
    /// There is a stream.
    Connected,
    /// There is none, or no longer; the next attempt is so much later.
    Lost(StreamError, Duration),
    /// A response has come whose rules are not in force yet.
    Offered(Offer),
    /// A response has been answered.
    Answered(Response),
    /// What a new stream has not named yet stays in force for so long.
    Unnamed(Vec<String>, Duration),
    /// Something has come that nobody asked for: its type.
    Stray(String),
}

/// The rules of a response, or why they are none.
#[derive(Debug)]
pub struct Offer {
    /// What the server calls this state of the world.
    pub version: String,
    /// The rules.
    pub loaded: Result<Loaded, RulesError>,
    /// Is told when the rules are in force, and dropped where they will not be.
    pub in_force: oneshot::Sender<()>,
}

/// What a response was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Its rules are in force. This is its version.
    Accepted(String),
    /// They are not.
    Refused(String),
}

/// Why a response is refused.
enum Refusal {
    New(String),
    /// The last one was refused for the same.
    Again(String),
}

/// Follows the server for ever, and begins a new stream at once when `asked`.
pub async fn follow(options: Options, asked: Arc<Notify>, events: mpsc::UnboundedSender<Event>) {
    let (mut known, random, mut failures) = (Known::default(), RandomState::new(), 0);
    loop {
        let begin = Instant::now();
        let mut following = Following::new(&options, &mut known, &events);
        let end = tokio::select! {
            end = following.run() => Some(end),
            () = asked.notified() => None,
        };
        let stood = following.first.is_some() || begin.elapsed() >= options.backoff.most;
        let Some(error) = end else { continue };
        failures = if stood { 1 } else { failures + 1 };
        let drawn = (random.hash_one(failures) >> 11) as f64 / (1_u64 << 53) as f64;
        let wait = options.backoff.delay(error.first_wait(&options), failures, drawn);
        // The receiver is gone only when the process ends.
        let _ = events.send(Event::Lost(error, wait));
        tokio::select! {
            () = sleep(wait) => {}
            () = asked.notified() => {}
        }
    }
}

/// What is known beyond the end of a stream.
#[derive(Default)]
struct Known {
    /// `None`: nothing has been in force yet, not even an empty list.
    in_force: Option<Resources>,
    refused: Option<Refused>,
}

/// What was refused last.
struct Refused {
    /// None where they could not be told apart.
    resources: Option<Resources>,
    reason: String,
}

impl Known {
    /// Whether these have been refused, and nothing else since: the reason.
    fn has_refused(&self, resources: &Resources) -> Option<&str> {
        let refused = self.refused.as_ref().filter(|refused| refused.resources.as_ref() == Some(resources));
        refused.map(|refused| &*refused.reason)
    }

    /// Whether what cannot be told apart has been refused for the same, and nothing else since.
    fn has_refused_for(&self, reason: &str) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.resources.is_none() && refused.reason == reason)
    }
}

/// One stream.
struct Following<'f> {
    options: &'f Options,
    known: &'f mut Known,
    events: &'f mpsc::UnboundedSender<Event>,
    /// When its first response came.
    first: Option<Instant>,
    /// The version that was accepted last.
    version: String,
    /// And its resources.
    offered: Option<Resources>,
    /// All that it has ever named.
    named: HashSet<String>,
    /// What it has not named is gone.
    is_whole: bool,
    /// So often the same was refused.
    again: u32,
    /// An answer that waits.
    late: Option<(Instant, DiscoveryRequest)>,
}

impl<'f> Following<'f> {
    fn new(options: &'f Options, known: &'f mut Known, events: &'f mpsc::UnboundedSender<Event>) -> Following<'f> {
        Following {
            options,
            known,
            events,
            first: None,
            version: String::new(),
            offered: None,
            named: HashSet::new(),
            is_whole: options.removal_delay.is_zero(),
            again: 0,
            late: None,
        }
    }

    fn tell(&self, event: Event) {
        // The receiver is gone only when the process ends.
        let _ = self.events.send(event);
    }

    /// Until the stream ends.
    async fn run(&mut self) -> StreamError {
        let mut stream = match Stream::open(self.options).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let mut settles = Some(Instant::now() + SETTLED);
        loop {
            let whole_at = self.first.filter(|_| !self.is_whole).map(|first| first + self.options.removal_delay);
            tokio::select! {
                response = stream.next() => match response {
                    Ok(response) => {
                        if settles.take().is_some() {
                            self.tell(Event::Connected);
                        }
                        if let Some(answer) = self.answer(response).await {
                            stream.send(answer);
                        }
                    }
                    Err(error) => return error,
                },
                () = at(settles) => {
                    settles = None;
                    self.tell(Event::Connected);
                }
                () = at(whole_at) => self.remove_unnamed().await,
                () = at(self.late.as_ref().map(|(due, _)| *due)) => {
                    if let Some((_, answer)) = self.late.take() {
                        stream.send(answer);
                    }
                }
            }
        }
    }

    /// What to answer at once.
    async fn answer(&mut self, response: DiscoveryResponse) -> Option<DiscoveryRequest> {
        let DiscoveryResponse { version_info, resources, type_url, nonce, .. } = response;
        if type_url != TYPE_URL {
            self.tell(Event::Stray(type_url));
            return None;
        }
        self.first.get_or_insert_with(Instant::now);
        let judged = match resource::resources(resources) {
            Ok(resources) => self.judge(&version_info, resources).await,
            Err(error) => {
                let reason = error.to_string();
                match self.known.has_refused_for(&reason) {
                    true => Err(Refusal::Again(reason)),
                    false => {
                        self.offer(&version_info, Err(error)).await;
                        self.known.refused = Some(Refused { resources: None, reason: reason.clone() });
                        Err(Refusal::New(reason))
                    }
                }
            }
        };
        // What has come meanwhile makes an answer to what came before superfluous.
        self.late = None;
        match judged {
            Ok(()) => {
                self.again = 0;
                self.version.clone_from(&version_info);
                let answer = ack(&version_info, nonce);
                self.tell(Event::Answered(Response::Accepted(version_info)));
                Some(answer)
            }
            Err(Refusal::New(reason)) => {
                self.again = 0;
                self.tell(Event::Answered(Response::Refused(version_info)));
                Some(nack(&self.version, nonce, &reason))
            }
            Err(Refusal::Again(reason)) => {
                let wait = AGAIN.saturating_mul(1 << self.again.min(8)).min(AGAIN_AT_MOST);
                self.again += 1;
                self.late = Some((Instant::now() + wait, nack(&self.version, nonce, &reason)));
                None
            }
        }
    }

    /// Puts what has come in force, with what has to stay for a while.
    async fn judge(&mut self, version: &str, resources: Resources) -> Result<(), Refusal> {
        self.named.extend(resources.iter().map(|resource| resource.name().to_owned()));
        let in_force = self.known.in_force.as_deref().unwrap_or_default();
        let all = match self.is_whole {
            true => resources.clone(),
            false => resource::with_unnamed(&resources, in_force, &self.named),
        };
        let unnamed = unnamed(&all, &resources);
        self.put(version, all).await?;
        self.offered = Some(resources);
        if !unnamed.is_empty() {
            self.tell(Event::Unnamed(unnamed, self.options.removal_delay));
        }
        Ok(())
    }

    /// The server has had its time: what it has not named is deleted.
    async fn remove_unnamed(&mut self) {
        self.is_whole = true;
        if let Some(offered) = self.offered.clone() {
            // A part of what is right is right: nothing is to be refused.
            let _ = self.put(&self.version.clone(), offered).await;
        }
    }

    /// Puts resources in force, unless they are or have just been refused.
    async fn put(&mut self, version: &str, resources: Resources) -> Result<(), Refusal> {
        if self.known.in_force.as_ref() == Some(&resources) {
            self.known.refused = None;
            return Ok(());
        }
        if let Some(reason) = self.known.has_refused(&resources) {
            return Err(Refusal::Again(reason.to_owned()));
        }
        let (all, options) = (resources.clone(), self.options.load);
        let loaded = blocking(move || resource::load(&all, options)).await;
        let reason = loaded.as_ref().err().map(RulesError::to_string);
        match (reason, self.offer(version, loaded).await) {
            (None, true) => {
                (self.known.in_force, self.known.refused) = (Some(resources), None);
                Ok(())
            }
            (None, false) => Err(Refusal::New("the rules cannot be put in force".to_owned())),
            (Some(reason), _) => {
                self.known.refused = Some(Refused { resources: Some(resources), reason: reason.clone() });
                Err(Refusal::New(reason))
            }
        }
    }

    /// Offers rules, and waits until they are in force, or are not.
    async fn offer(&self, version: &str, loaded: Result<Loaded, RulesError>) -> bool {
        let (in_force, settled) = oneshot::channel();
        self.tell(Event::Offered(Offer { version: version.to_owned(), loaded, in_force }));
        settled.await.is_ok()
    }
}

/// The names of those that are not among the offered.
fn unnamed(all: &[Arc<Resource>], offered: &[Arc<Resource>]) -> Vec<String> {
    let offered: HashSet<&str> = offered.iter().map(|resource| resource.name()).collect();
    all.iter().map(|resource| resource.name()).filter(|name| !offered.contains(name)).map(str::to_owned).collect()
}

/// Waits for a moment; without one, for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
