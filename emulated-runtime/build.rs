//! Sets the SONAME of the built library to `libcudart.so.13`, and keeps the library in memory once
//! loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program linked with `-lcudart` records the SONAME, so the loader finds the file in any
    // installation.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
