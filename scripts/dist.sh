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

say() { echo "dist: $*"; }

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

# The licences of all that is linked in, which ask to be passed on with it: each text once, below those who share it.
notices() {
    local target=$1 crate licence text sum
    local -A crates texts=()
    echo "Tollgate's binary contains the following, each under its own licence."
    while IFS='|' read -r crate licence; do
        echo "- $crate: $licence"
        while read -r text; do
            sum=$(sha256sum <"$text")
            crates[$sum]+=" $crate,"
            texts[$sum]=$text
        done < <(licences_of "${crate/ /-}")
    done < <(linked "$target")
    echo "- the standard library of Rust: MIT OR Apache-2.0"
    echo "- musl: MIT"
    # In the order of the crates that carry them, the same in every run.
    for sum in "${!texts[@]}"; do echo "${crates[$sum]# }|${texts[$sum]}"; done | sort | while IFS='|' read -r crate text; do
        printf '\n==== %s\n\n' "${crate%,}"
        cat "$text"
    done
    printf '\n==== the standard library of Rust\n\n'
    cat "$(rustc --print sysroot)/share/doc/rust/licenses/MIT.txt"
    printf '\n==== musl\n\n'
    cat target/tools/zig-*/ziglang/lib/libc/musl/COPYRIGHT
}

# linked TARGET: the crates, as "name version|licence".
linked() {
    cargo tree --locked --target "$1" --edges normal --prefix none --format '{p}|{l}' |
        sed --regexp-extended --quiet '/^tollgate /d; s/^([^ ]+) v([^ |]+)[^|]*[|](.*)$/\1 \2|\3/; s/ \(\*\)$//; p' | sort --unique
}

# licences_of NAME-VERSION: the files with its licences.
licences_of() {
    local source
    source=$(compgen -G "${CARGO_HOME:-$HOME/.cargo}/registry/src/*/$1" | head -n 1)
    find "$source" -type f -iregex '.*/\(licen[cs]e\|copying\|copyright\|notice\)[^/]*' ! -name '*.rs' | sort
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
    sbom "$target" "$dist/$name.cdx.json"
    cp "$dist/$name.cdx.json" "$folder/sbom.cdx.json"
    chmod -R u=rwX,go=rX "$folder"
    tar --directory "$dist/.unpacked" --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner "$name" | gzip --no-name --best >"$dist/$name.tar.gz"
}

scripts/static.sh "${targets[@]}"
scripts/test-tools.sh cargo-cyclonedx
[[ -x $native ]] || {
    say "completions and the manual are told by a binary that runs here: name $(uname -m)-unknown-linux-musl in TARGETS, too" >&2
    exit 1
}
rm -rf "$dist"
for target in "${targets[@]}"; do
    archive "$target"
done
rm -rf "$dist/.unpacked"
(cd "$dist" && sha256sum tollgate-* >SHA256SUMS)
say "$("$native" --version), in target/dist:"
(cd "$dist" && du --apparent-size --block-size=1K -- *)
