//! The driver calls for a block that two streams use.

use crate::common::{Link, build, emulated, root, succeed};
use std::ffi::OsStr;

/// The functions that concern events, streams and contexts, and the most calls of each in 1000
/// cycles: with an event for each block, of which about a tenth is not complete at the first
/// question, by chance, and where frees are gathered.
const CALLS: [(&str, u32, u32); 9] = [
    ("cuEventCreate", 0, 0),
    ("cuEventRecord", 1000, 0),
    ("cuEventQuery", 1120, 0),
    ("cuStreamQuery", 0, 282),
    ("cuStreamIsCapturing", 1000, 282),
    ("cuStreamGetId", 1000, 282),
    ("cuThreadExchangeStreamCaptureMode", 2240, 563),
    ("cuCtxGetCurrent", 0, 0),
    ("cuCtxPushCurrent_v2", 0, 0),
];

#[test]
fn a_block_of_two_streams_costs_six_calls_and_gathered_ones_share_them() {
    let sources = root().join("tests/c_abi/torch");
    let Some(built) = build(&sources.join("two_streams.cpp"), Link::Shared, &[OsStr::new("-I"), sources.as_os_str()])
    else {
        return;
    };
    for config in ["policy:caching", "policy:caching,parity:False", "policy:stitched"] {
        // Work is done in the order of a seed, so that the calls are the same in every run.
        let mut command = emulated(&built);
        command.env("CACHALOT_EMU_STEP", "1").arg(config);
        for (function, most, gathered) in CALLS {
            let most = if config == "policy:caching" { most } else { gathered };
            command.args([function, &most.to_string()]);
        }
        succeed(&mut command);
    }
}
