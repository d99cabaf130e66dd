#!/usr/bin/env bash
# Makes what a release consists of, in target/dist: for each target an archive and the list of what is in its binary (an SBOM in
# CycloneDX), and the checksums of all. On Linux, by a toolchain from rustup.
#
#   make dist                                      for both kinds of machine
#   make dist TARGETS=x86_64-unknown-linux-musl    for one
set -euo pipefail
cd "$(dirname "$0")/.."

readonly dist=$PWD/target/dist
read -ra targets <<<"${TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl}"
: "${SOURCE_DATE_EPOCH:?use make dist, which says what time the files get}"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
native=$PWD/target/$(uname -m)-unknown-linux-musl/release/tollgate

# Where cargo unpacks crates.
readonly sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
# Crates that come without the text of their licence: what comes from the same repository, in the same version, has it.
declare -rA licensed_as=([tonic-prost]=tonic [opentelemetry]=opentelemetry-proto [opentelemetry_sdk]=opentelemetry-proto
    [opentelemetry-http]=opentelemetry-proto [opentelemetry-otlp]=opentelemetry-proto)
# Sorted alike everywhere.
export LC_ALL=C

say() { echo "dist: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

# What the binary itself can tell, told by the one that runs here: completions and the manual are the same for all.
described() {
    local folder=$1
    mkdir -p "$folder/completions"
    "$native" completions bash >"$folder/completions/tollgate.bash"
    "$native" completions zsh >"$folder/completions/_tollgate"
    "$native" completions fish >"$folder/completions/tollgate.fish"
    "$native" completions powershell >"$folder/completions/_tollgate.ps1"
    "$native" completions elvish >"$folder/completions/tollgate.elv"
    "$native" man "$folder/man"
}

# notices TARGET: the licences of all that is linked in, which ask to be passed on with it: each text once, below those who share it.
# No program runs once a crate: hundreds of crates have hundreds of files.
notices() {
    local crates crate licence name version folder sum file
    local -A carriers=() licensed=() texts=() below=()
    crates=$(linked "$1")
    echo "Tollgate's binary is made from the following, each under its own licence."
    while IFS='|' read -r crate licence; do
        echo "- $crate: $licence"
        read -r name version <<<"$crate"
        folder=${licensed_as[$name]:-$name}-$version
        carriers[$folder]+=" $crate,"
    done <<<"$crates"
    echo "- the standard library of Rust: see THIRD-PARTY-LICENSES-rust.html"
    echo "- musl: MIT"
    while read -r sum file; do
        folder=${file#"$sources"/*/}
        folder=${folder%%/*}
        licensed[$folder]=yes
        texts[$sum]=$file
        # The text may be in a folder twice.
        [[ ${below[$sum]:-} == *"${carriers[$folder]}"* ]] || below[$sum]+=${carriers[$folder]}
    done < <(licences "${!carriers[@]}")
    for folder in "${!carriers[@]}"; do
        [[ -v licensed[$folder] ]] || fail "no licence in $folder: name a crate of its repository that has it, in licensed_as"
    done
    # In the order of the crates that carry them, the same in every run.
    for sum in "${!texts[@]}"; do echo "${below[$sum]# }|${texts[$sum]}"; done | sort | while IFS='|' read -r crates file; do
        printf '\n==== %s\n\n' "${crates%,}"
        cat "$file"
    done
    printf '\n==== musl\n\n'
    cat target/tools/zig-*/ziglang/lib/libc/musl/COPYRIGHT
}

# linked TARGET: the crates, as "name version|licence".
linked() {
    cargo tree --locked --package tollgate --target "$1" --edges normal --prefix none --format '{p}|{l}' |
        sed --regexp-extended --quiet '/^tollgate(-engine)? /d; s/^([^ ]+) v([^ |]+)[^|]*[|](.*)$/\1 \2|\3/; s/ \(\*\)$//; p' | sort --unique
}

# licences NAME-VERSION...: the files with the licences of crates, each behind its checksum, in the order of their names.
licences() {
    local crate folders=()
    for crate; do folders+=("$sources"/*/"$crate"); done
    find "${folders[@]}" -type f -iregex '.*/\(licen[cs]e\|copying\|copyright\|notice\)[^/]*' ! -name '*.rs' -exec sha256sum {} + |
        sort --key 2
}

# sbom TARGET FILE: what is linked into the binary, by name, version, licence and checksum, and the few crates that features which
# only tests turn on would add; without the folder where it was built. SOURCE_DATE_EPOCH keeps the clock and chance out of it.
sbom() {
    local target=$1 file=$2
    PATH=$PWD/target/tools/bin:$PATH cargo cyclonedx --quiet --format json --spec-version 1.5 \
        --describe binaries --no-build-deps --target "$target"
    sed "s|file://$PWD|file://.|g" tollgate_bin.cdx.json >"$file"
    rm tollgate_bin.cdx.json
}

archive() {
    local target=$1 name=tollgate-$version-$1
    local folder=$dist/.unpacked/$name
    mkdir -p "$folder"
    cp "target/$target/release/tollgate" CHANGELOG.md Dockerfile .dockerignore LICENSE README.md SECURITY.md "$folder"
    cp -r config docs deploy "$folder"
    described "$folder"
    notices "$target" >"$folder/THIRD-PARTY-LICENSES"
    cp "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" "$folder/THIRD-PARTY-LICENSES-rust.html"
    sbom "$target" "$dist/$name.cdx.json"
    cp "$dist/$name.cdx.json" "$folder/sbom.cdx.json"
    chmod -R u=rwX,go=rX "$folder"
    tar --directory "$dist/.unpacked" --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner "$name" | gzip --no-name --best >"$dist/$name.tar.gz"
}

scripts/static.sh "${targets[@]}"
scripts/test-tools.sh cargo-cyclonedx
[[ -x $native ]] ||
    fail "completions and the manual are told by a binary that runs here: name $(uname -m)-unknown-linux-musl in TARGETS, too"
rm -rf "$dist"
for target in "${targets[@]}"; do
    archive "$target"
done
rm -rf "$dist/.unpacked"
(cd "$dist" && sha256sum tollgate-* >SHA256SUMS)
say "$("$native" --version), in target/dist:"
(cd "$dist" && du --apparent-size --block-size=1K -- *)
