//! The `tollgate` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forgo_huge_pages();
    tollgate::command::run(std::env::args_os())
}

/// Does without transparent huge pages, which mimalloc asks for: the first request to touch one would wait until the
/// kernel has cleared 2 MiB.
#[cfg(target_os = "linux")]
fn forgo_huge_pages() {
    // Where the kernel does not know of this, there is nothing to be done.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

#[cfg(not(target_os = "linux"))]
fn forgo_huge_pages() {}
