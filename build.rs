//! Compiles `proto/` into Rust, keeps the descriptors of what is served for gRPC reflection, and notes what is built:
//! from which commit, for which target.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // What is served, for reflection; and with it what is asked of others.
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

/// What TOLLGATE_COMMIT says, for those who build where there is no git, or else git.
fn commit() -> Result<String, env::VarError> {
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    match env::var("TOLLGATE_COMMIT") {
        Ok(told) if !told.is_empty() => return Ok(told),
        _ => {}
    }
    // Who develops would wait for everything to be compiled anew after each commit.
    if env::var("PROFILE")? == "debug" {
        return Ok("unknown: a debug build".to_owned());
    }
    let folder = Path::new(".");
    for file in commit::SOURCES.map(str::to_owned).into_iter().chain(commit::heads(folder)) {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(commit::commit(folder))
}
