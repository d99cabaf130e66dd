#!/usr/bin/env bash
# Builds the image as `make image` does, and tries it: with buildah, without Docker, and without a registry, for the image has no
# base. Nothing is left behind.
#
#   deploy/image/try.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly most_bytes=26000000
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
readonly version image=localhost/tollgate:$version

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

step() { echo "== $*"; }

scripts/test-tools.sh buildah qemu
# Only root may mount an image and start something as another user. Who is not is root in a namespace of their own, no more than
# themselves outside: what is built in there is theirs, and needs no sudo.
[[ $(id -u) == 0 ]] || exec buildah unshare -- deploy/image/try.sh

work=$(mktemp --directory --tmpdir tollgate-image.XXXXXX)
tollgate=
clean_up() {
    [[ -z $tollgate ]] || kill -TERM "$tollgate" 2>/dev/null || true
    buildah umount --all >/dev/null 2>&1 || true
    # Never into what may still be mounted there.
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# vfs and chroot work inside a container too, where overlay file systems and namespaces are often not allowed.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/storage" "$work/run" >"$CONTAINERS_STORAGE_CONF"

step "both kinds of machine in one list"
make --no-print-directory image CONTAINER=buildah
machines=$(buildah manifest inspect "$image" | sed -n 's/.*"architecture": "\(.*\)".*/\1/p' | sort | paste --serial --delimiters ' ')
[[ $machines == "amd64 arm64" ]] || fail "the list has: $machines"

# value OF: of the image's configuration.
value() { buildah inspect --type container --format "{{.Docker.Config.$1}}" "$2"; }

for machine in $machines; do
    step "$machine: the binary alone, labelled, for nobody in particular, with a health check"
    container=$(buildah from --pull-never --arch "$machine" "$image")
    root=$(buildah mount "$container")
    files=$(cd "$root" && find . -type f | paste --serial --delimiters ' ')
    [[ $files == ./bin/tollgate ]] || fail "it has more: $files"
    for name in ratelimit ratelimit_client ratelimit_config_check; do
        [[ $(readlink "$root/bin/$name") == tollgate ]] || fail "no /bin/$name"
    done
    bytes=$(stat --format %s "$root/bin/tollgate")
    ((bytes <= most_bytes)) || fail "it has $bytes bytes, more than $most_bytes"
    emulator=
    [[ $machine != arm64 || $(uname -m) == aarch64 ]] || emulator=qemu-aarch64-static
    # shellcheck disable=SC2086 # an emulator, or none
    $emulator "$root/bin/tollgate" --version
    for expected in "User=65532:65532" "Healthcheck.Test=[CMD /bin/tollgate health]"; do
        found=$(value "${expected%%=*}" "$container")
        [[ $found == "${expected#*=}" ]] || fail "its ${expected%%=*} is $found"
    done
    labels=$(value Labels "$container")
    for label in title description licenses version revision created; do
        [[ $labels == *"org.opencontainers.image.$label:"* ]] || fail "no label $label: $labels"
    done
    echo "$bytes bytes, user $(value User "$container")"
done

container=$(buildah from --pull-never "$image")
in_container() { buildah run "$container" -- /bin/tollgate "$@"; }

step "Envoy Gateway and Envoy AI Gateway start it, with their environments, mounts and users"
started=$(buildah from --pull-never "$image")
TOLLGATE_TEST_IMAGE=$(buildah mount "$started") cargo test --locked --test it -- --ignored drivers::the_image

step "without rules it says what is missing"
if in_container serve 2>"$work/log"; then
    fail "it started"
fi
cat "$work/log"
grep --quiet 'no rules' "$work/log" || fail "it said something else"

# program PID: the process below it that is Tollgate; buildah itself would end a container without asking it to drain.
program() {
    local child
    for child in $(ps --no-headers --format pid --ppid "$1"); do
        if [[ $(readlink "/proc/$child/exe") == */tollgate ]]; then
            echo "$child"
        else
            program "$child"
        fi
    done
}

step "the demo needs no file, and ends by Ctrl-C"
buildah run "$container" -- /bin/tollgate demo --port 0 --grpc-port 0 >"$work/log" 2>&1 &
server=$!
for _ in {1..100}; do
    port=$(sed -n 's/.* ask --address localhost:\([0-9]*\) .*/\1/p' "$work/log")
    [[ -z $port ]] || break
    kill -0 "$server" 2>/dev/null || fail "it ended: $(cat "$work/log")"
    sleep 0.1
done
[[ -n $port ]] || fail "it shows no command to try: $(cat "$work/log")"
in_container ask --address "localhost:$port" --domain shop user=ann
tollgate=$(program "$server")
kill -INT "$tollgate"
wait "$server" || fail "it ended badly: $(cat "$work/log")"
tollgate=
grep --quiet 'The demo has ended' "$work/log" || fail "it did not say that it ended: $(cat "$work/log")"

step "with rules it serves, limits, and drains when told to stop"
buildah copy --quiet "$container" config/rules /rules >/dev/null
buildah run --env GRPC_PORT=0 --env PORT=0 "$container" -- /bin/tollgate --rules /rules >"$work/log" 2>&1 &
server=$!
for _ in {1..100}; do
    port=$(sed -n 's/.*tollgate is up.* grpc=[^ ]*:\([0-9]*\).*/\1/p' "$work/log")
    [[ -z $port ]] || break
    kill -0 "$server" 2>/dev/null || fail "it ended: $(cat "$work/log")"
    sleep 0.1
done
[[ -n $port ]] || fail "it does not come up: $(cat "$work/log")"
tollgate=$(program "$server")
user=$(awk '/^Uid:/ { print $2 }' "/proc/$tollgate/status")
[[ $user == 65532 ]] || fail "it runs as user $user"
in_container health --address "localhost:$port"
for _ in {1..6}; do
    limited=0
    in_container ask --address "localhost:$port" --domain shop user=ann || limited=$?
done
[[ $limited == 2 ]] || fail "the sixth request of a minute was not limited"
kill -TERM "$tollgate"
wait "$server" || fail "it ended badly: $(cat "$work/log")"
tollgate=
tail -n 2 "$work/log"
grep --quiet 'all requests are answered' "$work/log" || fail "it did not drain"
echo "ok"
