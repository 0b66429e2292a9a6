//! Links the library as a `libcuda.so.1`. The library needs the real driver under an alias, and no
//! file beyond a minimal container's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The real driver's name for the loader. `cachalot run` puts a link with the name into a private
/// folder.
const ALIAS: &str = "libcachalot-driver.so.1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let compiler = cc::Build::new().get_compiler();
    stand_in(&compiler, &folder.join("libcachalot-driver.so"));
    static_unwinder(&compiler, &folder);
    let argument = |argument: &str| println!("cargo::rustc-cdylib-link-arg={argument}");
    argument("-Wl,-soname,libcuda.so.1");
    argument(&format!("-L{}", folder.display()));
    // The library calls the alias by `dlsym` alone, and the linker would leave the entry out. Zig's
    // linker cannot restore a state.
    argument("-Wl,--no-as-needed");
    argument("-lcachalot-driver");
    argument("-Wl,--as-needed");
    // A child without the library path finds the alias beside the library: a preloaded file with a
    // missing dependency would end the child.
    argument("-Wl,--enable-new-dtags,-rpath,$ORIGIN");
    // Threads of ours, and addresses that `cuGetProcAddress` gave out, outlive a `dlclose`.
    argument("-Wl,-z,nodelete");
    // A function of the program must not replace one of ours in a call that we make.
    argument("-Wl,-Bsymbolic");
}

/// Makes an empty library for the linker, with the alias as the name for the loader.
fn stand_in(compiler: &cc::Tool, library: &Path) {
    let source = library.with_extension("c");
    std::fs::write(&source, "").expect("the build folder can be written");
    let mut command = compiler.to_command();
    command.args(["-shared", "-nostdlib", "-fPIC"]).arg(format!("-Wl,-soname,{ALIAS}"));
    run(command.arg("-o").arg(library).arg(&source));
}

/// Has the linker find the static unwinder under the name of the shared unwinder, for which Rust's
/// library asks.
fn static_unwinder(compiler: &cc::Tool, folder: &Path) {
    let answer = compiler.to_command().arg("-print-file-name=libgcc_eh.a").output().expect("the compiler runs");
    let path = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    // A compiler without GCC's library answers the bare name, and the shared library stays.
    if Path::new(&path).is_absolute() {
        std::fs::write(folder.join("libgcc_s.so"), format!("INPUT({path})\n"))
            .expect("the build folder can be written");
    }
}

/// Runs a command, and checks the success.
fn run(command: &mut Command) {
    let status = command.status().expect("the compiler runs");
    assert!(status.success(), "{command:?}");
}
