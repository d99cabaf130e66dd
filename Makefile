# What a developer does here. CI runs the same (.ci/run).

.DEFAULT_GOAL := help
.PHONY: help run test simulate check bench bench-quick bench-overload image

# docker, podman or buildah: whichever builds a Dockerfile.
CONTAINER ?= docker

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## serve the example rules on this machine, in memory
	cargo run --release -- --rules config/rules

test: ## run every test, with the Redis and the Envoy they need (installed at the first run)
	scripts/test-tools.sh
	cargo test --locked --no-fail-fast

# Which seeds: one is one run, and repeats.
SEEDS ?= 0..1000000

simulate: ## run many drawn faults of Redis against every promise: SEEDS=0..1000000
	TOLLGATE_SIMULATION=$(SEEDS) cargo test --locked --profile release --test simulation -- --nocapture

check: ## what a review would say first: formatting and lints
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings

bench: ## measure what a request costs, beside the least that it could: docs/performance.md, under ten minutes once it is built
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service --bench allocations
	@cargo bench --locked --quiet --bench service

bench-quick: ## the same with shorter runs, under two minutes: to see where a change goes
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service --bench allocations
	@cargo bench --locked --quiet --bench service -- --quick

bench-overload: ## measure what becomes of three times the load that can be served, and draw docs/overload.svg: under four minutes
	scripts/test-tools.sh
	cargo bench --locked --no-run --bench service
	@cargo bench --locked --quiet --bench service -- --overload --quick

image: ## build the container image, with CONTAINER=docker, podman or buildah
	$(CONTAINER) build --tag tollgate .
