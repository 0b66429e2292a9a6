//! Builds the kernels: for the emulated driver where there is a C++ compiler, for devices where there is nvcc.
//!
//! Neither is needed to build the crate; what is missing is missing from the crate's answers, and said here.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The architectures that get machine code; the oldest one's PTX serves all others.
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
        // The usual case on a machine without a GPU, and no reason for a warning.
        None => fs::write(out.join("kernels.fatbin"), []).expect("the build folder can be written"),
    }
}

/// The host functions as a shared library, or `None` if there is no C++ compiler.
fn host_kernels(out: &Path) -> Option<PathBuf> {
    let library = out.join("libcachalot_host_kernels.so");
    let compiler = cc::Build::new().cpp(true).std("c++17").opt_level(2).pic(true).try_get_compiler().ok()?;
    let mut command = compiler.to_command();
    command.arg("-shared").arg("-o").arg(&library).arg("kernels/host_kernels.cpp");
    run(&mut command).then_some(library)
}

/// nvcc: named by `NVCC`, of `CUDA_HOME`, or on the path.
fn nvcc() -> Option<PathBuf> {
    if let Some(named) = env::var_os("NVCC").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let of_home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    let on_path =
        env::var_os("PATH").map(|path| env::split_paths(&path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>());
    of_home.into_iter().chain(on_path.unwrap_or_default()).find(|candidate| candidate.is_file())
}

/// The kernels for devices, as one image. Asked of nvcc itself: `cc` makes host objects of `.cu` files, which need the
/// CUDA runtime to be linked, and this image is for the driver to load.
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

/// Runs a compiler. False if there is none; a compiler that fails fails the build.
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
