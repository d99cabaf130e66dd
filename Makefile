# What a developer does here. CI runs the same (.ci/run).

.DEFAULT_GOAL := help
.PHONY: help run test check image

# docker, podman or buildah: whichever builds a Dockerfile.
CONTAINER ?= docker

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## serve the example rules on this machine, in memory
	cargo run --release -- --rules config/rules

test: ## run every test, with the Redis and the Envoy they need (installed at the first run)
	scripts/test-tools.sh
	cargo test --locked --no-fail-fast

check: ## what a review would say first: formatting and lints
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings

image: ## build the container image, with CONTAINER=docker, podman or buildah
	$(CONTAINER) build --tag tollgate .
