//! Streams of budgets: what a caller holds, and when and how it settles it.

use std::collections::VecDeque;

use fastrand::Rng;

use super::adapter::Asked;
use super::scenario::Load;
use crate::clock::now_us;
use crate::history::{Ask, Operation, Told};

/// The streams of a caller that have begun.
#[derive(Debug)]
pub(super) struct Streams {
    open: VecDeque<Stream>,
    /// The longest that a hold lasts, in microseconds.
    hold_for_us: u64,
}

/// A stream that will settle.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Limits, and what is asked of them; the hits are what the stream uses.
    asked: Vec<(usize, Asked)>,
    settles_at: u64,
    /// Number of times that it settles.
    times: u8,
}

impl Streams {
    /// The most streams of a caller that are open.
    const MOST: usize = 16;

    pub(super) fn new(hold_for_us: u64) -> Streams {
        Streams { open: VecDeque::new(), hold_for_us }
    }

    /// Returns what a stream settles now, or at all if the caller ends. A second settle tells the same, or more.
    pub(super) fn settling(&mut self, ends: bool, rng: &mut Rng) -> Option<Vec<(usize, Asked)>> {
        let now = now_us();
        let due =
            self.open.iter().position(|stream| ends || self.open.len() > Self::MOST || stream.settles_at <= now)?;
        let mut stream = self.open.remove(due)?;
        stream.times -= 1;
        let asked = stream.asked.clone();
        if stream.times > 0 {
            let more = rng.u64(0..3);
            stream.asked.iter_mut().for_each(|(_, one)| one.hits += more);
            self.open.push_back(stream);
        }
        Some(asked)
    }

    /// Hears the answer to a hold or a settle.
    pub(super) fn heard(&mut self, asked: &[(usize, Asked)], operation: &Operation<'_>, load: &Load, rng: &mut Rng) {
        let fails = matches!(operation.told, Told::Failed | Told::Late);
        let (used, times) = match (operation.ask, operation.told) {
            // Most use less than they hold.
            (Ask::Hold, Told::Allowed) if rng.u8(0..100) >= load.abandons => {
                let most = if rng.u8(0..4) == 0 { 2 } else { 1 };
                (Some(most), if rng.u8(0..5) == 0 { 2 } else { 1 })
            }
            // A stream that was denied may tell its end.
            (Ask::Hold, Told::Denied) if rng.u8(0..4) == 0 => (Some(0), 1),
            // A caller that does not know whether its stream may begin lets it, or not.
            (Ask::Hold, _) if fails => (Some(rng.u64(0..2)), 1),
            // Settles again, with the same.
            (Ask::Settle, _) if fails && rng.bool() => (None, 1),
            _ => return,
        };
        let mut asked = asked.to_vec();
        for (_, one) in &mut asked {
            one.hits = used.map_or(one.hits, |most| rng.u64(0..=most * one.hits));
        }
        let lasts_us = match rng.u8(0..100) {
            // Later than the hold lasts.
            0..10 => self.hold_for_us + rng.u64(0..=self.hold_for_us / 4),
            _ => rng.u64(0..=load.holds_ms * 1_000),
        };
        self.open.push_back(Stream { asked, settles_at: now_us() + lasts_us, times });
    }
}
