//! Compiles `proto/` into Rust, stores the descriptors of the served protocol for gRPC reflection, and records the
//! commit and the target of the build.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Reflection shows only the served protocol; code is also generated for the protocols of other servers.
    let served = ["envoy/service/ratelimit/v3/rls.proto"];
    let asked = ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    let out = PathBuf::from(env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), protox::compile(served, ["proto"])?.encode_to_vec())?;
    let descriptors = protox::compile(served.into_iter().chain(asked), ["proto"])?;
    tonic_prost_build::configure()
        .codec_path("crate::wire::codec::Codec")
        .include_file("wire.rs")
        .compile_fds(descriptors)?;

    println!("cargo::rustc-env=TOLLGATE_COMMIT={}", commit()?);
    println!("cargo::rustc-env=TOLLGATE_TARGET={}", env::var("TARGET")?);
    Ok(())
}

/// Returns the commit: from TOLLGATE_COMMIT, for builds without git, or else from git.
fn commit() -> Result<String, env::VarError> {
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    match env::var("TOLLGATE_COMMIT") {
        Ok(told) if !told.is_empty() => return Ok(told),
        _ => {}
    }
    // In development, a new commit would force everything to be compiled again.
    if env::var("PROFILE")? == "debug" {
        return Ok("unknown: a debug build".to_owned());
    }
    let folder = Path::new(".");
    for file in commit::SOURCES.map(str::to_owned).into_iter().chain(commit::heads(folder)) {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(commit::commit(folder))
}
