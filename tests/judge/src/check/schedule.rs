//! Whether instants exist that keep a window, exactly.
//!
//! **Statement.** Let each operation that was allowed have one hit. The test says yes if and only if each operation can
//! be given an instant from its begin to its end such that no half-open interval of one period P has more than N of
//! them. An operation of several hits is as many operations; so that "no" is still right, and a "yes" may be given to a
//! history in which only different instants of the same operation's hits keep the limit.
//!
//! **Why this is a schedule.** A hit at x counts in [x, x + P). So instants keep the limit if and only if jobs of
//! length P that start at them run on N machines: at most N jobs run at any time. The begin of an operation is the
//! job's release, and its end the latest start. B. Simons, "Multiprocessor scheduling of unit-time jobs with arbitrary
//! release times and deadlines" (SIAM J. Comput., 1983), and B. Simons and M. Warmuth (1989), solve this; here is their
//! idea of barriers.
//!
//! **How.** Slot k is the k-th start in the order of time, from 0. A lower bound of the start of slot k, in every
//! schedule, is the largest of
//!
//! - the start of slot k - 1, and the start of slot k - N plus P, since only N jobs run at once;
//! - the k-th release in the order of time, since k + 1 jobs must have been released;
//! - its barrier, if it has one.
//!
//! Slots are filled in this order, each at its bound, with the job of those released and not started whose latest start
//! is the earliest. At its bound at least one such job exists, since k + 1 jobs were released and k have started. Let X
//! be a job that would start in slot k after its latest start d. Let j be the last slot before k with a job whose
//! latest start is after d.
//!
//! - If there is none, k + 1 jobs have to start by d. One of them is in slot k or later in every schedule, and starts
//!   after d there. So no schedule exists.
//! - Otherwise let r be the earliest release of the jobs in the slots j + 1 to k. These k - j jobs have to start by d.
//!   If slot j started before r in a schedule, then all of them would be in slots after j, one of them in slot k or
//!   later, after d. So slot j starts at r or later in every schedule: that is its barrier. It is later than before:
//!   the job in slot j was chosen although its latest start is later than theirs, so none of them had been released.
//!
//! Filling continues at slot j. Each barrier raises a bound to another release, so it ends. If all slots are filled,
//! they are a schedule: the bounds of slots k and k - N are P apart.

use std::collections::BTreeSet;

/// The first and the last instant of a job.
pub type Job = (u64, u64);

/// Returns instants of the jobs that keep `number` in each period, each with its job's index and in the order of time,
/// or [`None`] if there are none.
pub fn schedule(jobs: &[Job], number: usize, period_us: u64) -> Option<Vec<(u64, usize)>> {
    if number == 0 {
        return jobs.is_empty().then(Vec::new);
    }
    let mut by_release: Vec<usize> = (0..jobs.len()).collect();
    by_release.sort_by_key(|job| jobs[*job].0);
    let mut barriers = vec![0_u64; jobs.len()];
    let mut slots: Vec<(u64, usize)> = Vec::with_capacity(jobs.len());
    // Jobs that were released and have not started, by their latest start; and how many were released.
    let mut waiting: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut released = 0;
    while slots.len() < jobs.len() {
        let slot = slots.len();
        let mut start = barriers[slot].max(jobs[by_release[slot]].0);
        if let Some((before, _)) = slots.last() {
            start = start.max(*before);
        }
        if let Some((before, _)) = slot.checked_sub(number).and_then(|other| slots.get(other)) {
            start = start.max(before + period_us);
        }
        while let Some(job) = by_release.get(released)
            && jobs[*job].0 <= start
        {
            waiting.insert((jobs[*job].1, *job));
            released += 1;
        }
        // One waits, since more jobs were released than have started.
        let (latest, job) = waiting.first().copied()?;
        if start <= latest {
            waiting.remove(&(latest, job));
            slots.push((start, job));
            continue;
        }
        let pulled = slots.iter().rposition(|(_, other)| jobs[*other].1 > latest)?;
        let after = slots[pulled + 1..].iter().map(|(_, job)| *job).chain([job]);
        barriers[pulled] = after.map(|job| jobs[job].0).min()?;
        // The jobs of the slots that are filled again wait again, but for those that are not released so early.
        let before = pulled.checked_sub(1).map_or(0, |last| slots[last].0);
        waiting.extend(slots.drain(pulled..).map(|(_, job)| (jobs[job].1, job)));
        while released > 0 && jobs[by_release[released - 1]].0 > before {
            released -= 1;
            let job = by_release[released];
            waiting.remove(&(jobs[job].1, job));
        }
    }
    Some(slots)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries all instants.
    fn exists(jobs: &[Job], chosen: &mut Vec<u64>, number: usize, period_us: u64) -> bool {
        let keeps = |chosen: &[u64]| {
            chosen
                .iter()
                .all(|from| chosen.iter().filter(|at| (*from..from + period_us).contains(at)).count() <= number)
        };
        if !keeps(chosen) {
            return false;
        }
        let Some((begin, end)) = jobs.get(chosen.len()) else { return true };
        (*begin..=*end).any(|at| {
            chosen.push(at);
            let found = exists(jobs, chosen, number, period_us);
            chosen.pop();
            found
        })
    }

    #[test]
    fn a_job_waits_for_one_that_is_more_urgent() {
        // Greedily, the first would start at 0 and leave no room for the second: it has to wait.
        assert_eq!(schedule(&[(0, 9), (1, 1)], 1, 4), Some(vec![(1, 1), (5, 0)]));
        assert_eq!(schedule(&[(0, 4), (1, 1)], 1, 4), None);
        assert_eq!(schedule(&[(0, 4), (1, 1)], 2, 4), Some(vec![(0, 0), (1, 1)]));
        assert_eq!(schedule(&[], 0, 4), Some(Vec::new()));
        assert_eq!(schedule(&[(0, 4)], 0, 4), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn a_schedule_is_found_where_there_is_one_and_nowhere_else(
            drawn in prop::collection::vec((0..14_u64, 0..6_u64), 0..8), number in 1..4_usize, period_us in 1..7_u64,
        ) {
            let jobs: Vec<Job> = drawn.iter().map(|(begin, lasts)| (*begin, begin + lasts)).collect();
            let found = schedule(&jobs, number, period_us);
            prop_assert_eq!(found.is_some(), exists(&jobs, &mut Vec::new(), number, period_us));
            if let Some(slots) = found {
                let mut all: Vec<usize> = slots.iter().map(|(_, job)| *job).collect();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..jobs.len()));
                for (index, (start, job)) in slots.iter().enumerate() {
                    prop_assert!((jobs[*job].0..=jobs[*job].1).contains(start));
                    let next = slots.get(index + number);
                    prop_assert!(next.is_none_or(|(next, _)| *next >= start + period_us));
                }
            }
        }
    }
}
