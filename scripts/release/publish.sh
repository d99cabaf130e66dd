#!/usr/bin/env bash
# Publishes what `make dist`, scripts/image.sh and scripts/release/chart.sh have made, signed and attested by cosign:
#
#   target/dist/SHA256SUMS   its provenance goes to target/publish/SHA256SUMS.sigstore.json
#   target/dist-image        goes to $IMAGE:VERSION; :MAJOR.MINOR and :latest follow unless a higher version is there
#   target/dist-chart        goes to oci://$CHARTS/tollgate:VERSION
#
#   NOTES=notes.md               what scripts/release/notes.sh has printed
#   IMAGE=host/owner/tollgate    without it, only the checksums are attested
#   CHARTS=host/owner/charts     default: charts beside the image
#   COSIGN_KEY=cosign.key        signs with that key and without a transparency log; default: with the identity of the workflow
#   PLAIN_HTTP=yes               the registry has no TLS, as in scripts/release/try.sh
#
# A version that is published is never replaced: its tag must not be there, or must name the same bytes, so that a run that was
# interrupted can be repeated. target/publish/notes.md says where everything is.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly out=$PWD/target/publish cosign=target/tools/bin/cosign helm=target/tools/bin/helm
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
plain=() from=() to=() at=()
if [[ -n ${PLAIN_HTTP:-} ]]; then
    plain=(--plain-http) from=(--src-tls-verify=false) to=(--dest-tls-verify=false) at=(--tls-verify=false)
fi
signer=(--yes)
if [[ -n ${COSIGN_KEY:-} ]]; then
    signer+=(--key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false)
fi

say() { echo "publish: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

# Who built it and from what: SLSA's provenance, version 1. Values come from the workflow that runs this.
provenance() {
    local server=${GITHUB_SERVER_URL:-} repository=${GITHUB_REPOSITORY:-}
    cat <<JSON
{
  "buildDefinition": {
    "buildType": "https://actions.github.io/buildtypes/workflow/v1",
    "externalParameters": {
      "workflow": {
        "ref": "${GITHUB_REF:-}",
        "repository": "$server/$repository",
        "path": ".github/workflows/release.yml"
      }
    },
    "resolvedDependencies": [
      {
        "uri": "git+$server/$repository@${GITHUB_REF:-}",
        "digest": { "gitCommit": "$(git rev-parse HEAD)" }
      }
    ]
  },
  "runDetails": {
    "builder": { "id": "$server/${GITHUB_WORKFLOW_REF:-local}" },
    "metadata": { "invocationId": "$server/$repository/actions/runs/${GITHUB_RUN_ID:-0}/attempts/${GITHUB_RUN_ATTEMPT:-1}" }
  }
}
JSON
}

# sign REFERENCE [SBOM]: signs an image or a chart by its digest, and attests its provenance and what is in it.
sign() {
    local reference=$1 sbom=${2:-}
    $cosign sign "${signer[@]}" "$reference"
    $cosign attest "${signer[@]}" --type slsaprovenance1 --predicate "$out/provenance.json" "$reference"
    [[ -z $sbom ]] || $cosign attest "${signer[@]}" --type cyclonedx --predicate "$sbom" "$reference"
}

# highest PREFIX: the highest version among the tags of the image that begin with it. Releases only: no 0.2.0-rc.1.
highest() {
    skopeo list-tags "${at[@]}" "docker://$IMAGE" | sed -n 's/^ *"\([0-9]*\.[0-9]*\.[0-9]*\)",*$/\1/p' |
        awk -v prefix="$1" 'index($0, prefix) == 1' | sort --version-sort | tail -n 1
}

# manifest REFERENCE: into $out/manifest, empty if the registry has no such tag.
manifest() {
    skopeo inspect "${at[@]}" --raw "docker://$1" >"$out/manifest" 2>"$out/error" || {
        grep --quiet 'manifest unknown\|name unknown' "$out/error" || fail "$1: $(cat "$out/error")"
        : >"$out/manifest"
    }
}

# digest REFERENCE: at the registry, or nothing.
digest() {
    manifest "$1"
    [[ ! -s $out/manifest ]] || echo "sha256:$(sha256sum "$out/manifest" | cut -d ' ' -f 1)"
}

image() {
    local ours there tag machine
    ours=sha256:$(sha256sum target/dist-image/manifest.json | cut -d ' ' -f 1)
    there=$(digest "$IMAGE:$version")
    [[ -z $there || $there == "$ours" ]] ||
        fail "$IMAGE:$version is published as $there, and this is $ours: a version never changes, so raise it"
    skopeo copy "${to[@]}" --quiet --all --preserve-digests dir:target/dist-image "docker://$IMAGE:$version"
    [[ $(digest "$IMAGE:$version") == "$ours" ]] || fail "the registry has changed the image: $(digest "$IMAGE:$version"), not $ours"
    for tag in "${version%.*}" latest; do
        if [[ $(highest "$([[ $tag == latest ]] || echo "$tag.")") == "$version" ]]; then
            skopeo copy "${from[@]}" "${to[@]}" --quiet --all "docker://$IMAGE:$version" "docker://$IMAGE:$tag"
            say "$IMAGE:$tag is $version"
        else
            say "$IMAGE:$tag stays at a higher version"
        fi
    done
    sign "$IMAGE@$ours"
    while read -r machine there; do
        sign "$IMAGE@$there" target/dist/tollgate-"$version"-"$machine"-unknown-linux-musl.cdx.json
    done < <(python3 - <<'PYTHON'
import json
machines = {"amd64": "x86_64", "arm64": "aarch64"}
for image in json.load(open("target/dist-image/manifest.json"))["manifests"]:
    print(machines[image["platform"]["architecture"]], image["digest"])
PYTHON
    )
    # shellcheck disable=SC2016 # marks for Markdown
    printf '\nThe image, for x86_64 and aarch64: `%s:%s@%s`\n' "$IMAGE" "$version" "$ours" >>"$out/notes.md"
}

chart() {
    local charts=${CHARTS:-${IMAGE%/*}/charts} package=target/dist-chart/tollgate-$version.tgz digest
    manifest "$charts/tollgate:$version"
    if [[ ! -s $out/manifest ]]; then
        $helm push "${plain[@]}" "$package" "oci://$charts"
    elif ! grep --quiet "$(sha256sum "$package" | cut -d ' ' -f 1)" "$out/manifest"; then
        fail "$charts/tollgate:$version is published, and is another chart: a version never changes, so raise it"
    fi
    digest=$(digest "$charts/tollgate:$version")
    sign "$charts/tollgate@$digest"
    # shellcheck disable=SC2016 # marks for Markdown
    printf '\nThe chart: `helm install tollgate oci://%s/tollgate --version %s` (`%s`)\n' "$charts" "$version" "$digest" \
        >>"$out/notes.md"
}

rm -rf "$out"
mkdir -p "$out"
cp "${NOTES:?name the file with the notes of the release}" "$out/notes.md"
provenance >"$out/provenance.json"
$cosign attest-blob "${signer[@]}" --type slsaprovenance1 --predicate "$out/provenance.json" \
    --bundle "$out/SHA256SUMS.sigstore.json" target/dist/SHA256SUMS
if [[ -n ${IMAGE:-} ]]; then
    image
    chart
else
    say "IMAGE is not set: no image and no chart are published"
fi
rm -f "$out/manifest" "$out/error"
say "done: see target/publish"
