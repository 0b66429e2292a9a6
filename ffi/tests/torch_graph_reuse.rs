//! Blocks that a captured graph reuses before the capture ends, on the emulated driver in the
//! manner of `PyTorch`.

use crate::common::{Link, WARNINGS, build, emulated, library_path, root, scratch, skip, succeed, without_errors};
use cachalot_emulated_driver::install::install;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const CONFIGS: [&str; 3] = ["policy:caching", "policy:caching,parity:False", "expandable_segments:True"];

/// How a call fails: whether all later ones do, too, and whether before it acts.
const MANNERS: [(bool, &str); 3] = [(false, "before"), (false, "after"), (true, "before")];

/// Returns the program and the plug-in that it loads. `None` without a compiler.
fn built() -> Option<(PathBuf, PathBuf)> {
    static BUILT: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let make = || {
        let shim = scratch("torch_graph_reuse").join("libcachalot_torch.so");
        let mut command = Command::new("c++");
        command.args(["-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]).args(WARNINGS);
        command.arg("-I").arg(root().join("include")).arg(root().join("ffi/torch/shim.cpp"));
        command.arg("-L").arg(library_path()).arg("-lcachalot").arg("-o").arg(&shim);
        command.arg(format!("-Wl,-rpath,{}", library_path().display()));
        if succeed(&mut command).is_none() {
            skip("blocks that a graph reuses", "no C++ compiler");
            return None;
        }
        let sources = root().join("tests/c_abi/torch");
        let flags = [OsStr::new("-I"), sources.as_os_str()];
        Some((build(&sources.join("graph_reuse.cpp"), Link::Shared, &flags)?, shim))
    };
    BUILT.get_or_init(make).clone()
}

#[test]
fn a_graph_reuses_a_block_behind_the_join_of_all_streams_that_used_it() {
    let Some((program, shim)) = built() else { return };
    // A driver older than CUDA 12.3 has the first version of a function only.
    let folder = scratch("torch_graph_reuse").join("older");
    let older = install(&folder, &["cuGraphNodeGetDependencies_v2"]).expect("the emulated driver is built");
    for config in CONFIGS {
        let mut command = emulated(&program);
        succeed(command.env("CACHALOT_CONF", config).arg(&shim));
        if config == CONFIGS[0] {
            without_errors(&command);
            succeed(command.env("CACHALOT_LIBCUDA", &older).env("LD_LIBRARY_PATH", &folder));
        }
    }
}

/// What is not known is not reused, and nothing is lost.
#[test]
fn a_graph_whose_order_the_driver_does_not_tell_keeps_its_blocks() {
    let Some((program, shim)) = built() else { return };
    let folder = scratch("torch_graph_reuse").join("without");
    let names = ["cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependencies"];
    let without = install(&folder, &names).expect("the emulated driver is built");
    let mut command = emulated(&program);
    command.args([shim.as_os_str(), OsStr::new("")]);
    succeed(command.env("CACHALOT_LIBCUDA", &without).env("LD_LIBRARY_PATH", &folder));
    // The program itself asks for the state of captures, too, except during a free.
    for (function, most, during_frees) in
        [("cuStreamGetCaptureInfo_v2", 4, true), ("cuGraphNodeGetDependencies_v2", 16, false)]
    {
        for (nth, (persistent, when)) in (1..=most).flat_map(|nth| MANNERS.map(|manner| (nth, manner))) {
            let plan = format!(
                r#"[{{"fn": "{function}", "nth": {nth}, "persistent": {persistent}, "when": "{when}", "code": 999}}]"#
            );
            let mut command = emulated(&program);
            let (argument, variable) = if during_frees { (plan.as_str(), "[]") } else { ("", plan.as_str()) };
            command.arg(&shim).arg(argument).env("CACHALOT_EMU_PLAN", variable);
            succeed(command.env("CACHALOT_CONF", CONFIGS[nth % CONFIGS.len()]));
        }
    }
}
