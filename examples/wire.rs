//! Compiles `proto/` into `proto/generated`: the messages and services in Rust, and the descriptors of the served
//! protocol for gRPC reflection. A build only reads the result, so it needs no compiler of protocols. `make pages` runs
//! this.

use std::error::Error;
use std::path::Path;

use protox::prost::Message as _;

#[allow(dead_code, reason = "tests/it/wire.rs generates elsewhere")]
fn main() -> Result<(), Box<dyn Error>> {
    generate(Path::new("proto/generated"))
}

/// Writes the generated files into a folder that exists.
pub fn generate(folder: &Path) -> Result<(), Box<dyn Error>> {
    // Reflection shows only the served protocol; code is also generated for the protocols of other servers.
    let served = ["envoy/service/ratelimit/v3/rls.proto"];
    let asked = ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    std::fs::write(folder.join("descriptors.bin"), protox::compile(served, ["proto"])?.encode_to_vec())?;
    let descriptors = protox::compile(served.into_iter().chain(asked), ["proto"])?;
    tonic_prost_build::configure()
        .codec_path("crate::wire::codec::Codec")
        // Texts of these messages are short, and `String` would need an allocation for each: see src/wire/request.rs.
        .extern_path(".envoy.service.ratelimit.v3.RateLimitRequest", "crate::wire::RateLimitRequest")
        .extern_path(
            ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            "crate::wire::rate_limit_descriptor::Entry",
        )
        .include_file("wire.rs")
        .out_dir(folder)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
