//! Gives the built library the name that programs ask the loader for, and keeps it in memory once loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program linked with `-lcudart` records this name, so it finds the file wherever it was installed.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
