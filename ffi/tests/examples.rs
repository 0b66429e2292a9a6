//! The examples in C, C++ and Rust build without a warning and give right results on the emulated
//! driver.
//!
//! Examples with driver calls need NVIDIA's `cuda.h`: `CACHALOT_CUDA_H_DIR` names the folder, and
//! `scripts/setup/cuda_header.sh` downloads the file.

use crate::common::install::{empty, installed};
use crate::common::{
    self, Link, build, emulated, emulated_driver, output, root, simulated, skip, sources, succeed, without_errors,
    without_leaks,
};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Elements of a vector. Few, so that a memory checker ends soon.
const ELEMENTS: &str = "10000";

/// Returns the kernels for the emulated driver, or prints a line about the skipped test.
fn kernels() -> Option<&'static str> {
    const IMAGE_BEGINS: &str = "CACHALOT-EMULATED ";
    let Some(image) = cachalot_kernels::emulated_image() else {
        skip("hosts with kernels", "no C++ compiler");
        return None;
    };
    image.to_str().expect("UTF-8").strip_prefix(IMAGE_BEGINS)
}

/// Returns the compiler flags of a host that includes `cuda.h`, or prints a line about the skipped
/// test.
fn cuda_flags() -> Option<Vec<OsString>> {
    let Some(header) = std::env::var_os("CACHALOT_CUDA_H_DIR") else {
        skip("hosts that include cuda.h", "CACHALOT_CUDA_H_DIR is not set");
        return None;
    };
    let driver = emulated_driver().parent().expect("a folder").as_os_str();
    let kernels = root().join("cuda-kernels/include").into_os_string();
    Some(["-I".into(), kernels, "-isystem".into(), header, "-L".into(), driver.to_owned(), "-lcuda".into()].into())
}

/// Builds a host over the driver.
fn cuda_host(source: &Path) -> Option<PathBuf> {
    let flags = cuda_flags()?;
    build(source, Link::Shared, &flags.iter().map(OsString::as_os_str).collect::<Vec<_>>())
}

/// Prepares a host on the emulated driver, with the host's kernels.
fn command(program: &Path, kernels: &str) -> Command {
    let mut command = emulated(program);
    command.env("CACHALOT_KERNELS", kernels);
    if program.file_stem().is_some_and(|name| name.display().to_string().starts_with("vector_add")) {
        command.arg(ELEMENTS);
    }
    command
}

/// Returns the C hosts with driver calls.
fn c_hosts() -> Vec<PathBuf> {
    let calls_the_driver = |source: &PathBuf| !["cost.c", "plan.c"].iter().any(|host| source.ends_with(host));
    sources("examples/c", "c").into_iter().filter(calls_the_driver).collect()
}

#[test]
fn c_hosts_are_right_and_leave_nothing_behind() {
    let Some(kernels) = kernels() else { return };
    for source in c_hosts() {
        let name = source.file_stem().expect("a name").display().to_string();
        let Some(program) = cuda_host(&source) else { return };
        for (variable, value) in [("CACHALOT_EMU_SEED", "1"), ("CACHALOT_EMU_DELAY_US", "300")] {
            let said = without_leaks(command(&program, kernels).env(variable, value), &format!("{name}-{variable}"));
            assert!(said.is_some_and(|said| said.starts_with(&name)), "{name} says nothing");
        }
    }
}

#[test]
fn c_hosts_are_right_under_a_memory_checker() {
    let Some(kernels) = kernels() else { return };
    for source in c_hosts() {
        let Some(program) = cuda_host(&source) else { return };
        without_errors(&command(&program, kernels));
    }
}

/// Prepares a command that finds the installed library and the emulated driver like a compiler, or
/// prints a line about the skipped test.
fn builder(program: impl AsRef<OsStr>) -> Option<Command> {
    let Some(header) = std::env::var_os("CACHALOT_CUDA_H_DIR") else {
        skip("hosts over the installed library", "CACHALOT_CUDA_H_DIR is not set");
        return None;
    };
    if output(Command::new("pkg-config").arg("--version")).is_none() {
        skip("hosts over the installed library", "no pkg-config");
        return None;
    }
    let mut command = Command::new(program);
    command.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig")).env("CPATH", header);
    command.env("LIBRARY_PATH", emulated_driver().parent().expect("a folder"));
    Some(command)
}

#[test]
fn every_host_is_built_by_the_command_in_the_readme() {
    let examples = root().join("examples");
    let readme = std::fs::read_to_string(examples.join("README.md")).expect("it is there");
    let programs = empty("commands");
    let kinds = [("c", "c"), ("cpp", "cpp"), ("cpp", "cu"), ("rust", "rs")];
    let own = examples.join("torch/torch_minimal.cpp");
    for source in
        kinds.into_iter().flat_map(|(folder, ending)| sources(&format!("examples/{folder}"), ending)).chain([own])
    {
        let source = source.strip_prefix(&examples).expect("it lies there").display().to_string();
        let row = readme.lines().find_map(|line| line.strip_prefix(&format!("| `{source}` | ")));
        let command = row.and_then(|row| row.rsplit('`').nth(1)).unwrap_or_else(|| panic!("{source} has no command"));
        // Cargo builds the Rust host with the tests, and another test runs nvcc for the host that
        // needs nvcc.
        if command.starts_with("cargo ") || command.starts_with("nvcc ") {
            continue;
        }
        let (compile, name) = command.rsplit_once(" -o ").expect("it names the program");
        let Some(mut shell) = builder("sh") else { return };
        let program = programs.join(name);
        succeed(shell.arg("-c").arg(format!("{compile} -o '{}'", program.display())).current_dir(&examples));
        assert!(program.is_file(), "{command}");
    }
}

#[test]
fn the_scripts_build_and_run_every_host() {
    let (examples, out) = (root().join("examples"), empty("scripts"));
    // Programs built by nvcc take long to build and cannot run here.
    let Some(mut build) = builder(examples.join("build.sh")) else { return };
    let said = succeed(build.arg(installed()).arg(&out).env_remove("NVCC")).expect("the script is there");
    assert!(said.contains("libcachalot_host_kernels.so"), "{said}");
    assert!(out.join("torch_minimal.so").is_file());
    let mut run = emulated(&examples.join("run.sh"));
    let said = succeed(run.arg(&out).env("CACHALOT_KERNELS", out.join("libcachalot_host_kernels.so")));
    let said = said.expect("the script is there");
    for host in [
        "vector_add",
        "two_streams",
        "graph_capture",
        "multi_gpu",
        "own_context",
        "kv_cache",
        "paged_attention",
        "plan",
        "resources",
    ] {
        assert!(said.lines().any(|line| line.starts_with(&format!("{host}: "))), "{said}");
    }
}

#[test]
fn the_paged_host_keeps_its_tables_without_device_memory() {
    let Some(program) = cuda_host(&root().join("examples/c/paged_attention.c")) else { return };
    // The program is linked with the driver, which it does not call then.
    let mut simulated = simulated(&program);
    simulated.env("LD_LIBRARY_PATH", emulated_driver().parent().expect("a folder"));
    let said = [succeed(&mut simulated), succeed(&mut emulated(&program))];
    assert!(said.iter().flatten().all(|said| said.starts_with("paged_attention: ")), "{said:?}");
    assert_eq!(said[0], said[1]);
}

#[test]
fn the_cost_host_counts_on_both_kinds_of_devices() {
    let Some(program) = build(&root().join("examples/c/cost.c"), Link::Shared, &[]) else { return };
    for mut command in [simulated(&program), emulated(&program)] {
        let said = succeed(command.arg("2000")).expect("it was just built");
        assert_eq!(said.lines().count(), 7, "{said}");
    }
    without_errors(simulated(&program).arg("50"));
}

#[test]
fn the_plan_host_needs_no_driver() {
    let Some(program) = build(&root().join("examples/c/plan.c"), Link::Shared, &[]) else { return };
    let said = succeed(Command::new(&program).env("CACHALOT_LIBCUDA", "/nonexistent")).expect("it was just built");
    assert!(said.starts_with("plan: 200 buffers of 25904 KiB in "), "{said}");
    let mut command = Command::new(&program);
    command.args(["300", "0"]);
    without_errors(&command);
}

#[test]
fn the_cpp_host_is_right() {
    let source = root().join("examples/cpp/resources.cpp");
    for link in [Link::Shared, Link::Static] {
        let Some(program) = build(&source, link, &[]) else { return };
        succeed(&mut simulated(&program));
        without_leaks(&mut emulated(&program), "resources");
        without_errors(&simulated(&program));
    }
}

#[test]
fn the_hosts_of_the_cuda_runtime_compile() {
    let Some(nvcc) = std::env::var_os("NVCC") else { return skip("hosts of the CUDA runtime", "NVCC is not set") };
    for source in sources("examples/cpp", "cu") {
        let object = common::scratch("programs").join(source.with_extension("o").file_name().expect("a name"));
        let mut command = Command::new(&nvcc);
        command.args(["-std=c++17", "-Werror", "all-warnings", "-c", "-arch=sm_80"]);
        command.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("emulated-runtime/include"));
        succeed(command.arg(source).arg("-o").arg(object)).expect("NVCC names a compiler");
    }
}

#[test]
fn the_rust_host_is_right() {
    let Some(kernels) = kernels() else { return };
    let program = std::env::current_exe().expect("a test has a path");
    let examples = program.parent().and_then(Path::parent).expect("it is in a folder of the build").join("examples");
    without_leaks(&mut command(&examples.join("vector_add"), kernels), "rust");
}
