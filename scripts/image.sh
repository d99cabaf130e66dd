#!/usr/bin/env bash
# Builds the image tollgate:VERSION from the binaries of `make dist`, with CONTAINER: buildah or podman make one list of images for
# both kinds of machine, docker an image for its own.
#
#   IMAGE=name:tag    another name
#   SOURCE=address    where the sources are, for the image's labels
#   SAVE=folder       saves the list there as well (buildah and podman, and skopeo)
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
readonly version container=${CONTAINER:-docker} image=${IMAGE:-tollgate:$version} save=${SAVE:-}
: "${SOURCE_DATE_EPOCH:?use make image, which says what time the files get}"
declare -rA targets=([amd64]=x86_64-unknown-linux-musl [arm64]=aarch64-unknown-linux-musl)

case $container in
docker) machines=("$(docker version --format '{{.Server.Arch}}')") ;;
podman | buildah) machines=(amd64 arm64) ;;
*)
    echo "image: CONTAINER=$container: use docker, podman or buildah" >&2
    exit 1
    ;;
esac

# context MACHINE: the folder that its image is made from.
context() {
    local folder=target/image/$1
    mkdir -p "$folder/deploy/image"
    cp --recursive deploy/image/bin "$folder/deploy/image"
    cp Dockerfile "target/${targets[$1]}/release/tollgate" "$folder"
    echo "$folder"
}

labels() {
    local label revision
    revision=$(git rev-parse HEAD 2>/dev/null || true)
    for label in version="$version" revision="$revision" source="${SOURCE:-}" \
        created="$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"; do
        [[ -z ${label#*=} ]] || printf '%s\n' --label "org.opencontainers.image.$label"
    done
}

# shellcheck disable=SC2046 # one word each
scripts/static.sh $(for machine in "${machines[@]}"; do echo "${targets[$machine]}"; done)
mapfile -t labels < <(labels)
if [[ $container == docker ]]; then
    exec docker build --tag "$image" "${labels[@]}" "$(context "${machines[0]}")"
fi
# A list of an earlier time would get longer; there may be none.
"$container" manifest rm "$image" >/dev/null 2>&1 || true
"$container" manifest create "$image" >/dev/null
for machine in "${machines[@]}"; do
    # Docker's format, because that of the OCI knows no health check.
    "$container" build --quiet --format docker --platform "linux/$machine" --timestamp "$SOURCE_DATE_EPOCH" \
        --manifest "$image" "${labels[@]}" "$(context "$machine")"
done
if [[ -n $save ]]; then
    rm -rf "$save" "$save.plain"
    # Version 2, schema 2 is Docker's format again.
    "$container" manifest push --quiet --all --format v2s2 "$image" "dir:$save.plain"
    # Compressed here and not at each push, so that the digest is known before anything is published.
    skopeo copy --quiet --all --dest-compress "dir:$save.plain" "dir:$save"
    rm -rf "$save.plain"
fi
