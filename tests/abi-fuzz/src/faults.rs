//! Fault plans: failing and slow driver calls.

use fastrand::Rng;
use serde_json::{Value, json};

/// Functions that can fail. The list has no functions that make or destroy streams and captures,
/// because only the program calls them.
const FUNCTIONS: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamIsCapturing",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetId",
    "cuMemGetInfo_v2",
    "cuMemExportToShareableHandle",
];

/// Functions that are slow at times. A second thread may act between two of these calls.
const SLOW: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressFree",
    "cuEventRecord",
    "cuStreamSynchronize",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemHostRegister_v2",
];

/// Returns a fault plan as JSON; empty for none.
pub(crate) fn plan(rng: &mut Rng, faults: bool, slow: bool) -> String {
    let mut rules: Vec<Value> = Vec::new();
    if faults {
        let count = rng.usize(1..4);
        rules.extend((0..count).map(|_| fault(rng)));
    }
    if slow {
        for _ in 0..rng.usize(1..4) {
            let function = SLOW[rng.usize(..SLOW.len())];
            let when = if rng.bool() { "before" } else { "after" };
            let delay_us = 1_u64 << rng.u8(5..11);
            rules.push(json!({"fn": function, "percent": rng.u64(2..30), "persistent": true, "delay_us": delay_us, "when": when}));
        }
    }
    if rules.is_empty() { String::new() } else { Value::Array(rules).to_string() }
}

/// Returns a rule for failing calls.
fn fault(rng: &mut Rng) -> Value {
    let function = FUNCTIONS[rng.usize(..FUNCTIONS.len())];
    let code = if rng.bool() { 2 } else { 999 };
    // A call that acts and fails loses what it made, so most faults come before the call acts. A
    // mapping that a call has not removed exists: that is all that an error of `cuMemUnmap` can
    // mean.
    let when = if rng.u8(..6) == 0 && function != "cuMemUnmap" { "after" } else { "before" };
    if rng.bool() {
        json!({"fn": function, "nth": rng.u64(1..200), "count": rng.u64(1..6), "code": code, "when": when})
    } else {
        json!({"fn": function, "percent": rng.u64(1..30), "persistent": true, "code": code, "when": when})
    }
}
