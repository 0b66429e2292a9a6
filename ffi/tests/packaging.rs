//! What is installed, used as a program outside of the repository uses it: pkg-config, `CMake`, cargo-c, other Rust libraries.

mod common;

use common::install::{empty, install, installed};
use common::{SYSTEM_LIBRARIES, WARNINGS, output, printed, root, scratch, skip, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a consumer prints.
const SAYS: &str = concat!("cachalot ", env!("CARGO_PKG_VERSION"), "\n");

/// The consumer in C or C++.
fn consumer(ending: &str) -> PathBuf {
    root().join("tests/c_abi/consumer/consumer").with_extension(ending)
}

/// What `pkg-config` says of the installed library, as arguments. `None`, and a line, if there is no `pkg-config`.
fn pkg_config(libraries: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("cachalot").env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let Some(said) = succeed(&mut command) else {
        skip("the pkg-config file", "no pkg-config");
        return None;
    };
    Some(said.split_whitespace().map(str::to_owned).collect())
}

/// Builds the consumers with what `pkg-config` says and runs them. False if there is no `pkg-config`.
fn consume_by_pkg_config(libraries: &Path, program: &Path) -> bool {
    for (compiler, ending) in [("cc", "c"), ("c++", "cpp")] {
        let Some(flags) = pkg_config(libraries, &["--cflags"]) else { return false };
        let Some(shared) = pkg_config(libraries, &["--libs"]) else { return false };
        // Of a library that is linked statically `pkg-config` tells what else it needs; which kind is taken is the linker's affair.
        let Some(mut fixed) = pkg_config(libraries, &["--static", "--libs"]) else { return false };
        let own = fixed.iter().position(|word| word == "-lcachalot").expect("the library itself");
        fixed.splice(own..=own, ["-Wl,-Bstatic", "-lcachalot", "-Wl,-Bdynamic"].map(str::to_owned));
        for libs in [shared, fixed] {
            let mut command = Command::new(compiler);
            command.args(WARNINGS).args(&flags).arg(consumer(ending)).args(&libs).arg("-o").arg(program);
            if succeed(&mut command).is_none() {
                skip("consumers", "no compiler");
                return false;
            }
            let said = succeed(Command::new(program).env("LD_LIBRARY_PATH", libraries)).expect("it was just built");
            assert_eq!(said, SAYS);
        }
    }
    true
}

#[test]
fn pkg_config_leads_to_the_library() {
    let libraries = installed().join("lib");
    if !consume_by_pkg_config(&libraries, &installed().join("consumer")) {
        return;
    }
    assert_eq!(pkg_config(&libraries, &["--modversion"]), Some(vec![env!("CARGO_PKG_VERSION").to_owned()]));
}

#[test]
fn other_folders_can_be_chosen() {
    let stage = empty("stage");
    let variables =
        [("DESTDIR", stage.to_str().expect("UTF-8")), ("LIBDIR", "lib/x86_64-linux-gnu"), ("INCLUDEDIR", "include/c")];
    install(Path::new("/opt/cachalot"), &variables);
    let tree = stage.join("opt/cachalot");
    assert!(tree.join("include/c/cachalot.hpp").is_file() && tree.join("include/c/cachalot_torch.h").is_file());
    let described =
        std::fs::read_to_string(tree.join("lib/x86_64-linux-gnu/pkgconfig/cachalot.pc")).expect("it is there");
    for line in ["prefix=/opt/cachalot", "libdir=${prefix}/lib/x86_64-linux-gnu", "includedir=${prefix}/include/c"] {
        assert!(described.lines().any(|found| found == line), "{described}");
    }
    assert!(!described.contains('@'), "{described}");
    build_with_cmake(&tree.join("lib/x86_64-linux-gnu/cmake"), "staged");
}

/// `CMake`: the one that `CMAKE` names, or that is on the path.
fn cmake() -> Command {
    Command::new(std::env::var_os("CMAKE").unwrap_or_else(|| "cmake".into()))
}

/// Builds the consumers with the `CMake` package in a folder and runs them, if there is `CMake`.
fn build_with_cmake(packages: &Path, name: &str) {
    let build = empty(name);
    let mut configure = cmake();
    configure.arg("-S").arg(root().join("tests/c_abi/consumer")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", packages.display())).arg("-DCMAKE_BUILD_TYPE=Release");
    if succeed(&mut configure).is_none() {
        return skip("the CMake package", "no cmake; CMAKE can name one");
    }
    succeed(cmake().arg("--build").arg(&build)).expect("it was there before");
    for consumer in ["consumer_c_static", "consumer_c_shared", "consumer_cpp_static", "consumer_cpp_shared"] {
        assert_eq!(succeed(&mut Command::new(build.join(consumer))), Some(SAYS.to_owned()), "{consumer}");
    }
}

#[test]
fn cmake_finds_the_package() {
    build_with_cmake(&installed().join("lib/cmake"), "cmake");
}

#[test]
fn cmake_finds_the_package_after_it_was_moved() {
    let (first, second) = (empty("before"), empty("after"));
    install(&first, &[]);
    std::fs::remove_dir(&second).expect("it is empty");
    std::fs::rename(&first, &second).expect("it can be moved");
    build_with_cmake(&second.join("lib/cmake"), "moved");
}

#[test]
fn cmake_refuses_versions_that_do_not_fit() {
    let folder = empty("versions");
    let minor: u32 = env!("CARGO_PKG_VERSION_MINOR").parse().expect("a number");
    let version = |minor: u32, patch: u32| format!("{}.{minor}.{patch}", env!("CARGO_PKG_VERSION_MAJOR"));
    let cases = [
        (version(minor, 0), true),
        (version(minor, 99), false),
        (version(minor + 1, 0), false),
        ("99".to_owned(), false),
    ];
    for (wanted, fits) in cases {
        let script = format!(
            "cmake_minimum_required(VERSION 3.16)\nproject(version LANGUAGES NONE)\nfind_package(cachalot {wanted})\n\
             if(cachalot_FOUND)\n message(STATUS \"found it\")\nendif()\n"
        );
        std::fs::write(folder.join("CMakeLists.txt"), script).expect("the test's folder can be written");
        let mut command = cmake();
        command.arg("-S").arg(&folder).arg("-B").arg(folder.join("build"));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", installed().display()));
        let Some(said) = output(&mut command) else { return skip("versions in CMake", "no cmake; CMAKE can name one") };
        assert_eq!(printed(&said).contains("found it"), fits, "{wanted}: {}", printed(&said));
    }
}

/// The compiler that builds the tests.
fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

#[test]
fn the_system_libraries_are_those_that_the_compiler_names() {
    let folder = empty("native");
    std::fs::write(folder.join("empty.rs"), "").expect("the test's folder can be written");
    let mut command = rustc();
    command.args(["--crate-type", "staticlib", "--print", "native-static-libs", "empty.rs"]).current_dir(&folder);
    let Some(said) = output(&mut command) else { return skip("system libraries", "no rustc") };
    let said = printed(&said);
    let named =
        said.lines().find_map(|line| line.split_once("native-static-libs: ")).expect("the compiler names them").1;
    let ours = SYSTEM_LIBRARIES.join(" ");
    assert_eq!(named, ours);
    let script = std::fs::read_to_string(root().join("ffi/packaging/install.sh")).expect("the script is there");
    assert!(script.contains(&format!("\"{ours}\"")), "install.sh names others");
}

/// The other Rust library, made with or without link-time optimisation.
fn second(folder: &Path, optimised: bool) -> Option<PathBuf> {
    let library = folder.join(format!("libsecond_{optimised}.a"));
    let mut command = rustc();
    command.args(["--edition", "2024", "--crate-type", "staticlib", "-O"]);
    if optimised {
        command.args(["-C", "lto=fat"]);
    }
    command.arg(root().join("tests/c_abi/second/second.rs")).arg("-o").arg(&library);
    succeed(&mut command).map(|_| library)
}

#[test]
fn two_rust_static_libraries_link_into_one_program() {
    let folder = empty("second");
    let first = installed().join("lib/libcachalot.a");
    for optimised in [false, true] {
        let Some(second) = second(&folder, optimised) else { return skip("a second Rust library", "no rustc") };
        // A sealed library catches its own panics still.
        let sealed = folder.join("libsealed.a");
        let mut seal = Command::new(root().join("ffi/packaging/seal.sh"));
        succeed(seal.arg(&second).arg(&sealed).arg("second_count")).expect("the script is there");
        for libraries in [[&first, &second], [&second, &first], [&first, &sealed], [&sealed, &first]] {
            let program = folder.join("two");
            let mut command = Command::new("cc");
            command.args(WARNINGS).arg("-I").arg(installed().join("include"));
            command.arg(root().join("tests/c_abi/second/main.c")).args(libraries).args(SYSTEM_LIBRARIES);
            if succeed(command.arg("-o").arg(&program)).is_none() {
                return skip("a second Rust library", "no compiler");
            }
            succeed(&mut Command::new(&program)).expect("it was just built");
        }
    }
}

#[test]
fn the_installed_static_library_offers_the_headers_functions_only() {
    let library = installed().join("lib/libcachalot.a");
    let listed = output(Command::new("nm").args(["-g", "--defined-only"]).arg(library));
    let Some(listed) = listed else { return skip("symbols of the static library", "no nm") };
    let text = printed(&listed);
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(names.len() > 40 && names.iter().all(|name| name.starts_with("cachalot_")), "{names:?}");
}

#[test]
fn the_installed_shared_library_is_stripped() {
    let library = installed().join("lib").join(common::soname());
    let Some(sections) = output(Command::new("readelf").args(["--sections", "--wide"]).arg(library)) else {
        return skip("the sections of the shared library", "no readelf");
    };
    let sections = printed(&sections);
    assert!(sections.contains(".dynsym") && !sections.contains(".debug_"), "{sections}");
}

#[test]
fn cargo_c_builds_and_installs_the_library() {
    let version = output(Command::new("cargo").args(["cinstall", "--version"]));
    if !version.is_some_and(|version| version.status.success()) {
        return skip("cargo-c", "no cargo cinstall");
    }
    let prefix = empty("cargo-c");
    let mut command = Command::new("cargo");
    command.args(["cinstall", "--profile", "dev", "--libdir", "lib", "--manifest-path"]);
    command.arg(root().join("ffi/Cargo.toml")).arg("--prefix").arg(&prefix);
    // A folder of its own: what it builds differs from what the tests build.
    command.arg("--target-dir").arg(scratch("cargo-c-target"));
    succeed(&mut command).expect("cargo is there");
    for header in ["cachalot.h", "cachalot.hpp", "cachalot_torch.h"] {
        assert!(prefix.join("include").join(header).is_file(), "{header}");
    }
    assert!(prefix.join("lib").join(common::soname()).is_file());
    consume_by_pkg_config(&prefix.join("lib"), &prefix.join("consumer"));
}
