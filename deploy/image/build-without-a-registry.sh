#!/usr/bin/env bash
# Builds the image of the Dockerfile and tries it, on a machine without Docker and without a container registry: with
# buildah, on base images made here from Debian's packages and this machine's Rust toolchain. They go in through the
# build arguments that the Dockerfile has for this. Nothing is left behind, but for a small cache of names that buildah keeps
# in /var/lib/containers.
#
#   sudo apt-get install buildah debootstrap
#   sudo deploy/image/build-without-a-registry.sh
#
# Takes some minutes (the release build) and some GB in TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly suite=bookworm # the Debian of the Dockerfile's own bases

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

step() { echo "== $*"; }

[[ $(id -u) == 0 ]] || fail "debootstrap needs root"
for tool in buildah debootstrap rustc; do
    command -v "$tool" >/dev/null || fail "$tool is missing"
done

work=$(mktemp --directory --tmpdir tollgate-image.XXXXXX)
server=
pid_of_tollgate() { sed -n 's/^pid //p' "$work/log"; }
clean_up() {
    [[ -z $server ]] || kill -TERM "$(pid_of_tollgate)" "$server" 2>/dev/null || true
    # Never into what may still be mounted there.
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# vfs and chroot work inside a container too, where overlay file systems and namespaces are often not allowed.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
# What buildah keeps for cache mounts goes to TMPDIR.
mkdir "$work/tmp"
export TMPDIR=$work/tmp
images() { buildah --root "$work/storage" --runroot "$work/run" "$@"; }

# base_image NAME FOLDER: an image of what is in the folder; the folder is gone then.
base_image() {
    local container
    container=$(images from scratch)
    images copy --quiet "$container" "$2" / >/dev/null
    images config --env PATH=/usr/local/rust/bin:/usr/local/bin:/usr/bin:/bin --env CARGO_HOME=/usr/local/cargo "$container"
    images commit --quiet --rm "$container" "$1" >/dev/null
    rm -rf --one-file-system "$2"
}

step "a base to run on: Debian $suite"
debootstrap --variant=minbase "$suite" "$work/runtime" >"$work/log" || fail "debootstrap: $(tail -n 3 "$work/log")"
rm -rf "$work"/runtime/var/{cache/apt,lib/apt/lists}/*
base_image localhost/runtime "$work/runtime"

step "a base to build on: the same, a linker, and $(rustc --version)"
debootstrap --variant=minbase --include=gcc,libc6-dev "$suite" "$work/build" >"$work/log" ||
    fail "debootstrap: $(tail -n 3 "$work/log")"
mkdir -p "$work/build/usr/local/rust" "$work/build/usr/local/cargo" "$work/build/etc/ssl/certs"
sysroot=$(rustc --print sysroot)
cp -r "$sysroot"/{bin,lib} "$work/build/usr/local/rust/"
# How this machine reaches crates.io: whom it trusts, and a registry of its own where it has one.
cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$work/build/etc/ssl/certs/ca-certificates.crt"
config=${CARGO_HOME:-$HOME/.cargo}/config.toml
[[ ! -e $config ]] || cp "$config" "$work/build/usr/local/cargo/"
base_image localhost/build "$work/build"

step "the image"
images build --quiet --format docker --tag localhost/tollgate \
    --build-arg BUILD_IMAGE=localhost/build --build-arg RUNTIME_IMAGE=localhost/runtime . >/dev/null

tollgate=$(images from localhost/tollgate)
in_container() { images run "$tollgate" -- "$@"; }

step "it runs as nobody in particular, and has a health check"
user=$(in_container id -u)
[[ $user == 65532 ]] || fail "it runs as user $user"
echo "user $user, $(images inspect --type image --format '{{.Docker.Config.Healthcheck.Test}}' localhost/tollgate)"

step "without rules it says what is missing"
if in_container tollgate 2>"$work/log"; then
    fail "it started"
fi
cat "$work/log"
grep --quiet 'no rules' "$work/log" || fail "it said something else"

step "with rules it serves, limits, and drains when told to stop"
images copy --quiet "$tollgate" config/rules /rules >/dev/null
# The shell tells its process id before it becomes tollgate, which shares it with the world outside (chroot isolation has
# no process namespace): buildah itself would end a container without asking it to drain.
images run --env GRPC_PORT=0 --env PORT=0 "$tollgate" -- \
    sh -c 'echo "pid $$"; exec tollgate --rules /rules' >"$work/log" 2>&1 &
server=$!
for _ in {1..100}; do
    port=$(sed -n 's/.*tollgate is up.* grpc=[^ ]*:\([0-9]*\).*/\1/p' "$work/log")
    [[ -z $port ]] || break
    kill -0 "$server" 2>/dev/null || fail "it ended: $(cat "$work/log")"
    sleep 0.1
done
[[ -n $port ]] || fail "it does not come up: $(cat "$work/log")"
in_container tollgate health --address "localhost:$port"
for _ in {1..6}; do
    limited=0
    in_container tollgate ask --address "localhost:$port" --domain shop user=ann || limited=$?
done
[[ $limited == 2 ]] || fail "the sixth request of a minute was not limited"
kill -TERM "$(pid_of_tollgate)"
wait "$server" || fail "it ended badly: $(cat "$work/log")"
server=
tail -n 2 "$work/log"
grep --quiet 'bye' "$work/log" || fail "it did not drain"

step "sizes"
binary=$(in_container stat --format %s /usr/local/bin/tollgate)
echo "the binary: $((binary / 1024 / 1024)) MiB"
images images --format '{{.Name}}: {{.Size}}'
echo "ok"
