//! Follows a management server for as long as the process runs: opens one stream after another, and handles their
//! responses.

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
use crate::engine::printable::printable;
use crate::engine::rules::report::RulesError;
use crate::files::blocking;
use crate::sources::files::load::Loaded;
use crate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};

/// Age at which a stream counts as connected, even if the server has sent nothing.
const SETTLED: Duration = Duration::from_secs(1);

/// Delay of the answer to a repeated rejected response, doubled each time. A server that receives a rejection may send
/// the same response again at once, as `go-control-plane` does.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest such delay. Until the answer, the server sends nothing new.
const AGAIN_AT_MOST: Duration = Duration::from_secs(10);

/// Number of characters of a version that logs and metrics show.
const MOST_SHOWN: usize = 100;

/// An event of following a management server.
#[derive(Debug)]
pub enum Event {
    /// A stream is open.
    Connected,
    /// The stream failed or ended; the next attempt follows after this time.
    Lost(StreamError, Duration),
    /// A response arrived, and its rules are not in force yet.
    Offered(Offer),
    /// A response has been answered.
    Answered(Response),
    /// Resources that a new stream has not named yet stay in force for this time.
    Unnamed(Vec<String>, Duration),
    /// A response of a type that was not requested.
    Stray(String),
}

/// The rules of a response, or the errors in them.
#[derive(Debug)]
pub struct Offer {
    /// The server's version of this snapshot.
    pub version: String,
    /// The rules.
    pub loaded: Result<Loaded, RulesError>,
    /// Notified when the rules are in force; dropped if they are rejected.
    pub in_force: oneshot::Sender<()>,
}

/// The answer to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The rules of this version are in force.
    Accepted(String),
    /// The rules of this version were rejected.
    Refused(String),
}

/// The reason for rejecting a response.
enum Refusal {
    New(String),
    /// The reason for rejecting a response that repeats the previous one.
    Again(String),
}

/// Follows the server forever. Opens a new stream at once when `asked` is notified.
pub async fn follow(options: Options, asked: Arc<Notify>, events: mpsc::UnboundedSender<Event>) {
    let (mut known, random, mut failures) = (Known::default(), RandomState::new(), 0);
    loop {
        let begin = Instant::now();
        let mut following = Following::new(&options, &mut known, &events);
        let end = following.run(&asked).await;
        let stood = following.first.is_some() || begin.elapsed() >= options.backoff.most;
        let End::Failed(error) = end else { continue };
        failures = if stood { 1 } else { failures + 1 };
        let drawn = (random.hash_one(failures) >> 11) as f64 / (1_u64 << 53) as f64;
        let wait = options.backoff.delay(error.first_wait(&options), failures, drawn);
        // The receiver is gone only if the process is ending.
        let _ = events.send(Event::Lost(error, wait));
        tokio::select! {
            () = sleep(wait) => {}
            () = asked.notified() => {}
        }
    }
}

/// State kept from one stream to the next.
#[derive(Default)]
struct Known {
    /// `None` if no resources have been in force yet, not even an empty list.
    in_force: Option<Resources>,
    refused: Option<Refused>,
}

/// The response that was rejected last.
struct Refused {
    /// `None` if the resources could not be decoded.
    resources: Option<Resources>,
    reason: String,
}

impl Known {
    /// Returns the reason if the last rejection was of these resources.
    fn has_refused(&self, resources: &Resources) -> Option<&str> {
        let refused = self.refused.as_ref().filter(|refused| refused.resources.as_ref() == Some(resources));
        refused.map(|refused| &*refused.reason)
    }

    /// Returns whether the last rejection was of resources that could not be decoded, for this reason.
    fn has_refused_for(&self, reason: &str) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.resources.is_none() && refused.reason == reason)
    }
}

/// The end of a stream.
enum End {
    Failed(StreamError),
    /// A new stream was asked for.
    Asked,
}

/// One stream.
struct Following<'f> {
    options: &'f Options,
    known: &'f mut Known,
    events: &'f mpsc::UnboundedSender<Event>,
    /// Time of its first response.
    first: Option<Instant>,
    /// The last accepted version.
    version: String,
    /// The resources of that version.
    offered: Option<Resources>,
    /// All names the stream has ever sent.
    named: HashSet<String>,
    /// Whether resources that it has not named count as deleted.
    is_whole: bool,
    /// Number of repeated rejections.
    again: u32,
    /// A delayed answer, with its time.
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
        // The receiver is gone only if the process is ending.
        let _ = self.events.send(event);
    }

    /// Runs until the stream ends, or until `asked` is notified and no response is being handled: rules that have been
    /// offered may come into force, and must then be known.
    async fn run(&mut self, asked: &Notify) -> End {
        let opened = tokio::select! {
            opened = Stream::open(self.options) => opened,
            () = asked.notified() => return End::Asked,
        };
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(error) => return End::Failed(error),
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
                    Err(error) => return End::Failed(error),
                },
                () = asked.notified() => return End::Asked,
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

    /// Handles a response, and returns the answer to send at once.
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
        // A newer response replaces the delayed answer to an older one.
        self.late = None;
        match judged {
            Ok(()) => {
                self.again = 0;
                self.version.clone_from(&version_info);
                let answer = ack(&version_info, nonce);
                self.tell(Event::Answered(Response::Accepted(shown(&version_info))));
                Some(answer)
            }
            Err(Refusal::New(reason)) => {
                self.again = 0;
                self.tell(Event::Answered(Response::Refused(shown(&version_info))));
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

    /// Puts the resources in force, together with those that must stay for a while.
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

    /// Deletes the resources that the server has not named in time.
    async fn remove_unnamed(&mut self) {
        self.is_whole = true;
        if let Some(offered) = self.offered.clone() {
            // Removing resources from valid ones leaves no reason for a rejection.
            let _ = self.put(&self.version.clone(), offered).await;
        }
    }

    /// Puts resources in force, unless they already are or were the last to be rejected.
    async fn put(&mut self, version: &str, resources: Resources) -> Result<(), Refusal> {
        if self.known.in_force.as_ref() == Some(&resources) {
            self.known.refused = None;
            return Ok(());
        }
        if let Some(reason) = self.known.has_refused(&resources) {
            return Err(Refusal::Again(reason.to_owned()));
        }
        let (all, options) = (resources.clone(), self.options.load.clone());
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

    /// Offers rules, and waits until they are put in force or rejected.
    async fn offer(&self, version: &str, loaded: Result<Loaded, RulesError>) -> bool {
        let (in_force, settled) = oneshot::channel();
        self.tell(Event::Offered(Offer { version: shown(version), loaded, in_force }));
        settled.await.is_ok()
    }
}

/// Returns a version as logs and metrics show it. The server chooses it: it may have any length and any characters.
fn shown(version: &str) -> String {
    let text = printable(version);
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Returns the names of the resources that are not among the offered ones.
fn unnamed(all: &[Arc<Resource>], offered: &[Arc<Resource>]) -> Vec<String> {
    let offered: HashSet<&str> = offered.iter().map(|resource| resource.name()).collect();
    all.iter().map(|resource| resource.name()).filter(|name| !offered.contains(name)).map(str::to_owned).collect()
}

/// Waits until a moment, or forever without one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_shown_without_control_characters_and_cut_where_it_is_long() {
        assert_eq!(shown("2026-11-23T04:00Z/17"), "2026-11-23T04:00Z/17");
        assert_eq!(shown("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(shown(&"é".repeat(100_000)), format!("{}...", "é".repeat(MOST_SHOWN)));
    }
}
