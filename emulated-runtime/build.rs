//! Sets the SONAME of the built library to `libcudart.so.13`, gives it the version that programs
//! linked with NVIDIA's runtime ask for, and keeps the library in memory once loaded.

use std::env;
use std::io::{Result, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The name for the loader. Programs record it, so the loader finds the file in any installation.
const SONAME: &str = "-Wl,-soname,libcudart.so.13";

fn main() {
    let versions = Path::new(&variable("CARGO_MANIFEST_DIR")).join("versions.map");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", versions.display());
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    println!("cargo:rustc-cdylib-link-arg={SONAME}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // rustc gives the linker a list of exports, which is a version script without a version. lld
    // and zig take a second script. GNU's linker does not, but makes a version of the SONAME.
    let options = [format!("-Wl,--version-script={}", versions.display()), "-Wl,--default-symver".to_owned()];
    if let Some(option) = options.iter().find(|option| links_with(option).unwrap_or(false)) {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
}

/// Returns a variable that cargo sets.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Returns whether the linker of the build takes an option. Which linker that is only rustc knows.
fn links_with(option: &str) -> Result<bool> {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(variable("CARGO_ENCODED_RUSTFLAGS").split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(["--crate-type=cdylib", "--crate-name=probe", "--edition=2024", "--target", &variable("TARGET")]);
    rustc.args([format!("-Clink-arg={SONAME}"), format!("-Clink-arg={option}")]);
    rustc.args(["--out-dir", &variable("OUT_DIR"), "-"]);
    let mut rustc = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    if let Some(mut source) = rustc.stdin.take() {
        source.write_all(b"#[unsafe(no_mangle)] pub extern \"C\" fn cudaProbe() {}")?;
    }
    Ok(rustc.wait()?.success())
}
