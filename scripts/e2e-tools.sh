#!/usr/bin/env bash
# Installs what `make e2e` runs beside the tests' own tools: see scripts/test-tools.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/test-tools.sh h2spec actionlint shellcheck buildah qemu xds-server ratelimit prometheus alertmanager helm kustomize kubernetes egctl \
    chromium axe grpc-go grpcurl ghz grpc-java envoy-oldest skopeo registry cosign
