#!/usr/bin/env bash
# Installs what `make e2e` runs beside the tests' own tools. Says what it does, and does nothing twice.
#
#   h2spec   target/tools/bin/h2spec, from its source, by Go
set -euo pipefail
cd "$(dirname "$0")/.."

readonly bin=$PWD/target/tools/bin
readonly h2spec=github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

say() { echo "e2e-tools: $*"; }

mkdir -p "$bin"
if [[ ! -x $bin/h2spec ]]; then
    if ! command -v go >/dev/null; then
        say "go is missing: install Go, or put h2spec into $bin" >&2
        exit 1
    fi
    say "building ${h2spec##*/}"
    GOBIN=$bin go install "$h2spec"
fi
say "h2spec: $("$bin/h2spec" --version)"
