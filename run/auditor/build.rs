//! Compiles the auditor, a shared object without any library.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=auditor.c");
    let image = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("auditor.so");
    let mut command = cc::Build::new().opt_level(2).debug(false).get_compiler().to_command();
    // Without the builtins, the compiler makes no call of `memcpy` or `strlen`, which no library would answer.
    command.args(["-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-fno-stack-protector", "-fvisibility=hidden"]);
    command.args(["-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcachalot-audit.so", "-o"]).arg(&image);
    let status = command.arg("auditor.c").status().expect("a C compiler runs");
    assert!(status.success(), "the auditor does not compile: {command:?}");
}
