//! Adjustments that take effect in hours of the day.

use std::sync::Arc;
use std::time::Duration;

use humantime::{format_rfc3339_seconds, parse_rfc3339};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate::engine::adjustment::{Hours, Written};
use tollgate::engine::algorithm::TimeZone;
use tollgate::store::memory::MemoryStore;

use super::{RULES, TOKEN, adjustments, begin, in_force, limiter, passed, send, start, written};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Returns the hours, in UTC, from one time after now to another.
fn hours(from: Duration, until: Duration) -> String {
    let now = std::time::SystemTime::now();
    let shown = |after: Duration| format_rfc3339_seconds(now + after).to_string()[11..16].to_owned();
    format!("{}-{}", shown(from), shown(until))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_outside_its_hours_is_listed_and_changes_nothing() {
    let tollgate = start(&[]);
    let block = |id: &str, key: &str, hours: &str| {
        begin(&tollgate, json!({"id": id, "effect": "block", "domain": "shop", "rule": key, "hours": hours}))
    };
    let (status, said) = block("now", "user", &hours(22 * HOUR, 2 * HOUR));
    assert!(status == 201 && said["paused_until"].is_null(), "{said}");
    let (status, said) = block("later", "exact", &hours(2 * HOUR, 4 * HOUR));
    let begins = parse_rfc3339(said["paused_until"].as_str().unwrap()).unwrap();
    let ahead = begins.duration_since(std::time::SystemTime::now()).unwrap();
    // They begin at a whole minute.
    assert!(status == 201 && (HOUR..=2 * HOUR).contains(&ahead), "{said}");
    assert_eq!((passed(&tollgate, "user", "ann", 1).await, passed(&tollgate, "exact", "ann", 1).await), (0, 1));
    assert_eq!(in_force(&tollgate, "block"), 1.0, "one takes effect");
    let (_, list) = send(&tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
    assert_eq!((&list[0]["paused_until"], &list[1]["paused_until"]), (&Value::Null, &said["paused_until"]));
    assert_eq!(send(&tollgate, "DELETE", "/adjustments/later?who=ann&why=x", TOKEN, &Value::Null).0, 200);

    let words = ["adjust", "block", "--domain", "shop", "--rule", "exact", "--for", "1d", "--why", "x", "--who", "ann"];
    let address = format!("127.0.0.1:{}", tollgate.http_port);
    let run = |hours: &[&str]| {
        let words = [&words[..], hours, &["--address", &address, "--admin-token", TOKEN]].concat();
        let output = crate::process::run(&words, &[]);
        (output.status.code(), crate::process::text(&output.stdout) + &crate::process::text(&output.stderr))
    };
    let at_night = hours(3 * HOUR, 5 * HOUR);
    let (code, said) = run(&["--hours", &at_night, "--time-zone", "Africa/Abidjan", "--id", "night"]);
    let told = format!("  daily {at_night} Africa/Abidjan, paused until ");
    assert!(code == Some(0) && said.contains(&told), "{said}");
    for (words, wrong) in [
        (&["--hours", "22-6"][..], "hours: write two different times of the day, such as \"22:00-06:00\""),
        (&["--hours", "1:00-2:00", "--time-zone", "Berlin"], "time_zone: write a name of the IANA database"),
        (&["--time-zone", "UTC"], "--hours <FROM-TO>"),
    ] {
        let (code, said) = run(words);
        assert!(code == Some(1) && said.contains(wrong), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_hold_without_redis_too_and_with_what_an_instance_keeps_alone() {
    let mut redis = crate::support::redis::Redis::start();
    let [one, _] = super::brakes::two(&redis);
    redis.kill();
    for (key, from, until) in [("user", 22, 2), ("exact", 2, 4)] {
        let hours = hours(from * HOUR, until * HOUR);
        let said = json!({"id": key, "effect": "block", "domain": "shop", "rule": key, "hours": hours});
        let (status, said) = begin(&one, said);
        assert!(status == 201 && said["only_here"].is_object(), "{said}");
        assert_eq!(said["paused_until"].is_string(), key == "exact", "{said}");
    }
    assert_eq!((passed(&one, "user", "ann", 1).await, passed(&one, "exact", "ann", 1).await), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn what_takes_effect_are_those_in_their_hours(
        all in prop::collection::vec(
            (0..1_440_u32, 0..1_440_u32, prop::sample::select(TimeZone::names()), any::<bool>(), 1..168_u64), 1..6,
        ),
        waits in prop::collection::vec(1..20_000_u64, 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let all_parts = limiter(MemoryStore::default(), RULES);
            let limiter = Arc::clone(&all_parts.0);
            let adjustments = Arc::new(adjustments(all_parts));
            let kept = Arc::clone(&adjustments);
            tokio::spawn(async move { kept.keep().await });
            let began = (Instant::now(), std::time::SystemTime::now());
            let mut expected = Vec::new();
            for (place, (from, until, zone, has_hours, lasts)) in all.into_iter().enumerate() {
                let shown = |time: u32| format!("{:02}:{:02}", time / 60, time % 60);
                let range = format!("{}-{}", shown(from), shown(until));
                let hours = Hours::parse(&range, TimeZone::named(&zone).unwrap()).filter(|_| has_hours);
                let id = format!("id{place}");
                let one = Written {
                    hours: hours.map(|_| range),
                    time_zone: hours.map(|_| zone),
                    ..written(&id, "block", &format!("{lasts}h"))
                };
                adjustments.begin(&one, "admin", true).await.unwrap();
                expected.push((id, hours, HOUR * u32::try_from(lasts).unwrap()));
            }
            for wait in waits {
                tokio::time::sleep(Duration::from_secs(wait)).await;
                let elapsed = began.0.elapsed();
                // What happens within two seconds may be on either side: the store uses the host's clock.
                let slack = Duration::from_secs(2);
                let is_in = |(_, hours, lasts): &&(String, Option<Hours>, Duration), elapsed: Duration| {
                    let now = (began.1 + elapsed).duration_since(std::time::UNIX_EPOCH).unwrap();
                    let now_ms = u64::try_from(now.as_millis()).unwrap();
                    elapsed < *lasts && hours.is_none_or(|hours| hours.contain(now_ms))
                };
                let snapshot = limiter.snapshot();
                for one in &expected {
                    let found =
                        snapshot.adjustments().is_some_and(|all| all.iter().any(|other| other.id.as_str() == one.0));
                    let [before, after] = [elapsed.saturating_sub(slack), elapsed + slack];
                    if is_in(&one, before) == is_in(&one, after) {
                        prop_assert_eq!(found, is_in(&one, elapsed), "{:?} after {:?}", one, elapsed);
                    }
                }
            }
            Ok(())
        })?;
    }
}
