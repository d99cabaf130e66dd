//! Adjustments while Redis is away, and those of one instance alone.

use crate::support;

use std::time::Duration;

use serde_json::{Value, json};
use support::redis::Redis;
use support::tollgate::Tollgate;
use support::{free_port, wait_until};

use super::{TOKEN, begin, passed, send, start};

/// Starts two services with this Redis, which know each other's adjustments.
pub fn two(redis: &Redis) -> [Tollgate; 2] {
    let url = format!("REDIS_URL={}", redis.url());
    [(); 2].map(|()| start(&[&url, "REDIS_TIMEOUT=200ms"]))
}

/// Returns the adjustments of a service, by ID: whether each holds there alone.
pub fn held(tollgate: &Tollgate) -> Vec<(String, bool)> {
    let (_, list) = send(tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
    let one = |one: &Value| (one["id"].as_str().unwrap().to_owned(), one["only_here"].is_object());
    list.as_array().unwrap().iter().map(one).collect()
}

#[tokio::test]
async fn without_redis_a_brake_holds_at_the_instance_that_is_asked_and_is_published_when_it_is_back() {
    let mut redis = Redis::start();
    let [one, other] = two(&redis);
    assert_eq!(passed(&one, "user", "ann", 2).await, 2);
    redis.kill();
    let block = json!({"id": "flood", "effect": "block", "domain": "shop", "rule": "user"});
    let mut body = block.as_object().unwrap().clone();
    body.extend(json!({"who": "ann", "why": "a flood", "for": "1h"}).as_object().unwrap().clone());
    let (status, shown) = send(&one, "POST", "/adjustments?fleet=true", TOKEN, &Value::from(body.clone()));
    assert_eq!((status, &shown["only_here"]["fleet"], &shown["only_here"]["stays"]), (201, &true.into(), &Value::Null));
    let instance = shown["only_here"]["instance"].as_str().unwrap();
    assert!(!instance.is_empty(), "{shown}");
    let (_, again) = send(&one, "POST", "/adjustments?fleet=true", TOKEN, &Value::from(body));
    assert_eq!((&again["until"], &again["since"]), (&shown["until"], &shown["since"]), "it began once");
    assert_eq!(begin(&one, json!({"id": "flood", "effect": "pass", "domain": "shop"})).0, 409);
    let alone = begin(&one, json!({"id": "mine", "effect": "pass", "domain": "shop", "rule": "quiet"}));
    assert_eq!((alone.0, &alone.1["only_here"]["fleet"]), (201, &false.into()));
    assert_eq!(held(&one), [("flood".to_owned(), true), ("mine".to_owned(), true)]);
    assert_eq!(one.metric("tollgate_own_adjustments"), 2.0);
    assert_eq!(passed(&one, "user", "ann", 2).await, 0, "it holds");
    assert_eq!((passed(&other, "user", "ann", 1).await, held(&other)), (1, Vec::new()), "the rule fails open there");

    redis.restart();
    wait_until("it is published", || held(&other) == [("flood".to_owned(), false)]);
    wait_until("and no longer only here", || held(&one).contains(&("flood".to_owned(), false)));
    assert_eq!(passed(&other, "user", "ann", 1).await, 0);
    let of = |tollgate: &Tollgate, id: &str| {
        let (_, list) = send(tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
        list.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone()
    };
    let time = |text: &Value| humantime::parse_rfc3339(text.as_str().unwrap()).unwrap();
    let ends = [time(&shown["until"]), time(&of(&other, "flood")["until"])];
    let apart = ends[0].max(ends[1]).duration_since(ends[0].min(ends[1])).unwrap();
    assert!(apart < Duration::from_secs(2), "its end is absolute: {apart:?}");
    assert!(of(&one, "mine")["only_here"].is_object(), "this one is not meant for the fleet");
    assert_eq!(one.metric("tollgate_own_adjustments"), 1.0);

    assert_eq!(send(&one, "DELETE", "/adjustments/mine?who=ann&why=over", TOKEN, &Value::Null).0, 200);
    assert_eq!(held(&one), [("flood".to_owned(), false)]);
    wait_until("the audit trail has its begin and its end", || {
        let (_, trail) = send(&one, "GET", "/audit", TOKEN, &Value::Null);
        let about = |entry: &&Value| entry["reason"].as_str().is_some_and(|text| text.starts_with("mine "));
        let entries = trail["entries"].as_array().unwrap().iter().filter(about);
        let actions: Vec<&str> = entries.map(|entry| entry["action"].as_str().unwrap()).collect();
        actions == ["ended", "began"]
    });
}

#[tokio::test]
async fn what_somebody_steered_later_elsewhere_stands_above_what_an_instance_held() {
    for is_first in [true, false] {
        let mut redis = Redis::start();
        let [one, other] = two(&redis);
        redis.kill();
        let block = json!({"id": "old", "effect": "block", "domain": "shop", "rule": "user", "who": "ann", "why": "x",
            "for": "1h"});
        let pass = json!({"id": "new", "effect": "pass", "domain": "shop", "rule": "user", "who": "bob", "why": "y",
            "for": "1h"});
        let [early, late] = if is_first { [&one, &other] } else { [&other, &one] };
        assert_eq!(send(early, "POST", "/adjustments?fleet=true", TOKEN, &block).0, 201);
        // A call to Redis may take so long, by which a start that is published is uncertain.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(send(late, "POST", "/adjustments?fleet=true", TOKEN, &pass).0, 201);
        assert_eq!((passed(early, "user", "ann", 1).await, passed(late, "user", "ann", 1).await), (0, 1));
        redis.restart();
        wait_until("the later one is published", || {
            [&one, &other].iter().all(|tollgate| held(tollgate).contains(&("new".to_owned(), false)))
        });
        wait_until("both decide alike", || {
            let old = |tollgate: &&Tollgate| held(tollgate).iter().any(|(id, only_here)| id == "old" && !only_here);
            // The early one was published before, or stays where it is and says why.
            let (_, list) = send(early, "GET", "/adjustments", TOKEN, &Value::Null);
            let stays = list.as_array().unwrap().iter().any(|one| {
                one["id"] == "old" && one["only_here"]["stays"].as_str().is_some_and(|why| why.contains("new"))
            });
            stays || [&one, &other].iter().all(old)
        });
        assert_eq!((passed(early, "user", "ann", 1).await, passed(late, "user", "ann", 1).await), (1, 1));
    }
}

#[tokio::test]
async fn an_adjustment_ends_at_the_instance_that_is_asked_while_redis_is_away() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let [one, other] = two(&redis);
    for id in ["all", "here"] {
        let rule = if id == "all" { "user" } else { "exact" };
        assert_eq!(begin(&one, json!({"id": id, "effect": "block", "domain": "shop", "rule": rule})).0, 201);
    }
    wait_until("both know them", || held(&other).len() == 2);
    redis.kill();
    let end = |path: &str| send(&one, "DELETE", &format!("/adjustments/{path}who=ann&why=over"), TOKEN, &Value::Null);
    let (status, ended) = end("all?fleet=true&");
    assert_eq!((status, &ended["only_here"]["fleet"]), (200, &true.into()), "{ended}");
    assert_eq!((end("here?").0, end("never?").0), (200, 503));
    // The list says which are ended here, while the others have them.
    let ended = |tollgate: &Tollgate| -> Vec<String> {
        let (_, list) = send(tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
        let ended = list.as_array().unwrap().iter().filter(|one| one["only_here"]["ended"] == true);
        ended.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((ended(&one), ended(&other)), (vec!["all".to_owned(), "here".to_owned()], Vec::new()));
    assert_eq!((one.metric("tollgate_own_adjustments"), held(&other).len()), (2.0, 2));
    assert_eq!((passed(&one, "user", "ann", 1).await, passed(&other, "user", "ann", 1).await), (1, 0));
    redis.restart();
    wait_until("the one is ended for all", || held(&other) == [("here".to_owned(), false)]);
    assert_eq!(ended(&one), ["here"], "the other one is ended at this instance alone");
    assert_eq!(passed(&other, "user", "ann", 1).await, 1);
}

#[test]
fn the_command_changes_each_instance_and_says_which_took_it() {
    let mut redis = Redis::start();
    let [one, other] = two(&redis);
    redis.kill();
    let addresses = [&one, &other].map(|tollgate| format!("127.0.0.1:{}", tollgate.http_port));
    let nobody = format!("127.0.0.1:{}", free_port());
    let run = |words: &[&str], addresses: &[&str]| {
        let asked = addresses.iter().flat_map(|address| ["--address", address]);
        let words: Vec<&str> = words.iter().copied().chain(asked).chain(["--admin-token", TOKEN]).collect();
        let output = crate::process::run(&words, &[]);
        let said = crate::process::text(&output.stdout) + &crate::process::text(&output.stderr);
        (output.status.code(), said)
    };
    let both = [&*addresses[0], &*addresses[1]];
    let block = [
        "adjust", "block", "--domain", "shop", "--rule", "user", "--for", "1h", "--why", "a flood", "--who", "ann",
        "--id", "flood",
    ];
    let (code, said) = run(&block, &both);
    assert!(code == Some(1) && said.contains("add --all-instances"), "{said}");
    let everywhere = [&block[..], &["--all-instances"]].concat();
    let (code, said) = run(&everywhere, &[both[0], &nobody]);
    assert!(code == Some(1) && said.contains("1 of 2 instances failed: repeat the command with --id flood"), "{said}");
    assert!(said.contains(&format!("{nobody}:\n  failed: ")), "{said}");
    let (code, said) = run(&everywhere, &both);
    let alone = said.matches("it holds at instance").count();
    assert!(code == Some(0) && alone == 2 && both.iter().all(|address| said.contains(address)), "{said}");
    assert_eq!([held(&one), held(&other)], [(); 2].map(|()| vec![("flood".to_owned(), true)]));
    let (code, said) = run(&["adjustments"], &both[..1]);
    assert!(code == Some(0) && said.starts_with("flood  block  "), "{said}");
    let (code, said) = run(&["adjustments", "--all-instances", "--format", "json"], &both);
    let lists: Value = serde_json::from_str(&said).unwrap();
    assert!(code == Some(0) && lists[1]["answer"][0]["only_here"]["fleet"] == false, "{said}");

    // What a dry run answers, it does not do.
    let trial = [&block.map(|word| if word == "flood" { "trial" } else { word })[..], &["--dry-run"]].concat();
    let (code, said) = run(&trial, &both[..1]);
    assert!(code == Some(0) && said.starts_with("nothing was changed; it would reach 1 limit"), "{said}");
    assert_eq!(held(&one), [("flood".to_owned(), true)]);

    let unknown = block.map(|word| if word == "user" { "usr" } else { word });
    let (code, said) = run(&unknown, &both[..1]);
    assert!(code == Some(1) && said.contains("did you mean"), "{said}");
    let (code, said) = run(&["adjust", "end", "flood", "--why", "over", "--who", "ann", "--all-instances"], &both);
    assert!(code == Some(0) && said.matches("ended flood").count() == 2, "{said}");
    assert_eq!([held(&one), held(&other)], [Vec::new(), Vec::new()]);
}

#[tokio::test]
async fn what_is_ended_and_begun_again_meanwhile_holds_and_is_published() {
    let mut redis = Redis::start();
    let [one, other] = two(&redis);
    redis.kill();
    let flood = |lasts: &str| {
        json!({
            "id": "flood", "effect": "block", "domain": "shop", "rule": "user", "who": "ann", "why": "x", "for": lasts,
        })
    };
    let begin_at = |lasts: &str| send(&one, "POST", "/adjustments?fleet=true", TOKEN, &flood(lasts)).0;
    let end = || send(&one, "DELETE", "/adjustments/flood?who=ann&why=over", TOKEN, &Value::Null);
    // A short one is over before Redis is back.
    assert_eq!(begin_at("1s"), 201);
    wait_until("it is over", || held(&one).is_empty());
    assert_eq!(begin_at("1h"), 201);
    assert_eq!(passed(&one, "user", "ann", 1).await, 0, "the same id holds again");
    let (status, ended) = end();
    assert!(status == 200 && ended["only_here"]["ended"] == true, "{ended}");
    assert_eq!(passed(&one, "user", "ann", 1).await, 1);
    assert_eq!((begin_at("1h"), begin_at("1h"), begin_at("2h")), (201, 201, 409));
    redis.restart();
    wait_until("the new one is published", || held(&other) == [("flood".to_owned(), false)]);
    wait_until("and no longer only here", || held(&one) == [("flood".to_owned(), false)]);
    // Its old end, of an earlier one, ends it nowhere.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!([held(&one), held(&other)], [(); 2].map(|()| vec![("flood".to_owned(), false)]));
    assert_eq!((passed(&one, "user", "ann", 1).await, passed(&other, "user", "ann", 1).await), (0, 0));
}

#[tokio::test]
async fn an_end_reaches_the_same_adjustment_that_another_instance_publishes_later() {
    let mut redis = Redis::start();
    let [one, other] = two(&redis);
    redis.kill();
    let flood = json!({
        "id": "flood", "effect": "block", "domain": "shop", "rule": "user", "who": "ann", "why": "x", "for": "1h",
    });
    for tollgate in [&one, &other] {
        assert_eq!(send(tollgate, "POST", "/adjustments?fleet=true", TOKEN, &flood).0, 201);
    }
    assert_eq!(send(&one, "DELETE", "/adjustments/flood?who=ann&why=over", TOKEN, &Value::Null).0, 200);
    assert_eq!((held(&one).len(), held(&other).len()), (0, 1));
    redis.restart();
    wait_until("it is ended at the other, too", || held(&other).is_empty());
    assert_eq!((passed(&one, "user", "ann", 1).await, passed(&other, "user", "ann", 1).await), (1, 1));
}

#[tokio::test]
async fn two_adjustments_of_one_id_both_hold_and_end_by_themselves() {
    let mut redis = Redis::start();
    let [one, other] = two(&redis);
    redis.kill();
    for (tollgate, rule) in [(&one, "user"), (&other, "exact")] {
        let block = json!({"id": "flood", "effect": "block", "domain": "shop", "rule": rule, "who": "ann", "why": "x",
            "for": "1h"});
        assert_eq!(send(tollgate, "POST", "/adjustments?fleet=true", TOKEN, &block).0, 201);
    }
    redis.restart();
    let is_settled = |tollgate: &Tollgate| {
        let (_, list) = send(tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
        let list = list.as_array().unwrap();
        list.len() == 2 && list.iter().any(|one| one["only_here"]["stays"].is_string())
    };
    wait_until("one is published, and the other stays", || is_settled(&one) || is_settled(&other));
    let (kept, published) = if is_settled(&one) { (&one, &other) } else { (&other, &one) };
    assert_eq!(send(kept, "DELETE", "/adjustments/flood?who=ann&why=over", TOKEN, &Value::Null).0, 200);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!((held(kept), held(published)), (vec![("flood".to_owned(), false)], vec![("flood".to_owned(), false)]));
}

#[test]
fn the_command_ends_an_adjustment_of_all_instances_though_only_one_has_to() {
    let redis = Redis::start();
    let [one, other] = two(&redis);
    assert_eq!(begin(&one, json!({"id": "all", "effect": "block", "domain": "shop", "rule": "user"})).0, 201);
    wait_until("both know it", || held(&other).len() == 1);
    let addresses = [&one, &other].map(|tollgate| format!("127.0.0.1:{}", tollgate.http_port));
    let end = |id: &str| {
        let words = [
            "adjust",
            "end",
            id,
            "--why",
            "over",
            "--who",
            "ann",
            "--all-instances",
            "--admin-token",
            TOKEN,
            "--address",
            &addresses[0],
            "--address",
            &addresses[1],
        ];
        crate::process::run(&words, &[])
    };
    let ended = end("all");
    let said = crate::process::text(&ended.stdout) + &crate::process::text(&ended.stderr);
    assert!(ended.status.success() && said.matches("ended all").count() == 2, "{said}");
    assert!(!end("all").status.success(), "none has it");
}
