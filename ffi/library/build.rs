//! Sets the SONAME of the shared library: the part of the version within which programs need not be
//! relinked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).expect("cargo sets it");
    // Before 1.0 a new minor version may change anything, afterwards a new major one.
    let compatible = match part("MAJOR").as_str() {
        "0" => format!("0.{}", part("MINOR")),
        major => major.to_owned(),
    };
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcachalot.so.{compatible}");
    }
}
