//! Compiles `proto/` into Rust, and keeps the descriptors for gRPC reflection.

use std::error::Error;
use std::path::PathBuf;

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::wire::codec::Codec")
        .include_file("wire.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
