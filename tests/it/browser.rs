//! The console in a real Chromium: every page, light and dark, with and without Redis; no requests to other hosts, no
//! errors, and no accessibility problems (axe). Needs Chromium: `make e2e`.
//!
//! `make pictures` replaces the pictures in docs/console, which show `tollgate demo`.

use crate::console::{RULES, TOKEN, ask, start};
use crate::demo::Demo;
use crate::support::chromium::Page;
use crate::support::redis::Redis;
use crate::support::tollgate::Tollgate;
use tempfile::TempDir;

/// The accessibility checker.
const AXE: &str = "target/tools/bin/axe.min.js";

/// The pages, each with a text that shows that it has loaded.
const PAGES: [(&str, &str); 8] = [
    ("now", "Instances that share the store"),
    ("rules", "per-user"),
    ("who", "user=ann"),
    ("try", "Its limits"),
    ("candidates", "user=u08"),
    ("what-if", "Most denied keys with the new limit"),
    ("steer", "In force"),
    ("redis", "Time of a decision in Redis"),
];

fn enter(page: &mut Page, service: &Tollgate) {
    page.go(&format!("http://127.0.0.1:{}/console", service.http_port));
    page.wait_for("document.querySelector('input')");
    page.wait_for("document.activeElement.tagName === 'INPUT'");
    page.type_text(TOKEN);
    page.press("Enter", 13);
    page.wait_for_text("Decisions per second");
}

fn show(page: &mut Page, name: &str, says: &str) {
    let hash = if name == "try" {
        "try?domain=shop&entries=%5B%7B%22key%22%3A%22user%22%2C%22value%22%3A%22ann%22%7D%5D"
    } else {
        name
    };
    page.evaluate(&format!("location.hash = '{hash}'"));
    page.wait_for_text(says);
}

fn must_be_accessible(page: &mut Page, what: &str) {
    let axe = std::fs::read_to_string(AXE).expect("scripts/test-tools.sh axe installs it");
    let run = "axe.run().then((found) => found.violations.map((it) => `${it.id}: ${it.nodes.map((n) => n.html)}`))";
    let found = page.evaluate(&format!("{axe};{run}"));
    assert_eq!(found, serde_json::json!([]), "{what}");
}

fn must_be_good(page: &Page, service: &Tollgate) {
    let own = format!("http://127.0.0.1:{}/", service.http_port);
    let elsewhere: Vec<_> =
        page.asked.iter().filter(|url| !url.starts_with(&own) && !url.starts_with("data:")).collect();
    assert_eq!(elsewhere, [&""; 0]);
    assert!(page.asked.iter().all(|url| !url.contains(&TOKEN.replace(' ', "%20"))), "{:?}", page.asked);
    assert_eq!(page.errors, [""; 0]);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn every_page_shows_what_it_should_to_everybody() {
    let redis = Redis::start();
    let (url, token) = (format!("REDIS_URL=redis://{}", redis.tcp_address()), format!("ADMIN_TOKEN={TOKEN}"));
    let candidates = stricter_rules();
    let candidates = format!("CANDIDATE_RULES={}", candidates.path().display());
    let own = ["CANDIDATE_SAMPLE=1", "WHAT_IF_REQUESTS=10000", "WHAT_IF_SAMPLE=1", &candidates];
    let service = Tollgate::start_from(&[&["RULES=config/rules", &url, "ADMIN_API=true", &token][..], &own].concat());
    service.must_log("comparing candidate rules with the rules in force");
    (0..8).for_each(|_| ask(&service, "user", "ann"));
    (1..=24).for_each(|user| (0..user % 8).for_each(|_| ask(&service, "user", &format!("u{user:02}"))));
    (0..4).for_each(|_| ask(&service, "user", "u08"));
    let sale = r#"{"effect": "scale", "share": "50%", "domain": "api", "who": "ann", "why": "a sale",
        "for": "2h", "id": "sale"}"#;
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(service.send("POST", "/adjustments", &headers, sale.as_bytes()).0, 201);
    for (scheme, size) in [("light", (1200, 800)), ("dark", (1200, 800)), ("light", (360, 740))] {
        let mut page = Page::open(size);
        page.prefer(scheme);
        enter(&mut page, &service);
        for (name, says) in PAGES {
            show(&mut page, name, says);
            must_be_accessible(&mut page, &format!("{name}, {scheme}, {size:?}"));
            let overflow = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth");
            assert_eq!(overflow, false, "{name} is wider than {size:?}");
        }
        must_be_good(&page, &service);
    }
}

/// The example rules, with a smaller number for users.
fn stricter_rules() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir("config/rules").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace("requests_per_unit: 5\n", "requests_per_unit: 3\n");
        std::fs::write(folder.path().join(path.file_name().unwrap()), text).unwrap();
    }
    folder
}

/// Draws the pictures of the documentation, if `TOLLGATE_SCREENSHOTS` says how many seconds of traffic they show.
#[test]
#[ignore = "needs Chromium and takes minutes: make pictures"]
fn pictures() {
    let Some(seconds) = std::env::var("TOLLGATE_SCREENSHOTS").ok().and_then(|seconds| seconds.parse().ok()) else {
        return;
    };
    let redis = Redis::start();
    let demo = Demo::start(&["--redis-url", &redis.tcp_address()]);
    // Before the browser starts: nothing reads its events meanwhile, and it would wait for that.
    std::thread::sleep(std::time::Duration::from_secs(seconds));
    let mut page = Page::open((1280, 900));
    page.prefer("light");
    page.go(&demo.link);
    page.wait_for_text("Decisions per second");
    let hot = "domain=shop&entries=%5B%7B%22key%22%3A%22user%22%2C%22value%22%3A%22mia%22%7D%5D";
    let sale = r#"{"effect": "scale", "share": "50%", "domain": "api", "who": "ann", "why": "a load test",
        "for": "2h", "id": "load-test"}"#;
    let shown = [
        ("now", "now".to_owned(), "Instances that share the store", ""),
        ("rules", "rules".to_owned(), "per-user", ""),
        ("who", "who?by=denied".to_owned(), "user=mia", ""),
        ("try", format!("try?{hot}"), "Its limits", ""),
        ("candidates", "candidates".to_owned(), "user=", ""),
        ("what-if", "what-if?domain=shop&rule=per-user".to_owned(), "Most denied keys with the new limit", ""),
        ("redis", "redis".to_owned(), "Time of a decision in Redis", ""),
        ("steer", "steer".to_owned(), "a load test", sale),
    ];
    for (name, hash, says, adjustment) in shown {
        if !adjustment.is_empty() {
            demo.adjust(adjustment);
        }
        page.evaluate(&format!("location.hash = '{hash}'"));
        page.wait_for_text(says);
        // Rates appear with the second answer.
        std::thread::sleep(std::time::Duration::from_secs(5));
        keep(&page.picture(), name);
    }
}

/// Saves a picture for the documentation.
fn keep(picture: &str, name: &str) {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
    std::fs::write(format!("docs/console/{name}.png"), bytes).unwrap();
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_wrong_token_shows_nothing_and_a_right_one_can_be_forgotten() {
    let service = start(&[]);
    let mut page = Page::open((1200, 800));
    page.go(&format!("http://127.0.0.1:{}/console", service.http_port));
    page.wait_for("document.activeElement?.tagName === 'INPUT'");
    page.type_text("not the token, but long");
    page.press("Enter", 13);
    page.wait_for_text("does not accept this token");
    assert!(!page.text().contains("per-user"));
    enter(&mut page, &service);
    page.evaluate("document.getElementById('leave').click()");
    page.wait_for_text("Enter the ADMIN_TOKEN of the service");
    assert_eq!(page.evaluate("sessionStorage.length"), 0);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_link_with_a_token_signs_in_and_the_address_does_not_keep_it() {
    let service = start(&[]);
    let mut page = Page::open((1200, 800));
    let token = TOKEN.replace(' ', "%20");
    page.go(&format!("http://127.0.0.1:{}/console#token={token}", service.http_port));
    page.wait_for_text("Decisions per second");
    let place = page.evaluate("location.href + document.referrer");
    assert_eq!(place, format!("http://127.0.0.1:{}/console", service.http_port));
    must_be_good(&page, &service);
    page.evaluate("location.hash = 'token=another-wrong-token'");
    page.wait_for_text("does not accept this token");
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn the_banner_names_what_is_open_while_redis_is_away() {
    let mut redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    redis.kill();
    page.wait_for_text("The store is down");
    page.wait_for_text("Not limited, because of failure_mode open: shop/per-user, shop/trial.");
    must_be_accessible(&mut page, "the banner");
    ask(&service, "user", "ann");
    redis.restart();
    page.wait_for("!document.body.innerText.includes('The store is down')");
    show(&mut page, "redis", "Undecided requests in the last fifteen minutes, by reason");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn replicas_are_listed_and_a_banner_tells_that_their_rules_differ() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let (service, other) = (start(&[&url]), start(&[&url]));
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    page.wait_for_text("Instances that share the store: 2");
    other.change_rules(&RULES.replace("requests_per_unit: 5", "requests_per_unit: 6"));
    page.wait_for_text("differs from most");
    page.wait_for_text("Instances of one release have had different rules");
    must_be_accessible(&mut page, "replicas that differ");
    other.change_rules(RULES);
    page.wait_for("!document.body.innerText.includes('Instances of one release have had different rules')");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn what_is_tried_is_explained_and_sent_by_keys_alone() {
    let service = start(&[]);
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "try", "Its limits");
    assert!(page.text().contains("2 of 2"), "nothing is counted yet: {}", page.text());
    page.evaluate("[...document.querySelectorAll('button')].find((b) => b.textContent.startsWith('Send')).focus()");
    page.press("Enter", 13);
    page.wait_for_text("10 requests sent and counted");
    let text = page.text();
    assert_eq!((text.matches("passed").count(), text.matches("denied").count()), (2, 8), "{text}");
    // A value with markup is shown as text.
    let entries = "encodeURIComponent(JSON.stringify([{key: 'user', value: '<img/src=x/onerror=alert(1)> a=b'}]))";
    page.evaluate(&format!("location.hash = 'try?domain=shop&entries=' + {entries}"));
    page.wait_for_text("user=<img/src=x/onerror=alert(1)> a=b matches");
    assert_eq!(page.evaluate("document.querySelectorAll('main img').length"), 0);
}

/// Presses the button with this label.
fn press(page: &mut Page, says: &str) {
    let button =
        format!("[...document.querySelectorAll('main button')].find((it) => it.textContent.startsWith('{says}'))");
    page.wait_for(&button);
    page.evaluate(&format!("{button}.click()"));
}

/// Writes into the field that is called so.
fn fill(page: &mut Page, field: &str, text: &str) {
    let label = format!("[...document.querySelectorAll('label')].find((it) => it.textContent.startsWith('{field}'))");
    page.wait_for(&label);
    page.evaluate(&format!("(() => {{ const it = {label}.querySelector('input'); it.focus(); it.select(); }})()"));
    page.type_text(text);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn who_is_limited_gets_room_again_and_another_number_for_a_while() {
    let service = start(&[]);
    (0..5).for_each(|_| ask(&service, "user", "ann"));
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "who?by=denied", "user=ann");
    page.wait_for_text("0 of 2");
    press(&mut page, "Reset");
    press(&mut page, "Really?");
    page.wait_for_text("Reset: per-user, 2 remaining");
    page.wait_for_text("2 of 2");

    show(
        &mut page,
        "steer?domain=shop&entries=%5B%7B%22key%22%3A%22user%22%2C%22value%22%3A%22ann%22%7D%5D",
        "No adjustment is in force",
    );
    fill(&mut page, "Number", "100");
    fill(&mut page, "Author", "bob");
    fill(&mut page, "Reason", "she imports her orders");
    press(&mut page, "Create");
    page.wait_for_text("bob: she imports her orders");
    page.wait_for_text("Adjustments in force: 1");
    must_be_accessible(&mut page, "an adjustment");
    show(&mut page, "who?by=hits", "100 of 100");
    show(&mut page, "steer", "bob: she imports her orders");
    fill(&mut page, "Reason", "they are imported");
    press(&mut page, "End");
    page.wait_for_text("Ended ");
    page.wait_for_text("No adjustment is in force");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn who_may_only_read_is_offered_no_change() {
    let service = start(&["ADMIN_READ_TOKEN=another token of some length"]);
    ask(&service, "user", "ann");
    let mut page = Page::open((1200, 800));
    page.go(&format!("http://127.0.0.1:{}/console", service.http_port));
    page.wait_for("document.activeElement?.tagName === 'INPUT'");
    page.type_text("another token of some length");
    page.press("Enter", 13);
    page.wait_for_text("read-only");
    show(&mut page, "who", "user=ann");
    assert_eq!(page.evaluate("document.querySelectorAll('main button').length"), 0);
    show(&mut page, "steer", "No adjustment is in force");
    page.wait_for("[...document.querySelectorAll('main button')].every((it) => it.disabled)");
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn values_that_are_hidden_are_nowhere_in_the_page() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("next.yaml"), RULES.replace("unit: 2", "unit: 1")).unwrap();
    let named = format!("CANDIDATE_RULES={}", folder.path().display());
    let kept = ["CANDIDATE_SAMPLE=1", "WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1", "TOP_KEYS_VALUES=hidden"];
    let service = start(&[&kept[..], &[&named]].concat());
    service.must_log("comparing candidate rules with the rules in force");
    (0..3).for_each(|_| ask(&service, "user", "zaphod-beeblebrox"));
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    let shown =
        |page: &mut Page| page.evaluate("document.documentElement.outerHTML").as_str().unwrap().contains("beeblebrox");
    show(&mut page, "who", "per-user");
    assert_eq!(page.evaluate("document.querySelectorAll('main button').length"), 0, "a hidden key cannot be reset");
    assert!(!shown(&mut page));
    show(&mut page, "candidates", "Share of keys");
    page.wait_for("[...document.querySelectorAll('code')].some((it) => it.textContent === 'user')");
    assert!(!shown(&mut page));
    show(&mut page, "what-if", "Most denied keys with the new limit");
    page.wait_for("[...document.querySelectorAll('code')].some((it) => it.textContent === 'user')");
    assert!(!shown(&mut page));
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn candidates_show_whom_they_would_deny_and_how_they_are_promoted() {
    let folder = tempfile::tempdir().unwrap();
    let next = folder.path().join("next.yaml");
    std::fs::write(&next, RULES.replace("requests_per_unit: 2", "requests_per_unit: 1")).unwrap();
    let named = format!("CANDIDATE_RULES={}", next.display());
    let service = start(&[&named, "CANDIDATE_SAMPLE=1"]);
    service.must_log("comparing candidate rules with the rules in force");
    (0..2).for_each(|_| ask(&service, "user", "<b>ann</b>"));
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "candidates", "user=<b>ann</b>");
    page.wait_for_text("0 added, 0 removed, 1 changed");
    let (_, report) = service.admin("GET", "/candidates", TOKEN);
    let command = format!("tollgate promote --candidate-rules {} --expect", next.display());
    page.wait_for_text(&format!("{command} {}", report["version"].as_str().unwrap()));
    page.evaluate("document.querySelector('[aria-label=\"Copy the command\"]').focus()");
    page.press("Enter", 13);
    page.wait_for("/^(Copied|Selected)/.test(document.activeElement.textContent)");
    // Invalid candidates are reported, and the previous ones stay in use.
    std::fs::write(&next, "domain: [").unwrap();
    page.wait_for_text("The current files are invalid");
    page.wait_for_text("user=<b>ann</b>");
    must_be_accessible(&mut page, "refused candidates");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_number_is_tried_by_keys_alone_and_the_right_one_found() {
    let service = start(&["WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    (0..5).for_each(|_| ask(&service, "user", "<i>ann</i>"));
    ask(&service, "user", "bob");
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "what-if?domain=shop&rule=per-user", "2 per day denies 50 % of the requests and 1 of 2 keys");
    page.wait_for_text("user=<i>ann</i>");
    fill(&mut page, "Number", "4");
    page.wait_for_text("4 per day denies 16.7 % of the requests and 1 of 2 keys; now 50 % and 1 of 2 keys.");
    page.wait_for_text("requests_per_unit: 4");
    must_be_accessible(&mut page, "a number that is tried");
    page.evaluate("document.querySelector('input[type=range]').focus()");
    page.press("Home", 36);
    page.wait_for_text("0 per day denies 100 % of the requests");
    page.press("End", 35);
    page.wait_for_text("10 per day denies 0 % of the requests");
    page.wait_for_text("It would deny no request");
    fill(&mut page, "Share, in percent", "0");
    page.press("Enter", 13);
    page.wait_for_text("5 per day is the smallest number that denies at most 0 % of the keys");
    press(&mut page, "Use 5");
    page.wait_for_text("5 per day denies 0 % of the requests");
    page.evaluate(
        "(() => { const it = document.querySelectorAll('main select')[2]; it.value = 'token_bucket'; \
         it.dispatchEvent(new Event('change')); })()",
    );
    page.wait_for_text("algorithm: token_bucket");
    fill(&mut page, "Number", "-7");
    page.wait_for_text("write a whole number");
    page.errors.retain(|error| !error.contains("400 (Bad Request)"));
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn where_candidates_and_requests_are_not_kept_the_pages_say_how() {
    let service = start(&[]);
    let mut page = Page::open((360, 740));
    enter(&mut page, &service);
    for (name, says) in [("candidates", "CANDIDATE_RULES=next"), ("what-if", "WHAT_IF_REQUESTS=200000")] {
        show(&mut page, name, says);
        must_be_accessible(&mut page, name);
    }
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn entries_are_completed_from_the_rules_and_asked_from_elsewhere() {
    let service = start(&[]);
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "try?", "Try a request");
    fill(&mut page, "Domain", "shop");
    press(&mut page, "user=");
    page.wait_for("document.activeElement.tagName === 'TEXTAREA'");
    page.type_text("ann");
    press(&mut page, "Explain");
    page.wait_for_text("2 of 2");
    let request = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
    page.wait_for_text(&format!("curl -s http://127.0.0.1:{}/json -d '{request}'", service.http_port));
    let service_name = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let grpcurl = format!("grpcurl -plaintext -d '{request}' 127.0.0.1:{} {service_name}", service.grpc_port);
    page.wait_for_text(&grpcurl);
    page.wait_for_text("- actions:\n  - request_headers: {header_name: x-user, descriptor_key: user}");
    must_be_accessible(&mut page, "what is copied");
    // Behind a line that is finished the next level is offered: here there is none.
    page.wait_for("document.querySelectorAll('.actions button').length === 0");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_hundred_thousand_rules_are_shown_a_page_at_a_time() {
    let line = |number: u32| {
        format!("- {{key: user, value: u{number:06}, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n")
    };
    let rules: String = (1..=100_000).map(line).collect();
    let token = format!("ADMIN_TOKEN={TOKEN}");
    let service = Tollgate::start(&format!("domain: shop\ndescriptors:\n{rules}"), &["ADMIN_API=true", &token]);
    let mut page = Page::open((1200, 800));
    enter(&mut page, &service);
    show(&mut page, "rules", "100,000 limits");
    assert_eq!(page.evaluate("document.querySelectorAll('tbody tr').length"), 100);
    page.press("/", 191);
    page.wait_for("document.activeElement.type === 'search'");
    page.type_text("u099999");
    page.wait_for_text("99999 per day");
    page.wait_for("document.querySelectorAll('tbody tr').length === 1");
    show(&mut page, "try?", "Try a request");
    fill(&mut page, "Domain", "shop");
    page.wait_for_text("and more");
    assert_eq!(page.evaluate("document.querySelectorAll('.actions button').length"), 12);
    must_be_good(&page, &service);
}
