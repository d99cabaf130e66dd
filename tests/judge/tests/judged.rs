//! The judge is judged: planted faults are found, and legal histories raise no alarm. `JUDGE_SEEDS=0..1000000` draws
//! other histories.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod toy;

use std::ops::Range;

use tollgate_judge::check::{Checks, Judge, Judgement, Kind};
use toy::Fault;

fn judged(seed: u64, fault: Option<Fault>) -> Judgement {
    let (header, operations) = toy::history(seed, fault);
    let mut judge = Judge::new(header, Checks::default());
    operations.iter().for_each(|operation| judge.add(operation).unwrap());
    judge.finish()
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("JUDGE_SEEDS") else { return 0..20_000 };
    let (from, to) = text.split_once("..").expect("JUDGE_SEEDS=0..1000000");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn a_legal_history_raises_no_alarm() {
    let (mut allowed, mut denied) = (0, 0);
    for seed in seeds() {
        let judgement = judged(seed, None);
        assert!(judgement.is_legal_but_for(&[]), "seed {seed}: {judgement}");
        (allowed, denied) = (allowed + judgement.allowed, denied + judgement.denied);
    }
    assert!(denied > allowed / 20, "{denied} of {allowed} are too few to say anything");
}

#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let found = (0..2_000).find(|seed| !judged(*seed, Some(fault)).is_legal_but_for(&[]));
        match found {
            Some(seed) => println!("{fault:?}: seed {seed}: {:?}", judged(seed, Some(fault)).broken),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// What each check is for: without it, these faults pass.
#[test]
fn each_kind_is_needed() {
    for kind in Kind::ALL {
        let alone = |judgement: &Judgement| judgement.broken.keys().eq([&kind]);
        let found = Fault::ALL.iter().find(|fault| (0..2_000).any(|seed| alone(&judged(seed, Some(**fault)))));
        assert!(found.is_some(), "{kind}: no fault is found by it alone");
    }
}

/// Groups have no kind of their own: what one does wrong shows at the counters that it asked.
#[test]
fn what_a_group_does_wrong_shows_at_its_counters() {
    for (fault, kind) in [(Fault::PartOfGroup, Kind::NeedlessDenial), (Fault::FirstOfGroup, Kind::OverLimit)] {
        assert!((0..2_000).any(|seed| judged(seed, Some(fault)).count(kind) > 0), "{fault:?}: {kind}");
    }
}

/// A place that never comes back is told apart from one that expires later, since its release was lost.
#[test]
fn a_place_that_does_not_come_back_has_leaked() {
    let finds = |fault, kind| (0..2_000).any(|seed| judged(seed, Some(fault)).count(kind) > 0);
    assert!(finds(Fault::PlaceKept, Kind::LeakedPlace));
    assert!(finds(Fault::ReleaseLost, Kind::NeedlessDenial) && finds(Fault::ReleaseLost, Kind::WrongRemaining));
    assert!(!finds(Fault::ReleaseLost, Kind::LeakedPlace));
}

#[test]
fn the_example_is_a_scenario_and_the_page_shows_it() {
    let example = include_str!("../example.yaml");
    let page = include_str!("../../../docs/judge.md");
    let shown: String = example.lines().map(|line| format!("    {line}\n")).collect();
    assert!(page.contains(&shown));
    let scenario: tollgate_judge::record::scenario::Scenario = serde_saphyr::from_str(example).unwrap();
    assert_eq!(scenario.promises().len(), 1);
}
