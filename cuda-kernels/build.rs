//! Builds the kernels: for the emulated driver if a C++ compiler is present, and for devices if
//! nvcc is present.
//!
//! The crate builds without either compiler. The crate's functions then report the missing kernels,
//! and a missing C++ compiler causes a warning.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Architectures with machine code of their own; the PTX of the oldest serves all others.
const ARCHITECTURES: [&str; 2] = ["80", "90"];

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    for variable in ["NVCC", "CUDA_HOME", "CXX", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rustc-check-cfg=cfg(host_kernels, device_image)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    if let Some(library) = host_kernels(&out) {
        println!("cargo::rustc-cfg=host_kernels");
        println!("cargo::rustc-env=CACHALOT_HOST_KERNELS_LIBRARY={}", library.display());
    } else {
        println!("cargo::warning=no C++ compiler: no kernels for the emulated driver");
    }
    match nvcc() {
        Some(nvcc) => {
            device_image(&nvcc, &out.join("kernels.fatbin"));
            println!("cargo::rustc-cfg=device_image");
        }
        // The usual case on a machine without a GPU, so no warning.
        None => fs::write(out.join("kernels.fatbin"), []).expect("the build folder can be written"),
    }
}

/// Builds the host functions as a shared library. Returns `None` without a C++ compiler.
fn host_kernels(out: &Path) -> Option<PathBuf> {
    let library = out.join("libcachalot_host_kernels.so");
    let compiler = cc::Build::new().cpp(true).std("c++17").opt_level(2).pic(true).try_get_compiler().ok()?;
    let mut command = compiler.to_command();
    command.arg("-shared").arg("-o").arg(&library).arg("kernels/host_kernels.cpp");
    run(&mut command).then_some(library)
}

/// Finds nvcc: named by `NVCC`, in `CUDA_HOME`, or on the path.
fn nvcc() -> Option<PathBuf> {
    if let Some(named) = env::var_os("NVCC").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let of_home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    let on_path =
        env::var_os("PATH").map(|path| env::split_paths(&path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>());
    of_home.into_iter().chain(on_path.unwrap_or_default()).find(|candidate| candidate.is_file())
}

/// Builds the kernels for devices as one image. Calls nvcc directly: `cc` would make host objects
/// from `.cu` files, which must be linked with the CUDA runtime, but the driver must load the
/// image.
fn device_image(nvcc: &Path, image: &Path) {
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-std=c++17", "-O2"]);
    for architecture in ARCHITECTURES {
        command.arg("-gencode").arg(format!("arch=compute_{architecture},code=sm_{architecture}"));
    }
    let oldest = ARCHITECTURES[0];
    command.arg("-gencode").arg(format!("arch=compute_{oldest},code=compute_{oldest}"));
    command.args([OsStr::new("-o"), image.as_os_str(), OsStr::new("kernels/kernels.cu")]);
    assert!(run(&mut command), "{} does not exist", nvcc.display());
}

/// Runs a compiler. Returns false if the compiler does not exist; a compiler that fails fails the
/// build.
fn run(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => {
            assert!(status.success(), "{}: {status}", command.get_program().display());
            true
        }
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{}: {error}", command.get_program().display()),
    }
}
