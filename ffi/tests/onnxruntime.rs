//! `cachalot_ort.h`, ONNX Runtime's table of an allocator: as ONNX Runtime calls it, on simulated
//! devices, and a session of the real library in the memory of the emulated driver.
//!
//! `CACHALOT_ONNXRUNTIME` names the folder of the library, which `scripts/setup/onnxruntime.sh`
//! downloads. The package has no header: `tests/c_abi/ort` declares what is used of it.

use crate::common::{
    WARNINGS, compiler, emulated, library_path, root, scratch, skip, succeed, without_errors, without_leaks,
};
use std::path::PathBuf;
use std::process::Command;

/// The versions of the interface that changed the table, the oldest supported one before.
const VERSIONS: [&str; 4] = ["13", "18", "23", "25"];

/// Builds a program over the header for a version of ONNX Runtime. `None` without a compiler.
fn built(source: &str, version: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = root().join(source);
    let program = scratch("onnxruntime").join(format!("{}-{version}", source.file_stem().expect("a name").display()));
    let mut command = compiler(&source);
    command.arg(format!("-DORT_API_VERSION={version}")).arg("-isystem").arg(root().join("tests/c_abi/ort"));
    command.arg(&source).arg("-L").arg(library_path()).args(["-lcachalot", "-ldl"]).args(flags);
    command.arg(format!("-Wl,-rpath,{}", library_path().display())).arg("-o").arg(&program);
    if succeed(&mut command).is_none() {
        skip("the table for ONNX Runtime", "no compiler");
        return None;
    }
    Some(program)
}

/// Returns the folder of ONNX Runtime's library, or prints a line about the skipped test.
fn library() -> Option<PathBuf> {
    let folder = std::env::var_os("CACHALOT_ONNXRUNTIME").map(PathBuf::from);
    if folder.is_none() {
        skip("a session of ONNX Runtime", "CACHALOT_ONNXRUNTIME is not set: scripts/setup/onnxruntime.sh");
    }
    folder
}

#[test]
fn the_table_of_every_version_serves_requests_and_counts_them() {
    for version in VERSIONS {
        let Some(program) = built("tests/c_abi/ort/requests.c", version, &[]) else { return };
        let mut command = Command::new(&program);
        command.env("CACHALOT_LIBCUDA", "/nonexistent");
        assert_eq!(succeed(&mut command).as_deref(), Some("requests: well\n"), "{version}");
        without_errors(&command);
    }
}

#[test]
fn the_header_compiles_as_cpp_behind_onnx_runtimes() {
    let file = scratch("onnxruntime").join("header.cpp");
    let text = "#include <onnxruntime_c_api.h>\n#include <cachalot_ort.h>\n";
    std::fs::write(&file, text).expect("the test's folder can be written");
    for (standard, version) in
        ["c++17", "c++20"].into_iter().flat_map(|standard| VERSIONS.map(|version| (standard, version)))
    {
        let mut command = Command::new("c++");
        command.arg(format!("-std={standard}")).args(WARNINGS).arg("-Wno-unused-function").arg("-fsyntax-only");
        command.arg(format!("-DORT_API_VERSION={version}")).arg("-I").arg(root().join("include"));
        if succeed(command.arg("-I").arg(root().join("tests/c_abi/ort")).arg(&file)).is_none() {
            return skip("the table for ONNX Runtime in C++", "no C++ compiler");
        }
    }
}

#[test]
fn a_session_of_the_real_library_computes_in_the_tables_memory() {
    let Some(library) = library() else { return };
    let Some(program) = built("tests/c_abi/ort/requests.c", "25", &[]) else { return };
    let mut command = emulated(&program);
    command.arg(library.join("libonnxruntime.so.1")).env("CACHALOT_EMU_HOST_ACCESS", "1");
    assert_eq!(without_leaks(&mut command, "onnxruntime").as_deref(), Some("requests: well\n"));
}

#[test]
fn the_example_shares_memory_with_the_real_library() {
    let Some(library) = library() else { return };
    let (folder, search) = (format!("-L{}", library.display()), format!("-Wl,-rpath,{}", library.display()));
    let flags = [folder.as_str(), "-lonnxruntime", &search];
    let Some(program) = built("examples/ort/tensor.c", "25", &flags) else { return };
    let said = without_leaks(&mut emulated(&program), "ort_tensor").expect("it was just built");
    assert!(said.starts_with("tensor: the same memory for the tensor and the block, "), "{said}");
}
