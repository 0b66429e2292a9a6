//! A pool of `PyTorch` with its own allocator, on the emulated driver, under policies with and
//! without pages.

use crate::common::{Link, build, emulated, root, succeed, without_errors};
use std::ffi::OsStr;

#[test]
fn a_pool_of_supplied_segments_has_no_pages_under_any_policy() {
    let sources = root().join("tests/c_abi/torch");
    let Some(built) = build(&sources.join("supplied.cpp"), Link::Shared, &[OsStr::new("-I"), sources.as_os_str()])
    else {
        return;
    };
    for (config, memory) in [
        ("policy:stitched", "pages"),
        ("policy:stitched,slack:0,strict_stall:True", "pages"),
        ("expandable_segments:True", "pages"),
        ("policy:caching", "segments"),
    ] {
        let mut command = emulated(&built);
        command.env("CACHALOT_CONF", config).args(["", memory]);
        succeed(&mut command);
        if config == "policy:stitched" {
            without_errors(&command);
        }
    }
}
