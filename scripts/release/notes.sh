#!/usr/bin/env bash
# Prints the release notes of a tag: the section of CHANGELOG.md for that version. Fails unless the tag is the version of Cargo.toml
# and of the chart.
#
#   scripts/release/notes.sh v0.1.0
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    echo "notes: $*" >&2
    exit 1
}

[[ $# == 1 ]] || fail "name the tag, such as v0.1.0"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[[ $1 == "v$version" ]] || fail "the tag is $1, and Cargo.toml says $version: tag v$version, or change Cargo.toml"
for key in version appVersion; do
    found=$(sed -n "s/^$key: //p" deploy/helm/tollgate/Chart.yaml)
    [[ $found == "$version" ]] || fail "$key of deploy/helm/tollgate/Chart.yaml is $found, not $version"
done
notes=$(awk -v heading="## $version" '/^## /{ found = index($0, heading) == 1; next } found' CHANGELOG.md)
[[ -n $notes ]] || fail "CHANGELOG.md has no section \"## $version\""
printf '%s\n' "$notes"
