#!/usr/bin/env bash
# Runs the steps of a release against a registry of its own on this machine, with a key that is thrown away: image, chart,
# publishing, signatures, and what must be refused. Needs what `make dist` makes. Leaves nothing running.
#
#   scripts/release/try.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

step() { echo "== $*"; }

scripts/test-tools.sh buildah skopeo registry helm cosign
# As deploy/image/try.sh: buildah builds as root, or as root in a namespace.
[[ $(id -u) == 0 ]] || exec buildah unshare -- scripts/release/try.sh

readonly cosign=target/tools/bin/cosign helm=target/tools/bin/helm
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
work=$(mktemp --directory --tmpdir tollgate-release.XXXXXX)
registry=
clean_up() {
    [[ -z $registry ]] || kill "$registry" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf 'version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: "%s"}}\nhttp: {addr: "127.0.0.1:%s"}\n' \
    "$work/registry" "$port" >"$work/registry.yml"
docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
registry=$!
for _ in {1..100}; do
    ! curl --silent --fail --output /dev/null "http://127.0.0.1:$port/v2/" || break
    kill -0 "$registry" 2>/dev/null || fail "the registry ended: $(cat "$work/registry.log")"
    sleep 0.1
done

export IMAGE=127.0.0.1:$port/edge/tollgate CHARTS=127.0.0.1:$port/edge/charts PLAIN_HTTP=yes
export COSIGN_PASSWORD="" COSIGN_KEY=$work/cosign.key
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/storage" "$work/run" >"$work/storage.conf"

# At a registry without TLS.
inspect() { skopeo inspect --tls-verify=false --raw "docker://$1"; }
copy() { skopeo copy --src-tls-verify=false --dest-tls-verify=false --quiet "$@"; }
# digest REFERENCE
digest() { inspect "$1" | sha256sum | sed 's/ .*//; s/^/sha256:/'; }

(cd "$work" && "$OLDPWD/$cosign" generate-key-pair)

step "only the tag of this version has notes"
# The tree as it is on the day of the release.
tree=$work/tree
mkdir -p "$tree/scripts/release" "$tree/deploy/helm/tollgate"
cp Cargo.toml "$tree"
cp deploy/helm/tollgate/Chart.yaml "$tree/deploy/helm/tollgate"
cp scripts/release/notes.sh "$tree/scripts/release"
sed "s/^## Unreleased$/## $version/" CHANGELOG.md >"$tree/CHANGELOG.md"
export NOTES=$work/notes.md
"$tree/scripts/release/notes.sh" "v$version" >"$NOTES"
[[ -s $NOTES ]] || fail "there are no notes"
! "$tree/scripts/release/notes.sh" v99.0.0 2>"$work/refused" || fail "another tag is taken"
grep "the tag is v99.0.0" "$work/refused"

step "image and chart"
make --no-print-directory image CONTAINER=buildah IMAGE="tollgate:$version" SAVE=target/dist-image
scripts/release/chart.sh

step "published, signed and attested"
scripts/release/publish.sh

image=$IMAGE@$(digest "$IMAGE:$version")
for tag in "${version%.*}" latest; do
    [[ $(digest "$IMAGE:$tag") == "${image#*@}" ]] || fail ":$tag is not $version"
done
machines=$(inspect "$image" | grep --only-matching '"architecture": *"[^"]*"' | cut -d '"' -f 4 | sort | paste --serial)
[[ $machines == $'amd64\tarm64' ]] || fail "the image is for: $machines"
grep --quiet "$image\|${image#*@}" target/publish/notes.md || fail "the notes do not name the image"

step "a user finds it, checks it, and runs it"
verified() { $cosign "$@" --key "$work/cosign.pub" --insecure-ignore-tlog=true >"$work/verified" 2>&1; }
container=$(buildah from --tls-verify=false --pull-always "$IMAGE:latest")
buildah run "$container" -- /bin/tollgate --version | grep "^tollgate $version "
verified verify "$image" || fail "no signature: $(cat "$work/verified")"
verified verify-attestation --type slsaprovenance1 "$image" || fail "no provenance: $(cat "$work/verified")"
for each in $(inspect "$image" | grep --only-matching 'sha256:[0-9a-f]*'); do
    verified verify-attestation --type cyclonedx "$IMAGE@$each" || fail "no SBOM: $(cat "$work/verified")"
done
sums() { verified verify-blob-attestation --type slsaprovenance1 --bundle target/publish/SHA256SUMS.sigstore.json "$1"; }
sums target/dist/SHA256SUMS || fail "no provenance of the checksums: $(cat "$work/verified")"
sed 's/^./0/' target/dist/SHA256SUMS >"$work/SHA256SUMS"
! sums "$work/SHA256SUMS" || fail "other checksums are taken for ours"
$helm pull --plain-http "oci://$CHARTS/tollgate" --version "$version" --destination "$work"
chart=$CHARTS/tollgate@$(digest "$CHARTS/tollgate:$version")
verified verify "$chart" || fail "the chart has no signature: $(cat "$work/verified")"
$helm template --kube-version 1.33.0 t "$work/tollgate-$version.tgz" --values deploy/helm/tollgate/ci/redis.yaml | grep "image: \"$IMAGE:$version\"" ||
    fail "the chart does not run the image that was published with it"

step "the same again changes nothing; other bytes under its name are refused, and latest never goes back"
scripts/release/publish.sh >/dev/null
for tag in 99.0.0 "${version%.*}.99"; do
    copy --all "docker://$image" "docker://$IMAGE:$tag"
done
scripts/release/publish.sh | tee "$work/log"
[[ $(grep --count "stays at a higher version" "$work/log") == 2 ]] || fail "a tag went back"
scripts/release/chart.sh
! scripts/release/publish.sh >"$work/log" 2>&1 || fail "a chart was replaced"
grep "a version never changes" "$work/log" || fail "it said something else: $(cat "$work/log")"
copy "docker://$image" "docker://$IMAGE:$version" # one machine of the two: other bytes
! scripts/release/publish.sh >"$work/log" 2>&1 || fail "a version was replaced"
grep "a version never changes" "$work/log" || fail "it said something else: $(cat "$work/log")"
echo "ok"
