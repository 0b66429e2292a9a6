//! Runs programs of the CUDA runtime on the emulated runtime: a C program, and the C++ examples if
//! NVIDIA's compiler and headers are present (`NVCC`, set by `scripts/setup/nvcc.sh`).

use cachalot_emulated_driver::install::{built_runtime, install, install_runtime};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Creates a folder with the driver and the runtime under their file names for programs.
fn installed() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    install(folder.path(), &[]).expect("the driver");
    install_runtime(folder.path()).expect("the runtime");
    folder
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command and expects success.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Returns the compiler named by a variable, or the usual compiler.
fn compiler(variable: &str, usual: &str) -> Command {
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| usual.to_owned()));
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]);
    command
}

/// Builds the C program and the program's kernels in a folder.
fn c_program(folder: &Path) -> Command {
    let sources = root().join("emulated-runtime/tests");
    let (program, kernels) = (folder.join("host"), folder.join("kernels.so"));
    let mut command = compiler("CC", "cc");
    command.args(["-std=c11", "-o"]).arg(&program).arg(sources.join("host.c"));
    succeed(command.arg("-L").arg(folder).arg("-lcudart"));
    let mut command = compiler("CC", "cc");
    succeed(command.args(["-std=c11", "-shared", "-fPIC", "-o"]).arg(&kernels).arg(sources.join("kernels.c")));
    run(&program, folder, &kernels)
}

/// Prepares a program in a folder with a driver and a runtime.
fn run(program: &Path, folder: &Path, kernels: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).env_remove("CACHALOT_LIBCUDA").env("CACHALOT_HOST_KERNELS", kernels);
    command.env("CACHALOT_EMU_LEAKS", folder.join("leaks"));
    command
}

/// Returns a count of the driver's report at the end of a program.
fn left(folder: &Path, what: &str) -> u64 {
    let report = std::fs::read_to_string(folder.join("leaks")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    report[what].as_u64().expect("a count of the report")
}

#[test]
fn a_c_program_runs_and_leaves_nothing() {
    let folder = installed();
    let output = succeed(&mut c_program(folder.path()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "well\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no host function for the kernel \"_Z7missingv\""), "{said}");
    for what in ["allocations", "streams", "events", "graphs", "executables"] {
        assert_eq!(left(folder.path(), what), 0, "{what}");
    }
}

#[test]
fn without_an_emulated_driver_every_call_says_so() {
    let folder = installed();
    let output = c_program(folder.path()).env("CACHALOT_LIBCUDA", "libc.so.6").output().expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("libc.so.6 is no emulated driver"), "{said}");
    assert!(said.contains("(cudaErrorInsufficientDriver)"), "{said}");
    assert!(!output.status.success());
}

#[test]
fn nothing_is_exported_but_the_runtime() {
    let library = built_runtime().expect("built");
    let output = succeed(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library));
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    // A name may have a version, and GNU's linker lists the version, too.
    let exported: Vec<&str> = listed.lines().filter_map(|line| line.split([' ', '@']).next()).collect();
    assert!(exported.contains(&"cudaMalloc") && exported.contains(&"__cudaLaunchKernel"));
    for name in exported.into_iter().filter(|name| *name != "libcudart.so.13") {
        assert!(name.trim_start_matches('_').starts_with("cuda"), "{name}");
    }
}

#[test]
fn a_program_linked_with_nvidias_runtime_finds_the_version_it_asks_for() {
    let folder = installed();
    // As NVIDIA's library: each function has the version that is the library's name.
    let (nvidia, program) = (tempfile::tempdir().expect("a folder"), folder.path().join("host"));
    let (script, functions) = (nvidia.path().join("version"), nvidia.path().join("functions.c"));
    std::fs::write(&script, "libcudart.so.13 { global: cuda*; };").expect("a file");
    std::fs::write(&functions, "int cudaGetDeviceCount(int *count) { return *count = 0; }").expect("a file");
    let mut command = compiler("CC", "cc");
    command.args(["-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-o"]).arg(nvidia.path().join("libcudart.so"));
    succeed(command.arg(format!("-Wl,--version-script={}", script.display())).arg(&functions));
    let source = nvidia.path().join("program.c");
    let text = "int cudaGetDeviceCount(int *); int main(void) { int n; return cudaGetDeviceCount(&n) || n != 2; }";
    std::fs::write(&source, text).expect("a file");
    let mut command = compiler("CC", "cc");
    succeed(command.arg(&source).arg("-L").arg(nvidia.path()).arg("-lcudart").arg("-o").arg(&program));
    let output = succeed(&mut run(&program, folder.path(), Path::new("/nowhere.so")));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// Returns NVIDIA's compiler and the folder of the headers, or prints a line about the skipped
/// test.
fn nvcc(what: &str) -> Option<(PathBuf, PathBuf)> {
    let Some(nvcc) = std::env::var_os("NVCC").map(PathBuf::from) else {
        println!("skipped: {what} (NVCC is not set)");
        return None;
    };
    let home = nvcc.parent().and_then(Path::parent).expect("nvcc is in a folder bin");
    let include = home.join("include");
    Some((nvcc, include))
}

/// Returns the static library of cachalot from the test's build, with the libraries needed for
/// linking.
fn cachalot() -> Vec<PathBuf> {
    let folder = built_runtime().expect("built").parent().expect("a folder").to_owned();
    let library = [folder.join("libcachalot.a"), folder.join("../libcachalot.a")].into_iter().find(|it| it.is_file());
    let needs = ["-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lgcc_s"].map(PathBuf::from);
    std::iter::once(library.expect("libcachalot.a")).chain(needs).collect()
}

#[test]
fn a_cpp_program_with_streams_and_kernels_runs_on_cachalot() {
    let Some((nvcc, include)) = nvcc("the example with <<<>>>") else { return };
    let (folder, source) = (installed(), root().join("examples/cpp/runtime_streams.cu"));
    let (program, kernels) = (folder.path().join("program"), folder.path().join("kernels.so"));
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-Werror", "all-warnings", "-arch=sm_80", "-cudart", "none", "-I"]);
    command.arg(root().join("emulated-runtime/include")).arg("-I").arg(root().join("include")).arg(&source);
    command.arg("-L").arg(folder.path()).arg("-lcudart").args(cachalot()).arg("-o").arg(&program);
    succeed(&mut command);
    let mut command = compiler("CXX", "c++");
    command.args(["-std=c++17", "-x", "c++", "-shared", "-fPIC", "-I"]).arg(root().join("emulated-runtime/include"));
    succeed(command.arg("-isystem").arg(include).arg(&source).arg("-o").arg(&kernels));
    for delay in ["0", "300"] {
        let mut command = run(&program, folder.path(), &kernels);
        let output = succeed(command.arg("10000").env("CACHALOT_EMU_DELAY_US", delay));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("runtime_streams: 10000 elements"), "{said}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!((left(folder.path(), "allocations"), left(folder.path(), "streams")), (0, 0));
    }
    let output = run(&program, folder.path(), Path::new("/nowhere.so")).output().expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no kernel image is available") && !output.status.success(), "{said}");
}

#[test]
fn a_cpp_program_with_thrust_runs_on_cachalot() {
    let Some((_, include)) = nvcc("the example with Thrust") else { return };
    let (folder, source) = (installed(), root().join("examples/cpp/thrust_system.cu"));
    let program = folder.path().join("program");
    let mut command = compiler("CXX", "c++");
    command
        .args(["-std=c++17", "-x", "c++", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP", "-I"])
        .arg(root().join("include"));
    command.arg("-isystem").arg(include.join("cccl")).arg("-isystem").arg(include).arg(&source);
    // The following arguments are for the linker.
    command.args(["-x", "none", "-L"]).arg(folder.path()).arg("-lcudart").args(cachalot()).arg("-o").arg(&program);
    succeed(&mut command);
    let mut command = run(&program, folder.path(), Path::new(""));
    let output = succeed(command.arg("5000").env("CACHALOT_EMU_HOST_ACCESS", "1"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("thrust_system: 5000 elements sorted 3 times"), "{said}");
    assert_eq!((left(folder.path(), "allocations"), left(folder.path(), "streams")), (0, 0));
}
