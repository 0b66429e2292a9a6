//! No function of NVIDIA's own `cuda.h` that touches memory is missing.
//!
//! Needs the header's folder in `CACHALOT_CUDA_H_DIR`; `scripts/setup/cuda_header.sh` fetches a
//! pinned version.

use crate::names;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

/// Returns the symbols of the functions in the header that `wanted` names, with the variants for
/// programs whose stream 0 is the thread's own.
fn symbols(header: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    // `#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)`: the symbol of the newest version of
    // a name.
    let mut newest: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut symbols = BTreeSet::new();
    for line in header.lines().map(str::trim_start) {
        if let Some((name, symbol)) = line.strip_prefix("#define ").and_then(|line| line.split_once(' ')) {
            for (call, ending) in [("__CUDA_API_PTDS(", "_ptds"), ("__CUDA_API_PTSZ(", "_ptsz"), ("cu", "")] {
                if let Some(rest) = symbol.trim_start().strip_prefix(call) {
                    let symbol = if ending.is_empty() { symbol.trim() } else { rest.trim_end().trim_end_matches(')') };
                    newest.insert(name, (symbol, ending));
                }
            }
        } else if let Some(name) = line.strip_prefix("#undef ") {
            // What follows declares the older versions.
            newest.remove(name.trim_end());
        } else if let Some((_, line)) = line.split_once("CUresult CUDAAPI ")
            && let Some((name, _)) = line.split_once('(')
            && wanted(name)
        {
            let (symbol, ending) = newest.get(name).copied().unwrap_or((name, ""));
            symbols.extend([symbol.to_owned(), format!("{symbol}{ending}")]);
        }
    }
    symbols
}

#[test]
fn every_function_of_the_header_that_touches_memory_has_a_row() {
    const FAMILIES: [&str; 12] = [
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuMemDiscard",
        "cuMemBatchDecompress",
        "cuLaunch",
        "cuGraphLaunch",
        "cuGraphUpload",
        "cuStreamWriteValue",
        "cuStreamWaitValue",
        "cuStreamBatchMemOp",
        "cuStreamAttachMem",
    ];
    let Ok(folder) = std::env::var("CACHALOT_CUDA_H_DIR") else {
        // Written to stderr directly: the test harness would swallow the line of a test that
        // passes.
        let _ = writeln!(std::io::stderr(), "skipped: functions that touch memory (CACHALOT_CUDA_H_DIR is not set)");
        return;
    };
    let header = std::fs::read_to_string(Path::new(&folder).join("cuda.h")).expect("the header");
    // A function of the host touches no memory of a device.
    let touches = |name: &str| name != "cuLaunchHostFunc" && FAMILIES.iter().any(|family| name.starts_with(family));
    let symbols = symbols(&header, touches);
    let known = ["cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", "cuLaunchKernel_ptsz", "cuLaunchGrid"];
    assert!(known.iter().all(|&known| symbols.contains(known)), "{symbols:?}");
    let names = names();
    let missing: Vec<&String> = symbols.difference(&names).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
