//! The console in a real Chromium: every page, wide and narrow, light and dark, with and without Redis; no requests to
//! other hosts, no errors, and no accessibility problems (axe). Needs Chromium: `make e2e`.
//!
//! `make pictures` replaces the pictures in docs/console, which show `tollgate demo`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::console::{RULES, TOKEN, ask, start};
use crate::demo::Demo;
use crate::support::chromium::Page;
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, send};

/// The accessibility checker.
const AXE: &str = "target/tools/bin/axe.min.js";

const WIDE: (u32, u32) = (1440, 900);
const NARROW: (u32, u32) = (390, 844);

/// Addresses of the pages and panels, each with a text that shows that it has loaded.
const PAGES: [(&str, &str); 11] = [
    ("overview", "Decisions a second"),
    ("limits", "per-user"),
    ("limits?in=shop&limit=per-user", "What it matches"),
    ("keys?by=denied", "user=ann"),
    ("keys?by=denied&in=shop&limit=per-user&key=user%3Dann", "One more request now"),
    ("keys?try=1&in=shop&key=user%3Dann", "Its limits"),
    ("tune?in=shop&limit=per-user", "Denied most with this number"),
    ("tune?view=rules", "A rules file"),
    ("tune?view=candidates", "user=u08"),
    // The banner of each page says why: only this one has the history.
    ("adjust", "▸ began"),
    ("health", "Time of a decision in Redis"),
];

fn sign_in(page: &mut Page, service: &Tollgate, token: &str) {
    page.go(&format!("http://127.0.0.1:{}/console", service.http_port));
    page.wait_for("document.activeElement?.tagName === 'INPUT'");
    page.type_text(token);
    page.press("Enter", 13);
    page.wait_for_text("Decisions a second");
}

/// Opens the console in a window of this size.
fn open(service: &Tollgate, size: (u32, u32)) -> Page {
    let mut page = Page::open(size);
    sign_in(&mut page, service, TOKEN);
    page
}

fn show(page: &mut Page, address: &str, says: &str) {
    page.evaluate(&format!("location.hash = '{address}'"));
    page.wait_for_text(says);
}

fn must_be_accessible(page: &mut Page, what: &str) {
    let axe = std::fs::read_to_string(AXE).expect("scripts/test-tools.sh axe installs it");
    let run = "axe.run().then((found) => found.violations.map((it) => `${it.id}: ${it.nodes.map((n) => n.html)}`))";
    let found = page.evaluate(&format!("{axe};{run}"));
    assert_eq!(found, json!([]), "{what}");
}

fn must_be_good(page: &Page, service: &Tollgate) {
    let own = format!("http://127.0.0.1:{}/", service.http_port);
    let elsewhere: Vec<_> =
        page.asked.iter().filter(|url| !url.starts_with(&own) && !url.starts_with("data:")).collect();
    assert_eq!(elsewhere, [&""; 0]);
    assert!(page.asked.iter().all(|url| !url.contains(&TOKEN.replace(' ', "%20"))), "{:?}", page.asked);
    assert_eq!(page.errors, [""; 0]);
}

/// Checks that no value is missing from the text of a page, and that the page is not wider than its window.
fn must_be_whole(page: &mut Page, what: &str) {
    let text = page.text();
    let mut words = text.split(|char: char| !char.is_alphanumeric());
    assert!(!words.any(|word| ["null", "undefined", "NaN"].contains(&word)), "{what}: {text}");
    let overflow = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth");
    assert_eq!(overflow, false, "{what} is wider than its window");
}

/// Returns an expression for the first element of these with this text at its start.
fn with_text(elements: &str, says: &str) -> String {
    let says = json!(says);
    format!("[...document.querySelectorAll('{elements}')].find((it) => it.textContent.trim().startsWith({says}))")
}

/// Presses the button, or follows the link, with this text.
fn press(page: &mut Page, says: &str) {
    let elements = if page.evaluate("Boolean(document.querySelector('dialog'))") == true {
        "dialog button, dialog [role=option]"
    } else {
        "main button, main a, #panel button, #panel a, #conditions button, header a"
    };
    let element = with_text(elements, says);
    page.wait_for(&element);
    page.evaluate(&format!("{element}.click()"));
}

/// Writes into the field with this label.
fn fill(page: &mut Page, field: &str, text: &str) {
    let label = with_text("label", field);
    page.wait_for(&label);
    let input = format!("document.getElementById({label}.htmlFor)");
    page.evaluate(&format!("(() => {{ const it = {input}; it.focus(); it.select(); }})()"));
    page.type_text(text);
}

/// Types into the search, and waits for a result with this text to be the first.
fn search(page: &mut Page, text: &str, first: &str) {
    page.evaluate("document.activeElement.blur()");
    page.press("/", 191);
    page.wait_for("document.activeElement?.getAttribute('role') === 'combobox'");
    page.type_text(text);
    page.wait_for(&format!("document.querySelector('[aria-selected=true]')?.textContent.startsWith({})", json!(first)));
}

fn adjust(service: &Tollgate, adjustment: &str) {
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let (status, said) = service.send("POST", "/adjustments", &headers, adjustment.as_bytes());
    assert_eq!(status, 201, "{said}");
}

/// Requests to a service until it is dropped, some of which are denied.
struct Traffic {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Traffic {
    fn to(service: &Tollgate) -> Traffic {
        let (ends, port) = (Arc::new(AtomicBool::new(false)), service.http_port);
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let entry = json!({ "key": "user", "value": format!("u{:02}", number % 30 % (1 + number % 7)) });
                let request = json!({ "domain": "shop", "descriptors": [{ "entries": [entry] }] });
                send(port, "POST /json", &[], request.to_string().as_bytes());
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Traffic { ends, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
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
    adjust(
        &service,
        r#"{"effect": "scale", "share": "50%", "domain": "api", "who": "ann", "why": "a sale", "for": "2h"}"#,
    );
    for (scheme, size) in [("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)] {
        let mut page = Page::open(size);
        page.prefer(scheme);
        sign_in(&mut page, &service, TOKEN);
        for (address, says) in PAGES {
            show(&mut page, address, says);
            let what = format!("{address}, {scheme}, {size:?}");
            must_be_accessible(&mut page, &what);
            must_be_whole(&mut page, &what);
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
    std::thread::sleep(Duration::from_secs(seconds));
    let mut page = Page::open((1280, 800));
    page.prefer("light");
    page.go(&demo.link);
    page.wait_for_text("Decisions a second");
    // The start of Chromium slows the demo for some seconds, which would be the latency that is shown.
    std::thread::sleep(Duration::from_secs(20));
    let load_test = r#"{"effect": "scale", "share": "50%", "domain": "api", "who": "ann", "why": "a load test",
        "for": "2h", "id": "load-test"}"#;
    let shown = [
        ("overview", "overview", "Denied a second, by limit", ""),
        ("limits", "limits?sort=denials&in=shop&limit=per-user", "What it matches", ""),
        ("keys", "keys?by=denied&in=shop&limit=per-user&key=user%3Dmia", "One more request now", ""),
        ("tune", "tune?in=shop&limit=per-user&number=20", "Denied most with this number", ""),
        ("health", "health", "Time of a decision in Redis", ""),
        ("adjust", "adjust", "a load test", load_test),
    ];
    for (name, address, says, adjustment) in shown {
        if !adjustment.is_empty() {
            demo.adjust(adjustment);
        }
        show(&mut page, address, says);
        if name == "tune" {
            press(&mut page, "Propose a number");
            page.wait_for_text("is the smallest number");
        }
        // The first rates cover a few seconds.
        std::thread::sleep(Duration::from_secs(5));
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
fn a_table_with_long_names_fits_beside_an_open_panel() {
    const RULES: &str = "
domain: shop
descriptors:
  - key: failed
    value: login
    descriptors:
      - key: remote_address
        rate_limit: {name: failed-logins, period: 1h, requests_per_unit: 1, penalty: {after: 3, within: 1h, ban: 1h}}
  - key: plan
    rate_limit: {name: remote_address=203.0.113.9, unit: day, requests_per_unit: 1000}
";
    let token = format!("ADMIN_TOKEN={TOKEN}");
    let service = Tollgate::start(RULES, &["ADMIN_API=true", &token]);
    let ask = |entries: serde_json::Value, hits: u64| {
        let request = json!({ "domain": "shop", "descriptors": [{ "entries": entries }], "hitsAddend": hits });
        service.post("/json", request.to_string().as_bytes())
    };
    let failed = json!([{ "key": "failed", "value": "login" }, { "key": "remote_address", "value": "198.51.100.23" }]);
    (0..9).for_each(|_| drop(ask(failed.clone(), 1)));
    let free = json!([{ "key": "plan", "value": "free" }]);
    assert_eq!([1000, 1].map(|hits| ask(free.clone(), hits).0), [200, 429]);
    let mut page = open(&service, (1280, 800));
    show(&mut page, "keys?by=denied", "banned");
    press(&mut page, "failed=login");
    page.wait_for_text("One more request now");
    let tables = "[...document.querySelectorAll('main .table')]";
    assert_eq!(page.evaluate(&format!("{tables}.length")), 1);
    assert_eq!(page.evaluate(&format!("{tables}.map((it) => it.scrollWidth - it.clientWidth)")), json!([0]));
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_wrong_token_shows_nothing_and_a_right_one_can_be_forgotten() {
    let service = start(&[]);
    let mut page = Page::open(WIDE);
    page.go(&format!("http://127.0.0.1:{}/console", service.http_port));
    page.wait_for("document.activeElement?.tagName === 'INPUT'");
    page.type_text("not the token, but long");
    page.press("Enter", 13);
    page.wait_for_text("does not accept this token");
    assert!(!page.text().contains("per-user"));
    sign_in(&mut page, &service, TOKEN);
    page.evaluate("document.getElementById('leave').click()");
    page.wait_for_text("Enter the ADMIN_TOKEN of the service");
    assert_eq!(page.evaluate("sessionStorage.length"), 0);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_link_with_a_token_signs_in_and_the_address_does_not_keep_it() {
    let service = start(&[]);
    let mut page = Page::open(WIDE);
    let token = TOKEN.replace(' ', "%20");
    page.go(&format!("http://127.0.0.1:{}/console#token={token}", service.http_port));
    page.wait_for_text("Decisions a second");
    let place = page.evaluate("location.href + document.referrer");
    assert_eq!(place, format!("http://127.0.0.1:{}/console", service.http_port));
    must_be_good(&page, &service);
    page.evaluate("location.hash = 'token=another-wrong-token'");
    page.wait_for_text("does not accept this token");
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn the_focus_stays_for_ten_seconds_on_every_page_while_its_data_changes() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url()), "WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    adjust(
        &service,
        r#"{"effect": "scale", "share": "200%", "domain": "shop", "who": "ann", "why": "a sale", "for": "2h"}"#,
    );
    let _traffic = Traffic::to(&service);
    let mut page = open(&service, WIDE);
    let held = [
        ("overview", "#main a.row"),
        ("overview", "#main .plot"),
        ("limits", "#main tbody tr:last-child a.row"),
        ("keys?by=hits", "#main tbody tr:nth-child(5) a.row"),
        ("keys?by=hits&in=shop&limit=per-user&key=user%3Du00", "#panel .actions button"),
        ("tune?in=shop&limit=per-user", "#main input[type=range]"),
        ("adjust", "#main td button"),
        ("health", "#main input[type=search]"),
    ];
    for (address, element) in held {
        page.evaluate(&format!("location.hash = '{address}'"));
        page.wait_for(&format!("document.querySelector('{element}')"));
        page.evaluate(&format!("(() => {{ window.held = document.querySelector('{element}'); held.focus(); }})()"));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            assert_eq!(page.evaluate("document.activeElement === held"), true, "{address}: {element}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    must_be_good(&page, &service);
}

/// What a person does, counted: an action is a press, or a text that ends with Enter.
struct Task<'p> {
    page: &'p mut Page,
    actions: u32,
}

impl<'p> Task<'p> {
    /// Begins at the overview.
    fn from_overview(page: &'p mut Page) -> Task<'p> {
        page.evaluate("location.hash = 'adjust'");
        show(page, "overview", "Top keys");
        page.wait_for_text("user=ann");
        Task { page, actions: 0 }
    }

    fn press(&mut self, says: &str) -> &mut Self {
        press(self.page, says);
        self.actions += 1;
        self
    }

    fn search(&mut self, text: &str, first: &str) -> &mut Self {
        search(self.page, text, first);
        self.page.press("Enter", 13);
        self.actions += 1;
        self
    }

    /// Types into the field that has the focus, and presses Enter.
    fn type_text(&mut self, text: &str) -> &mut Self {
        self.page.wait_for("document.activeElement?.tagName === 'INPUT'");
        self.page.type_text(text);
        self.page.press("Enter", 13);
        self.actions += 1;
        self
    }

    fn must_show(&mut self, says: &str) -> &mut Self {
        self.page.wait_for_text(says);
        assert!(self.actions <= 3, "{} actions until {says}", self.actions);
        self
    }
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn each_of_the_five_tasks_takes_three_actions_at_most() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    (0..8).for_each(|_| ask(&service, "user", "ann"));
    let mut page = open(&service, WIDE);
    // The browser remembers the name of who has adjusted before.
    page.evaluate("localStorage.setItem('tollgate-who', 'bob')");

    // Who is limited, and why?
    Task::from_overview(&mut page).press("user=ann").must_show("To tell a customer").must_show("0 of 2");
    // Another number.
    Task::from_overview(&mut page).press("user=ann").press("Another number");
    fill(&mut page, "Number", "100");
    fill(&mut page, "Why", "she imports her orders");
    page.press("Enter", 13);
    page.wait_for_text("In force until");
    page.wait_for_text("at 100 instead of the file's number");
    // Let one pass for an hour.
    Task::from_overview(&mut page).press("user=ann").press("Let pass").type_text("an incident").must_show("let pass");
    // Halve everything: what is wide asks once more.
    let mut task = Task::from_overview(&mut page);
    task.search("scale 50% everything", "Scale everything to 50%").type_text("a load test");
    task.page.wait_for_text("Go back");
    assert!(!task.page.text().contains("all limits at 50 % until"), "one key has no effect");
    task.press("Yes, scale").must_show("all limits at 50 % until");
    // Is Redis slow?
    Task::from_overview(&mut page).press("Health").must_show("Time of a decision in Redis");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn the_search_finds_pages_limits_keys_domains_and_verbs() {
    let service = start(&[]);
    (0..3).for_each(|_| ask(&service, "user", "ann"));
    let mut page = open(&service, WIDE);
    for (text, first, says) in [
        ("heal", "Health", "Rejected rules"),
        ("logins", "shop/logins", "What it matches"),
        ("user=ann", "shop user=ann", "One more request now"),
        ("shop", "shop", "3 limits"),
    ] {
        search(&mut page, text, first);
        must_be_accessible(&mut page, "the search");
        page.press("Enter", 13);
        page.wait_for("!document.querySelector('dialog')");
        page.wait_for_text(says);
    }
    search(&mut page, "block user=eve", "Block shop user=eve");
    page.press("Enter", 13);
    page.wait_for_text("Deny all requests of a key or limit");
    must_be_accessible(&mut page, "a sheet");
    page.press("Escape", 27);
    page.wait_for("!document.querySelector('dialog')");
    assert_eq!(service.admin("GET", "/adjustments", TOKEN).1, json!([]), "nothing takes effect by one key");

    // Many keys at once, in some hours of the day: it asks again.
    search(&mut page, "block shop user~acme_* + user=eve", "Block shop user~acme_* + user=eve");
    page.press("Enter", 13);
    fill(&mut page, "Daily hours", "00:00-23:59");
    fill(&mut page, "Time zone", "Africa/Abidjan");
    fill(&mut page, "Who", "bob");
    fill(&mut page, "Why", "abuse");
    must_be_accessible(&mut page, "a sheet with hours");
    press(&mut page, "Block");
    press(&mut page, "Yes, block: shop user~acme_* + user=eve for 30m");
    page.wait_for_text("shop user~acme_* + user=eve blocked, daily 00:00-23:59 Africa/Abidjan until");
    let (_, list) = service.admin("GET", "/adjustments", TOKEN);
    let [like, exactly] = [json!({"key": "user", "pattern": "acme_*"}), json!({"key": "user", "value": "eve"})];
    assert_eq!(
        (&list[0]["descriptors"], &list[0]["time_zone"]),
        (&json!([[like], [exactly]]), &json!("Africa/Abidjan"))
    );
    page.press("?", 191);
    page.wait_for_text("Read a chart, one step at a time");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn the_banner_names_what_is_open_within_two_seconds_after_redis_has_stopped() {
    let mut redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut page = open(&service, WIDE);
    ask(&service, "user", "ann");
    redis.kill();
    let begin = Instant::now();
    page.wait_for_text("The store is down");
    page.wait_for_text("Open, so not limited: shop/per-user, shop/trial.");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    must_be_accessible(&mut page, "the banner");
    ask(&service, "user", "ann");
    // A brake holds at this instance meanwhile, and is published later if that is wanted.
    show(&mut page, "limits?in=shop&limit=per-user", "Another number");
    press(&mut page, "Shadow");
    page.wait_for_text("this holds at the instance that answers, alone");
    must_be_accessible(&mut page, "the sheet while the store is down");
    fill(&mut page, "Who", "bob");
    fill(&mut page, "Why", "checkout fails");
    page.evaluate("document.querySelector('dialog input[type=checkbox]').click()");
    press(&mut page, "Shadow");
    page.wait_for_text("alone, published to all when the store is back");
    redis.restart();
    page.wait_for("!document.body.innerText.includes('The store is down')");
    page.wait_for("!document.body.innerText.includes('published to all when')");
    page.wait_for_text("denies nothing (shadow) until");
    show(&mut page, "health", "Undecided in the last 15 minutes, by reason");
    page.errors.retain(|error| !error.contains("503"));
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn two_instances_show_one_list_and_a_banner_says_that_their_rules_differ() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let (service, other) = (start(&[&url]), start(&[&url]));
    (0..3).for_each(|_| ask(&service, "user", "ann"));
    (0..3).for_each(|_| ask(&other, "user", "bob"));
    let mut page = open(&service, WIDE);
    page.wait_for_text("2 of 2 instances");
    show(&mut page, "keys?by=denied", "user=ann");
    page.wait_for_text("user=bob");
    page.evaluate("location.hash = 'health'");
    page.wait_for("document.querySelectorAll('#main tbody')[0]?.rows.length === 2");
    other.change_rules(&RULES.replace("requests_per_unit: 5", "requests_per_unit: 6"));
    page.wait_for_text("differs from most");
    page.wait_for_text("Instances of one release have had different rules");
    must_be_accessible(&mut page, "instances that differ");
    other.change_rules(RULES);
    page.wait_for("!document.body.innerText.includes('Instances of one release have had different rules')");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn rejected_rules_are_shown_with_file_and_line() {
    let service = start(&[]);
    let mut page = open(&service, WIDE);
    service.change_rules(&RULES.replace("unit: minute", "unit: minuets"));
    page.wait_for_text("Changed rules are rejected");
    page.wait_for_text("did you mean");
    show(&mut page, "health", "The files are rejected");
    page.wait_for("document.querySelector('#main pre')?.textContent.includes('rules.yaml:')");
    must_be_accessible(&mut page, "rejected rules");
    service.change_rules(RULES);
    page.wait_for_text("The rules of the files are in force");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_request_is_explained_and_sent_by_keys_alone() {
    let service = start(&[]);
    let mut page = open(&service, WIDE);
    show(&mut page, "keys?try=1&in=shop&key=user%3Dann", "Its limits");
    assert!(page.text().contains("2 of 2"), "nothing is counted yet: {}", page.text());
    page.evaluate(&format!("{}.focus()", with_text("#panel button", "Send")));
    page.press("Enter", 13);
    page.wait_for_text("10 requests sent and counted");
    let text = page.text();
    assert_eq!((text.matches("✓ allowed").count(), text.matches("✕ denied").count()), (2, 8), "{text}");
    // An answer goes when the request changes.
    fill(&mut page, "Entries", "user=bob");
    page.wait_for("!document.body.innerText.includes('10 requests sent and counted')");
    // A value with markup is shown as text.
    let entries = "encodeURIComponent('user=<img/src=x/onerror=alert(1)> a=b')";
    page.evaluate(&format!("location.hash = 'keys?try=1&in=shop&key=' + {entries}"));
    page.wait_for_text("user=<img/src=x/onerror=alert(1)> a=b matches");
    assert_eq!(page.evaluate("document.querySelectorAll('main img, aside img').length"), 0);
    // The answer 429 is an error to the browser.
    page.errors.retain(|error| !error.contains("429"));
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn who_is_limited_gets_room_again_and_another_number_for_a_while() {
    let service = start(&[]);
    (0..5).for_each(|_| ask(&service, "user", "ann"));
    let mut page = open(&service, WIDE);
    show(&mut page, "keys?by=denied&in=shop&limit=per-user&key=user%3Dann", "One more request now");
    page.wait_for_text("0 of 2");
    press(&mut page, "Reset");
    page.wait_for("document.activeElement?.textContent === 'Go back'");
    must_be_accessible(&mut page, "what asks once more");
    press(&mut page, "Yes, reset it");
    page.wait_for_text("Reset: per-user, 2 remaining");
    page.wait_for_text("2 of 2");

    press(&mut page, "Another number");
    fill(&mut page, "Number", "100");
    fill(&mut page, "Who", "bob");
    fill(&mut page, "Why", "she imports her orders");
    page.press("Enter", 13);
    page.wait_for_text("at 100 instead of the file's number until");
    page.wait_for_text("100 of 100");
    show(&mut page, "adjust", "bob: “she imports her orders”");
    must_be_accessible(&mut page, "an adjustment");
    // Ending it asks for its own reason.
    press(&mut page, "End");
    fill(&mut page, "Why", "");
    page.press("Enter", 13);
    page.wait_for_text("Say why");
    fill(&mut page, "Why", "they are imported");
    must_be_accessible(&mut page, "the end of an adjustment");
    page.press("Enter", 13);
    page.wait_for_text("No adjustment is in force");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn an_adjusted_limit_shows_both_numbers() {
    let service = start(&[]);
    adjust(
        &service,
        r#"{"effect": "scale", "share": "300%", "domain": "shop", "rule": "per-user", "who": "ann", "why": "a sale",
        "for": "2h"}"#,
    );
    let mut page = open(&service, WIDE);
    show(&mut page, "limits?filter=adjusted", "1 limit");
    page.wait_for_text("6 per day");
    assert_eq!(page.evaluate("document.querySelector('#main td s').textContent"), "in the file: 2 per day");
    page.wait_for_text("◆ scale 300 %");
    page.wait_for_text("shop/per-user at 300 %");
    // Shadow mode is told by a shape and a word.
    show(&mut page, "limits?filter=shadow", "◌ shadow");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn who_may_only_read_is_offered_no_change() {
    const READER: &str = "another token of some length";
    let service = start(&[&format!("ADMIN_READ_TOKEN={READER}"), "WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    (0..3).for_each(|_| ask(&service, "user", "ann"));
    let mut page = Page::open(WIDE);
    sign_in(&mut page, &service, READER);
    page.wait_for_text("read-only");
    let changes = "[...document.querySelectorAll('main button, #panel button')].map((it) => it.textContent)\
                   .filter((it) => /^(let|block|another|scale|shadow|enforce|reset|end|send|try)\\b/i.test(it))";
    for (address, says) in [
        ("overview", "user=ann"),
        ("limits?in=shop&limit=per-user", "What it matches"),
        ("keys?in=shop&limit=per-user&key=user%3Dann", "One more request now"),
        ("keys?try=1&in=shop&key=user%3Dann", "Its limits"),
        ("tune?in=shop&limit=per-user&number=9", "requests_per_unit: 9"),
        ("adjust", "This token may only read"),
        ("health", "Rejected rules"),
    ] {
        show(&mut page, address, says);
        assert_eq!(page.evaluate(changes), json!([]), "{address}");
    }
    page.press("/", 191);
    page.wait_for("document.querySelector('dialog input')");
    page.type_text("block everything");
    page.wait_for_text("Nothing found");
    must_be_good(&page, &service);
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
    let mut page = open(&service, WIDE);
    let shown =
        |page: &mut Page| page.evaluate("document.documentElement.outerHTML").as_str().unwrap().contains("beeblebrox");
    let has_key = "[...document.querySelectorAll('code')].some((it) => it.textContent === 'user')";
    for (address, says) in [
        ("overview", "per-user"),
        ("limits?in=shop&limit=per-user", "What it matches"),
        ("keys?by=denied", "per-user"),
        ("keys?by=denied&in=shop&limit=per-user&key=user", "TOP_KEYS_VALUES hides the values"),
        ("tune?in=shop&limit=per-user&number=1", "Denied most with this number"),
        ("tune?view=candidates", "Share of keys"),
    ] {
        show(&mut page, address, says);
        page.wait_for(has_key);
        assert!(!shown(&mut page), "{address}");
    }
    show(&mut page, "keys?by=denied&in=shop&limit=per-user&key=user", "TOP_KEYS_VALUES hides the values");
    assert_eq!(page.evaluate("document.querySelectorAll('#panel .actions button').length"), 0, "it cannot be reset");
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
    let mut page = open(&service, WIDE);
    show(&mut page, "tune?view=candidates", "user=<b>ann</b>");
    page.wait_for_text("0 added, 0 removed, 1 changed");
    let (_, report) = service.admin("GET", "/candidates", TOKEN);
    let command = format!("tollgate promote --candidate-rules {} --expect", next.display());
    page.wait_for_text(&format!("{command} {}", report["version"].as_str().unwrap()));
    page.evaluate("document.querySelector('[aria-label=\"Copy the command\"]').focus()");
    page.press("Enter", 13);
    page.wait_for("/^(Copied|The browser does not let)/.test(document.getElementById('notes').textContent)");
    // Invalid candidates are reported, and the previous ones stay in use.
    std::fs::write(&next, "domain: [").unwrap();
    page.wait_for_text("The current files are invalid");
    page.wait_for_text("user=<b>ann</b>");
    must_be_accessible(&mut page, "refused candidates");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn pasted_rules_show_their_differences_and_their_mistakes() {
    let service = start(&["WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    (0..2).for_each(|_| ask(&service, "user", "ann"));
    let mut page = open(&service, WIDE);
    show(&mut page, "tune?view=rules", "A rules file");
    fill(&mut page, "A rules file", &RULES.replace("requests_per_unit: 2", "requests_per_unit: 1"));
    press(&mut page, "Compare");
    page.wait_for_text("Who it changes");
    page.wait_for_text("user=ann");
    must_be_accessible(&mut page, "pasted rules");
    fill(&mut page, "A rules file", "domain: [");
    page.wait_for("!document.body.innerText.includes('Who it changes')");
    press(&mut page, "Compare");
    page.wait_for_text("These rules have mistakes");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_number_is_tried_by_keys_alone_and_the_right_one_found() {
    let service = start(&["WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    (0..5).for_each(|_| ask(&service, "user", "<i>ann</i>"));
    ask(&service, "user", "bob");
    let mut page = open(&service, WIDE);
    show(&mut page, "tune?in=shop&limit=per-user", "2 per day denies 50 % of the requests and 1 of 2 keys");
    page.wait_for_text("user=<i>ann</i>");
    fill(&mut page, "Number", "4");
    page.wait_for_text("4 per day denies 16.7 % of the requests and 1 of 2 keys; now 50 % and 1 of 2 keys.");
    page.wait_for_text("requests_per_unit: 4");
    assert_eq!(page.evaluate("location.hash"), "#tune?in=shop&limit=per-user&number=4");
    must_be_accessible(&mut page, "a number that is tried");
    page.evaluate("document.querySelector('input[type=range]').focus()");
    page.press("Home", 36);
    page.wait_for_text("0 per day denies 100 % of the requests");
    page.press("End", 35);
    page.wait_for_text("10 per day denies 0 % of the requests");
    page.wait_for_text("It would deny no request");
    fill(&mut page, "Deny at most", "0");
    page.press("Enter", 13);
    page.wait_for_text("5 per day is the smallest number that denies at most 0 % of the keys");
    press(&mut page, "Use 5");
    page.wait_for_text("5 per day denies 0 % of the requests");
    page.evaluate(&format!(
        "(() => {{ const it = document.getElementById({}.htmlFor); it.value = 'token_bucket'; \
         it.dispatchEvent(new Event('change')); }})()",
        with_text("label", "Algorithm")
    ));
    page.wait_for_text("algorithm: token_bucket");
    fill(&mut page, "Number", "-7");
    page.wait_for_text("write a whole number");
    page.errors.retain(|error| !error.contains("400 (Bad Request)"));
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn empty_pages_say_what_to_do_next() {
    let service = start(&["WHAT_IF_REQUESTS=0"]);
    let mut page = open(&service, NARROW);
    for (address, says) in [
        ("overview", "Point the rate-limit filter of Envoy at this service"),
        ("limits?filter=denying", "No limit has denied anything in the last 15 seconds."),
        ("keys?by=denied", "Show by hits"),
        ("tune", "WHAT_IF_REQUESTS=20000"),
        ("tune?view=candidates", "CANDIDATE_RULES=next"),
        ("adjust", "No adjustment is in force"),
        ("health", "No failure mode answers now"),
    ] {
        show(&mut page, address, says);
        must_be_accessible(&mut page, address);
        must_be_whole(&mut page, address);
    }
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn entries_are_completed_from_the_rules_and_asked_from_elsewhere() {
    let service = start(&[]);
    let mut page = open(&service, WIDE);
    show(&mut page, "keys?try=1", "Try a request");
    fill(&mut page, "Domain", "shop");
    press(&mut page, "user=");
    page.wait_for("document.activeElement.tagName === 'TEXTAREA'");
    page.type_text("ann");
    press(&mut page, "Explain");
    page.wait_for_text("2 of 2");
    page.evaluate("document.querySelector('#panel details').open = true");
    let request = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
    page.wait_for_text(&format!("curl -s http://127.0.0.1:{}/json -d '{request}'", service.http_port));
    let service_name = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let grpcurl = format!("grpcurl -plaintext -d '{request}' 127.0.0.1:{} {service_name}", service.grpc_port);
    // Where gRPC listens is known a moment later.
    let (explain, says) = (with_text("#panel button", "Explain"), json!(grpcurl));
    page.wait_for(&format!("(({explain}).click(), document.body.innerText.includes({says}))"));
    page.wait_for_text("tollgate why --log decisions.jsonl --domain shop user=ann");
    page.wait_for_text("- actions:\n  - request_headers: {header_name: x-user, descriptor_key: user}");
    must_be_accessible(&mut page, "what is copied");
    // Behind a line that is finished the next level is offered: here there is none.
    page.wait_for("document.querySelectorAll('[aria-label=\"Entries that the rules suggest\"] button').length === 0");
    must_be_good(&page, &service);
}

#[test]
#[ignore = "needs Chromium: make e2e"]
fn a_finding_can_be_sent_by_its_address() {
    let service = start(&[]);
    (0..5).for_each(|_| ask(&service, "user", "ann"));
    let mut page = open(&service, WIDE);
    show(&mut page, "overview", "user=ann");
    press(&mut page, "user=ann");
    page.wait_for_text("One more request now");
    let address = page.evaluate("location.href").as_str().unwrap().to_owned();
    let mut other = open(&service, WIDE);
    other.go(&address);
    other.evaluate("location.reload()");
    other.wait_for_text("To tell a customer");
    // Escape closes the panel, and gives the focus back.
    other.evaluate("document.querySelector('#main tbody a.row').focus()");
    other.press("Enter", 13);
    other.wait_for("document.activeElement?.id === 'panel-title' || !document.getElementById('panel').hidden");
    other.press("Escape", 27);
    other.wait_for("document.getElementById('panel').hidden");
    assert_eq!(other.evaluate("location.hash"), "#keys?by=denied");
    // A chart is read by keys, and its time is in the address.
    show(&mut other, "overview", "Decisions a second");
    other.wait_for("document.querySelector('.plot')?.getAttribute('aria-valuetext')?.includes('allowed')");
    other.evaluate("document.querySelector('.plot').focus()");
    other.press("ArrowLeft", 37);
    other.press("Enter", 13);
    other.wait_for("/^#overview\\?at=\\d{13}$/.test(location.hash)");
    must_be_good(&other, &service);
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
    let mut page = open(&service, WIDE);
    show(&mut page, "limits", "100,000 limits");
    assert_eq!(page.evaluate("document.querySelectorAll('#main tbody tr').length"), 100);
    page.evaluate("document.querySelector('#main input[type=search]').focus()");
    page.type_text("u099999");
    page.wait_for_text("99999 per day");
    page.wait_for("document.querySelectorAll('#main tbody tr').length === 1");
    show(&mut page, "keys?try=1", "Try a request");
    fill(&mut page, "Domain", "shop");
    page.wait_for_text("and more");
    let offers = "document.querySelectorAll('[aria-label=\"Entries that the rules suggest\"] button').length";
    assert_eq!(page.evaluate(offers), 12);
    must_be_good(&page, &service);
}
