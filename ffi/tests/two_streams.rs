//! What the driver is asked for a block that two streams use.

use crate::common::{Link, build, emulated, root, succeed};
use std::ffi::OsStr;

/// The functions that concern events, streams and contexts, and the most calls of each in 1000 cycles with an event for
/// each block. A tenth of the events is not complete at the first question.
const CALLS: [(&str, u32); 8] = [
    ("cuEventCreate", 0),
    ("cuEventRecord", 1000),
    ("cuEventQuery", 1100),
    ("cuStreamIsCapturing", 1000),
    ("cuStreamGetId", 1000),
    ("cuThreadExchangeStreamCaptureMode", 2200),
    ("cuCtxGetCurrent", 0),
    ("cuCtxPushCurrent_v2", 0),
];

#[test]
fn a_block_of_two_streams_costs_six_calls_and_gathered_ones_share_them() {
    let sources = root().join("tests/c_abi/torch");
    let Some(built) = build(&sources.join("two_streams.cpp"), Link::Shared, &[OsStr::new("-I"), sources.as_os_str()])
    else {
        return;
    };
    // Where frees are gathered, each request that asks covers several of them.
    for (config, share) in [("policy:caching", 1), ("policy:caching,parity:False", 8), ("policy:stitched", 8)] {
        // Work is done in the order of a seed, so that the calls are the same in every run.
        let mut command = emulated(&built);
        command.env("CACHALOT_EMU_STEP", "1").arg(config);
        for (function, most) in CALLS {
            command.args([function, &most.div_ceil(share).to_string()]);
        }
        succeed(&mut command);
    }
}
