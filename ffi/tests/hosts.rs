//! The example hosts in C, C++ and Rust: they build without a warning and are right on the emulated driver.
//!
//! Those that call the driver themselves need NVIDIA's `cuda.h`: `CACHALOT_CUDA_H_DIR` names its folder, and
//! `tests/setup/cuda_header.sh` fetches it.

mod common;

use common::{Link, build, checked, emulated, emulated_driver, root, simulated, skip, sources, succeed, without_leaks};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Elements of a vector here: few, so that a memory checker is done soon.
const ELEMENTS: &str = "10000";

/// The kernels for the emulated driver, or a line about what is skipped.
fn kernels() -> Option<&'static str> {
    const IMAGE_BEGINS: &str = "CACHALOT-EMULATED ";
    let Some(image) = cachalot_kernels::emulated_image() else {
        skip("hosts with kernels", "no C++ compiler");
        return None;
    };
    image.to_str().expect("UTF-8").strip_prefix(IMAGE_BEGINS)
}

/// What a host that includes `cuda.h` is built with, or a line about what is skipped.
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
fn cuda_host(source: &Path, link: Link) -> Option<PathBuf> {
    let flags = cuda_flags()?;
    build(source, link, &flags.iter().map(OsString::as_os_str).collect::<Vec<_>>())
}

/// A host on the emulated driver, with its kernels.
fn command(program: &Path, kernels: &str) -> Command {
    let mut command = emulated(program);
    command.env("CACHALOT_KERNELS", kernels);
    if program.file_stem().is_some_and(|name| name.display().to_string().starts_with("vector_add")) {
        command.arg(ELEMENTS);
    }
    command
}

/// The C hosts that call the driver.
fn c_hosts() -> Vec<PathBuf> {
    sources("c", "c").into_iter().filter(|source| !source.ends_with("cost.c")).collect()
}

#[test]
fn c_hosts_are_right_and_leave_nothing_behind() {
    let Some(kernels) = kernels() else { return };
    for source in c_hosts() {
        let name = source.file_stem().expect("a name").display().to_string();
        let Some(program) = cuda_host(&source, Link::Shared) else { return };
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
        let Some(program) = cuda_host(&source, Link::Shared) else { return };
        let Some(mut checked) = checked(&command(&program, kernels)) else {
            return skip("C hosts under valgrind", "no valgrind");
        };
        succeed(&mut checked);
    }
}

#[test]
fn c_hosts_link_statically() {
    let Some(kernels) = kernels() else { return };
    for source in c_hosts() {
        let Some(program) = cuda_host(&source, Link::Static) else { return };
        succeed(&mut command(&program, kernels));
    }
}

#[test]
fn the_cost_host_counts_on_both_kinds_of_devices() {
    let Some(program) = build(&root().join("tests/hosts/c/cost.c"), Link::Shared, &[]) else { return };
    for mut command in [simulated(&program), emulated(&program)] {
        let said = succeed(command.arg("2000")).expect("it was just built");
        assert_eq!(said.lines().count(), 7, "{said}");
    }
}

#[test]
fn the_cpp_host_is_right() {
    let source = root().join("tests/hosts/cpp/resources.cpp");
    for link in [Link::Shared, Link::Static] {
        let Some(program) = build(&source, link, &[]) else { return };
        succeed(&mut simulated(&program));
        without_leaks(&mut emulated(&program), "resources");
        match checked(&simulated(&program)) {
            Some(mut command) => drop(succeed(&mut command)),
            None => skip("the C++ host under valgrind", "no valgrind"),
        }
    }
}

#[test]
fn the_thrust_host_compiles() {
    let Some(nvcc) = std::env::var_os("NVCC") else { return skip("the Thrust host", "NVCC is not set") };
    let source = root().join("tests/hosts/cpp/thrust_vector.cu");
    let object = common::scratch("programs").join("thrust_vector.o");
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-Werror", "all-warnings", "-c", "-arch=sm_80", "-I"]).arg(root().join("include"));
    succeed(command.arg(source).arg("-o").arg(object)).expect("NVCC names a compiler");
}

#[test]
fn the_rust_host_is_right() {
    let Some(kernels) = kernels() else { return };
    let program = std::env::current_exe().expect("a test has a path");
    let examples = program.parent().and_then(Path::parent).expect("it lies in a folder of the build").join("examples");
    without_leaks(&mut command(&examples.join("vector_add"), kernels), "rust");
}
