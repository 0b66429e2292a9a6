//! Gives the built library the name that programs ask the loader for, and keeps it in memory once loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program linked with `-lcuda` records this name, so it finds the file wherever it was installed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Stream threads run this library's code: unloading it under them would be a crash no test asked for.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
