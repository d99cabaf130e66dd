#!/usr/bin/env bash
# Builds the binary for each target that is named, linked with all that it needs but the kernel.
#
#   scripts/static.sh x86_64-unknown-linux-musl      makes target/x86_64-unknown-linux-musl/release/tollgate
#
# Nothing of where it is built goes into it, so that the same sources, Rust and Zig can give the same bytes elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/test-tools.sh zig cargo-zigbuild targets
export PATH=$PWD/target/tools/bin:$PATH
# Nothing of this machine goes into what others get.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$PWD=tollgate --remap-path-prefix=$cargo_home=cargo"
export CFLAGS="-ffile-prefix-map=$PWD=tollgate -ffile-prefix-map=$cargo_home=cargo"
# What is written in C is compiled anew when the time that it may name changes: here that is not the commit's.
export SOURCE_DATE_EPOCH=0

# All in one run: the last step of each keeps one core busy for minutes, and they share what runs here.
cargo zigbuild --locked --release --bin tollgate "${@/#/--target=}"
