//! Sets the SONAME of the built library to `libcuda.so.1`, and keeps the library in memory once
//! loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A program linked with `-lcuda` records the SONAME, so the loader finds the file in any
    // installation.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Stream threads run code of the library: unloading during their work would be a crash
    // outside every test.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
