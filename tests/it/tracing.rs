//! Spans, as a collector gets them.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::support;

use futures_util::future::join_all;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use support::certificates::Authority;
use support::collector::{Collector, attribute};
use support::envoy::Envoy;
use support::free_port;
use support::redis::Redis;
use support::tollgate::{BINARY, Tollgate, request};
use support::wait_until;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: many, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: strict, rate_limit: {unit: hour, requests_per_unit: 1, failure_mode: error}}
";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
/// Spans travel at once, or else only at the end.
const AT_ONCE: &str = "OTEL_BSP_SCHEDULE_DELAY=10";
const AT_THE_END: &str = "OTEL_BSP_SCHEDULE_DELAY=600000";
/// A short timeout for exports that fail.
const IMPATIENT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT=1000";

fn start(endpoint: &str, settings: &[&str]) -> Tollgate {
    let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}");
    Tollgate::start(RULES, &[&["TRACING_ENABLED=true", &endpoint], settings].concat())
}

/// Asks about an entry, with these headers.
async fn ask(tollgate: &Tollgate, key: &str, headers: &[(&'static str, &str)]) -> Result<i32, tonic::Status> {
    let mut call = tonic::Request::new(request("shop", &[&[(key, "ann-herself")]]));
    for (name, value) in headers {
        call.metadata_mut().insert(*name, value.parse().unwrap());
    }
    Ok(tollgate.client().await.should_rate_limit(call).await?.into_inner().overall_code)
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'s>(spans: &'s [Span], name: &str) -> Vec<&'s Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn get(span: &Span, name: &str) -> String {
    attribute(&span.attributes, name).unwrap_or_default()
}

/// Ends it, and returns all that the collector has got.
fn end(mut tollgate: Tollgate, collector: &Collector) -> Vec<Span> {
    tollgate.signal("TERM");
    assert!(tollgate.wait().success());
    collector.spans()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_in_its_callers_trace_with_the_store_and_redis_within_by_either_protocol() {
    for (protocol, collector) in [("grpc", Collector::grpc()), ("http", Collector::http())] {
        let redis = Redis::start();
        let settings = [
            &format!("REDIS_URL={}", redis.url()),
            &format!("TRACING_EXPORTER_PROTOCOL={protocol}"),
            "TRACING_SERVICE_NAMESPACE=edge",
            "OTEL_SERVICE_NAME=limits",
            "OTEL_RESOURCE_ATTRIBUTES=zone=a%20b",
            "OTEL_EXPORTER_OTLP_HEADERS=token=s3cret",
            "OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
            AT_ONCE,
        ];
        let tollgate = start(&collector.url, &settings);
        let headers = [("traceparent", traceparent("01")), ("tracestate", "vendor=x".to_owned())];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        ask(&tollgate, "user", &headers).await.unwrap();

        let spans = collector.must_get(3);
        let one = |name| named(&spans, name)[0];
        let (call, store, redis) = (one("ShouldRateLimit"), one("store"), one("EVALSHA"));
        assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE && span.trace_state == "vendor=x"), "{spans:#?}");
        let parents = [&call.parent_span_id, &store.parent_span_id, &redis.parent_span_id];
        assert_eq!(parents.map(|id| hex(id)), [SPAN.to_owned(), hex(&call.span_id), hex(&store.span_id)]);
        let kinds = [SpanKind::Server, SpanKind::Internal, SpanKind::Client].map(|kind| kind as i32);
        assert_eq!([call.kind, store.kind, redis.kind], kinds);
        let told = ["domain", "descriptors", "decision", "decided_by"];
        assert_eq!(told.map(|name| get(call, &format!("tollgate.{name}"))), ["shop", "1", "ok", "store"]);
        assert_eq!((get(redis, "db.system.name"), get(redis, "tollgate.requests")), ("redis".into(), "1".into()));
        assert!(!collector.text().contains("ann-herself"), "nothing of what a request asks");

        let (token, process) = collector.first();
        assert_eq!(token.as_deref(), Some("s3cret"));
        let process = ["service.name", "service.namespace", "zone"].map(|name| attribute(&process, name).unwrap());
        assert_eq!(process, ["limits", "edge", "a b"]);
        assert!(!format!("{:?}", tollgate.logs()).contains("s3cret"));

        ask(&tollgate, "user", &headers).await.unwrap();
        let spans = collector.must_get(6);
        let mut decisions: Vec<_> =
            named(&spans, "ShouldRateLimit").iter().map(|call| get(call, "tollgate.decision")).collect();
        decisions.sort();
        assert_eq!(decisions, ["ok", "over_limit"]);
        assert_eq!(named(&spans, "store").len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_share_a_round_trip_link_to_it() {
    let (collector, redis) = (Collector::http(), Redis::start());
    let url = format!("REDIS_URL={}", redis.url());
    let tollgate = start(&collector.url, &[&url, AT_THE_END, "WORKER_THREADS=1", "OTEL_BSP_MAX_QUEUE_SIZE=100000"]);
    let client = tollgate.client().await;
    for _ in 0..10 {
        let asked = (0..50).map(|_| {
            let mut client = client.clone();
            async move { client.should_rate_limit(request("shop", &[&[("many", "x")]])).await.unwrap() }
        });
        join_all(asked).await;
    }
    let spans = end(tollgate, &collector);
    let (stores, trips) = (named(&spans, "store"), named(&spans, "EVALSHA"));
    assert_eq!((named(&spans, "ShouldRateLimit").len(), stores.len()), (500, 500));
    let mut linked: HashMap<&[u8], usize> = HashMap::new();
    for store in &stores {
        let is_parent = trips.iter().any(|trip| trip.parent_span_id == store.span_id);
        assert_eq!(store.links.len(), usize::from(!is_parent), "its own round trip, or a link to another's");
        for link in &store.links {
            *linked.entry(&link.span_id).or_default() += 1;
        }
    }
    for trip in &trips {
        let others = linked.remove(&trip.span_id[..]).unwrap_or_default();
        assert_eq!(get(trip, "tollgate.requests"), (others + 1).to_string());
    }
    assert!(linked.is_empty(), "every link leads to a round trip");
    assert!(trips.len() < 500, "some have shared one");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_decides_on_sampling_and_the_rate_where_it_does_not() {
    let b3 = format!("{TRACE}-{SPAN}");
    let (sampled, unsampled) = (traceparent("01"), traceparent("00"));
    for (rate, expected) in [("0", 3), ("1", 5)] {
        let collector = Collector::grpc();
        let rate = format!("TRACING_SAMPLING_RATE={rate}");
        let tollgate = start(&collector.url, &[&rate, "TRACING_EXPORTER_PROTOCOL=grpc", AT_THE_END]);
        for headers in [
            &[][..],
            &[("b3", &*b3)],
            &[("traceparent", &unsampled)],
            &[("b3", "0")],
            &[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0")],
            &[("traceparent", &sampled)],
            &[("b3", &format!("{b3}-1"))],
            &[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")],
        ] {
            ask(&tollgate, "many", headers).await.unwrap();
        }
        // Spans are collected in a batch, which only the end sends.
        assert!(collector.spans().is_empty());
        let spans = end(tollgate, &collector);
        let calls = named(&spans, "ShouldRateLimit");
        assert_eq!((calls.len(), named(&spans, "store").len()), (expected, expected), "{rate}");
        let of_callers = calls.iter().filter(|call| hex(&call.trace_id) == TRACE && hex(&call.parent_span_id) == SPAN);
        assert_eq!(of_callers.count(), if expected == 3 { 3 } else { 4 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_says_in_its_spans_of_what() {
    let (collector, redis) = (Collector::http(), Redis::stopped());
    let tollgate = start(&collector.url, &[&format!("REDIS_URL={}", redis.url()), AT_THE_END]);
    ask(&tollgate, "user", &[]).await.unwrap();
    ask(&tollgate, "strict", &[]).await.unwrap_err();
    let body = br#"{"domain": "shop"}"#;
    assert_eq!(tollgate.send("POST", "/json", &[("traceparent", &traceparent("01"))], body).0, 400);
    let spans = end(tollgate, &collector);
    let calls = named(&spans, "ShouldRateLimit");
    assert_eq!(get(calls[0], "tollgate.decided_by"), "failure_mode_open");
    assert_eq!(get(calls[0], "tollgate.limit.name"), "user");
    assert_eq!(get(calls[0], "tollgate.limit.algorithm"), "sliding_window");
    assert_eq!((get(calls[1], "error.type"), get(calls[2], "error.type")), ("unavailable".into(), "invalid".into()));
    assert_eq!(hex(&calls[2].parent_span_id), SPAN, "/json has the same headers");
    let stores = named(&spans, "store");
    assert!(stores.len() == 2 && stores.iter().all(|store| get(store, "error.type") == "down"), "{stores:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_is_told_once_and_holds_up_nobody() {
    let address = format!("127.0.0.1:{}", free_port());
    let tollgate = start(&format!("http://{address}"), &[AT_ONCE, IMPATIENT, "OTEL_BSP_MAX_QUEUE_SIZE=10"]);
    let gone = "the collector does not accept spans";
    support::wait_until_async(gone, async || {
        ask(&tollgate, "many", &[]).await.unwrap();
        tollgate.logged(gone).is_some()
    })
    .await;
    for _ in 0..100 {
        ask(&tollgate, "many", &[]).await.unwrap();
    }
    let collector = Collector::http_at(&address);
    let back = "the collector accepts spans again";
    support::wait_until_async(back, async || {
        ask(&tollgate, "many", &[]).await.unwrap();
        tollgate.logged(back).is_some()
    })
    .await;
    assert!(!collector.spans().is_empty());
    let told = tollgate.logs().iter().filter(|line| line["message"].as_str().unwrap().starts_with(gone)).count();
    assert_eq!(told, 1);
    drop(collector);
    end(tollgate, &Collector::http());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_holds_up_nobody_and_what_has_no_room_is_counted() {
    let collector = Collector::silent();
    let queue = ["OTEL_BSP_MAX_QUEUE_SIZE=10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=5", "OTEL_EXPORTER_OTLP_TIMEOUT=600000"];
    let mut tollgate = start(&collector.url, &[&queue[..], &["DRAIN_DELAY=2s"]].concat());
    for _ in 0..50 {
        ask(&tollgate, "many", &[]).await.unwrap();
    }
    // Two spans per call. Spans in flight also take a place in the queue.
    let fate = |fate| tollgate.metric(&format!("tollgate_spans_total{{fate=\"{fate}\"}}"));
    assert_eq!(["sent", "dropped", "lost"].map(fate), [0.0, 90.0, 0.0]);
    // It could have taken them during the drain.
    tollgate.signal("TERM");
    let begin = std::time::Instant::now();
    assert!(tollgate.wait().success());
    assert!(begin.elapsed() < std::time::Duration::from_secs(4), "{:?}", begin.elapsed());
    tollgate.must_log("the collector did not accept the last spans in time: they are lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_takes_and_what_it_does_not_is_counted() {
    let fate = |tollgate: &Tollgate, fate| tollgate.metric(&format!("tollgate_spans_total{{fate=\"{fate}\"}}"));
    let collector = Collector::http();
    let tollgate = start(&collector.url, &[AT_ONCE]);
    ask(&tollgate, "many", &[]).await.unwrap();
    wait_until("spans are sent", || fate(&tollgate, "sent") == 2.0);
    let nobody = format!("127.0.0.1:{}", free_port());
    let tollgate = start(&format!("http://ann:s3cret@{nobody}"), &[AT_ONCE, IMPATIENT]);
    ask(&tollgate, "many", &[]).await.unwrap();
    wait_until("spans are lost", || fate(&tollgate, "lost") == 2.0);
    let line = tollgate.must_log("the collector does not accept spans");
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}: why");
    assert_eq!(line["collector"], format!("http://{nobody}/v1/traces"), "a log holds no password");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_with_tls_is_trusted_by_its_authority_alone_and_shown_a_certificate() {
    let (authority, other) = (Authority::new("collectors"), Authority::new("others"));
    let (server, client) = (authority.sign("collector", &["127.0.0.1"]), authority.sign("tollgate", &["tollgate"]));
    for (protocol, collector) in [
        ("grpc", Collector::grpc_with(server.server(&authority))),
        ("http", Collector::https(server.server(&authority))),
    ] {
        let with = |authority: &Authority, signal: &str| {
            let file = |name: &str, path: &Path| format!("OTEL_EXPORTER_OTLP_{signal}{name}={}", path.display());
            let settings = [
                format!("TRACING_EXPORTER_PROTOCOL={protocol}"),
                file("CERTIFICATE", &authority.file()),
                file("CLIENT_CERTIFICATE", &client.cert),
                file("CLIENT_KEY", &client.key),
                AT_ONCE.to_owned(),
            ];
            start(&collector.url, &settings.each_ref().map(String::as_str))
        };
        let tollgate = with(&authority, "");
        ask(&tollgate, "many", &[]).await.unwrap();
        collector.must_get(2);

        let distrusting = with(&other, "TRACES_");
        ask(&distrusting, "many", &[]).await.unwrap();
        let line = distrusting.must_log("the collector does not accept spans");
        let error = line["error"].as_str().unwrap();
        assert!(
            error.contains("not trusted") && error.contains("OTEL_EXPORTER_OTLP_CERTIFICATE"),
            "{protocol}: {line}"
        );
        drop(distrusting);

        // It presents no certificate and is rejected.
        let ca = format!("OTEL_EXPORTER_OTLP_CERTIFICATE={}", authority.file().display());
        let unknown =
            start(&collector.url, &[&format!("TRACING_EXPORTER_PROTOCOL={protocol}"), &ca, AT_ONCE, IMPATIENT]);
        ask(&unknown, "many", &[]).await.unwrap();
        unknown.must_log("the collector does not accept spans");
        assert_eq!(collector.spans().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opentelemetrys_sampler_and_propagators_are_obeyed_and_what_is_unknown_in_them_is_told() {
    let (sampled, unsampled) = (traceparent("01"), traceparent("00"));
    let b3 = format!("{TRACE}-{SPAN}-1");
    for (settings, expected) in [
        (&["OTEL_TRACES_SAMPLER=always_on"][..], 4),
        (&["OTEL_TRACES_SAMPLER=always_off"], 0),
        (&["OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0"], 0),
        (&["OTEL_TRACES_SAMPLER=parentbased_always_off"], 2),
        (&["OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0"], 2),
        (&["OTEL_TRACES_SAMPLER=parentbased_always_off", "OTEL_PROPAGATORS=b3"], 1),
        (&["OTEL_TRACES_SAMPLER=parentbased_always_off", "OTEL_PROPAGATORS=tracecontext,baggage"], 1),
        (&["OTEL_TRACES_SAMPLER=parentbased_always_off", "OTEL_PROPAGATORS=none"], 0),
    ] {
        let collector = Collector::http();
        let tollgate = start(&collector.url, &[settings, &[AT_THE_END]].concat());
        for headers in [&[][..], &[("traceparent", &*unsampled)], &[("traceparent", &sampled)], &[("b3", &b3)]] {
            ask(&tollgate, "many", headers).await.unwrap();
        }
        assert_eq!(named(&end(tollgate, &collector), "ShouldRateLimit").len(), expected, "{settings:?}");
    }
    let settings = ["TRACING_ENABLED=true", "OTEL_TRACES_SAMPLER=xray", "OTEL_PROPAGATORS=jaeger,b3"];
    let told = Command::new(BINARY);
    let told = environment_check(told, &settings);
    assert!(told.contains("OTEL_TRACES_SAMPLER=xray (environment) is unknown"), "{told}");
    assert!(told.contains("OTEL_PROPAGATORS=jaeger,b3 (environment) names jaeger, which is ignored"), "{told}");
}

/// Runs `check --env` with these variables.
fn environment_check(mut command: Command, settings: &[&str]) -> String {
    let variables = settings.iter().map(|setting| setting.split_once('=').unwrap());
    let output = command.args(["check", "--env"]).env_clear().envs(variables).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// The changes that make Envoy send spans to this collector, at once.
fn tracing_to(collector: &Collector) -> [(&'static str, String); 3] {
    let port = collector.url.rsplit_once(':').unwrap().1;
    let tracing = r#"stat_prefix: front
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      grpc_service: { envoy_grpc: { cluster_name: collector }, timeout: 10s }
                      service_name: front
"#;
    let cluster = format!(
        r#"  clusters:
    - name: collector
      type: STATIC
      load_assignment:
        cluster_name: collector
        endpoints:
          - lb_endpoints:
              - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
"#
    );
    let at_once = "layered_runtime:
  layers:
    - name: at-once
      static_layer: { tracing.opentelemetry.flush_interval_ms: 10, tracing.opentelemetry.min_flush_spans: 1 }

static_resources:
";
    [
        ("stat_prefix: front\n", tracing.to_owned()),
        ("  clusters:\n", cluster),
        ("static_resources:\n", at_once.to_owned()),
    ]
}

#[test]
fn a_call_of_a_real_envoy_is_in_envoys_trace() {
    let collector = Collector::grpc();
    let tollgate = start(&collector.url, &["TRACING_EXPORTER_PROTOCOL=grpc", AT_ONCE]);
    let changes = tracing_to(&collector);
    let changes = changes.each_ref().map(|(old, new)| (*old, new.as_str()));
    let envoy = Envoy::start_with(tollgate.grpc_port, &[&changes[..], &[Envoy::LONG_TIMEOUT]].concat());
    wait_until("envoy asks tollgate", || envoy.get_as("ann").is_decided());
    wait_until("the spans of one request come", || {
        let spans = collector.spans();
        named(&spans, "ShouldRateLimit").iter().any(|call| {
            let parent = spans.iter().find(|span| span.span_id == call.parent_span_id);
            let request = parent.and_then(|parent| spans.iter().find(|span| span.span_id == parent.parent_span_id));
            // Envoy's span for its request, and within it the span for its call to Tollgate.
            request.is_some_and(|request| request.trace_id == call.trace_id && request.kind == SpanKind::Server as i32)
        })
    });
}

#[tokio::test]
async fn without_a_setting_nothing_is_exported() {
    let collector = Collector::http();
    for off in [&[][..], &["TRACING_ENABLED=true", "OTEL_SDK_DISABLED=true"], &["TRACING_ENABLED=f"]] {
        let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT={}", collector.url);
        let tollgate = Tollgate::start(RULES, &[off, &[&endpoint, AT_ONCE]].concat());
        ask(&tollgate, "many", &[("traceparent", &traceparent("01"))]).await.unwrap();
        assert!(end(tollgate, &collector).is_empty());
    }
}
