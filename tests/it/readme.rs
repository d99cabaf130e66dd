//! The commands of Redis that the documentation names are all that its user needs.

use crate::support;

use ::tollgate::engine::algorithm::Algorithm;
use support::limits::stream_key;
use support::redis::Redis;
use support::tollgate::Tollgate;

#[tokio::test]
async fn the_commands_that_they_name_are_all_that_a_user_of_redis_needs() {
    let page = std::fs::read_to_string("docs/redis.md").unwrap();
    let (_, sentence) = page.split_once("Its user needs ").unwrap();
    let (commands, _) = sentence.split_once(" on keys").unwrap();
    let commands: Vec<String> =
        commands.split('`').skip(1).step_by(2).map(|name| format!("+{}", name.replace(' ', "|"))).collect();
    let redis = Redis::start();
    redis.command::<()>(&format!("ACL SETUSER tollgate on >secret ~p:* -@all {}", commands.join(" "))).await;

    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for algorithm in Algorithm::ALL {
        let period = if algorithm.counts_in_progress() { "" } else { "unit: day, " };
        let key = stream_key(*algorithm).unwrap_or("user");
        let limit = format!("{{{period}requests_per_unit: 1, algorithm: {algorithm}, failure_mode: closed}}");
        rules += &format!("- {{key: of, value: {algorithm}, descriptors: [{{key: {key}, rate_limit: {limit}}}]}}\n");
    }
    let settings = [&*format!("REDIS_URL={}", redis.url()), "REDIS_AUTH=tollgate:secret", "CACHE_KEY_PREFIX=p:"];
    let tollgate = Tollgate::start(&rules, &settings);
    for algorithm in Algorithm::ALL {
        let key = stream_key(*algorithm).unwrap_or("user");
        let entries = [("of", algorithm.name()), (key, "ann")];
        assert!(tollgate.passes("shop", &entries).await, "{algorithm}");
        assert!(!tollgate.passes("shop", &entries).await, "{algorithm}");
    }
    for kind in ["refused", "counter"] {
        assert_eq!(tollgate.metric(&format!("tollgate_store_errors_total{{kind=\"{kind}\"}}")), 0.0, "{kind}");
    }
}
