//! The installed library, used like a program outside of the repository: pkg-config, `CMake`,
//! cargo-c, other Rust libraries.

use crate::common::install::{empty, install, installed};
use crate::common::{self, SYSTEM_LIBRARIES, WARNINGS, library_folder, output, printed, root, scratch, skip, succeed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Output of a consumer.
const SAYS: &str = concat!("cachalot ", env!("CARGO_PKG_VERSION"), "\n");

/// Variables for a build by cargo whose library is linked and hardly run.
const QUICKLY: [(&str, &str); 2] = [("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")];

/// Returns the consumer in C or C++.
fn consumer(ending: &str) -> PathBuf {
    root().join("tests/c_abi/consumer/consumer").with_extension(ending)
}

/// Returns the flags of `pkg-config` for the installed library. Prints a line and returns `None`
/// without `pkg-config`.
fn pkg_config(libraries: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("cachalot").env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let Some(said) = succeed(&mut command) else {
        skip("the pkg-config file", "no pkg-config");
        return None;
    };
    Some(said.split_whitespace().map(str::to_owned).collect())
}

/// Returns the shared libraries needed by a program. Prints a line and returns `None` without
/// `readelf`.
fn needed(program: &Path) -> Option<String> {
    let Some(read) = output(Command::new("readelf").arg("--dynamic").arg(program)) else {
        skip("what programs are linked with", "no readelf");
        return None;
    };
    Some(printed(&read).lines().filter(|line| line.contains("(NEEDED)")).collect())
}

/// Returns whether a program has a function of the library that no consumer calls, by the name that
/// stays in a program without `strip`. Prints a line and returns `None` without `nm`.
fn has_unused_functions(program: &Path) -> Option<bool> {
    let Some(names) = output(Command::new("nm").arg(program)) else {
        skip("what programs contain", "no nm");
        return None;
    };
    let names = printed(&names);
    assert!(names.lines().any(|line| line.ends_with(" cachalot_create")), "{}", program.display());
    Some(names.lines().any(|line| line.ends_with(" cachalot_torch_init")))
}

/// Builds the consumers with the flags of `pkg-config`, and runs the consumers. False without
/// `pkg-config`.
fn consume_by_pkg_config(libraries: &Path, program: &Path, modes: &[&str]) -> bool {
    for (compiler, ending) in [("cc", "c"), ("c++", "cpp")] {
        for mode in modes {
            let Some(flags) = pkg_config(libraries, &["--cflags"]) else { return false };
            let Some(libs) = pkg_config(libraries, &[mode, "--libs"]) else { return false };
            let mut command = Command::new(compiler);
            command.args(WARNINGS).args(&flags).arg(consumer(ending)).args(&libs).arg("-o").arg(program);
            if succeed(&mut command).is_none() {
                skip("consumers", "no compiler");
                return false;
            }
            let said = succeed(Command::new(program).env("LD_LIBRARY_PATH", libraries)).expect("it was just built");
            assert_eq!(said, SAYS);
            let needed = needed(program);
            let is_shared = *mode == "--libs";
            assert!(needed.is_none_or(|needed| needed.contains("libcachalot") == is_shared), "{mode}: {libs:?}");
            if *mode == "--static" {
                assert_ne!(has_unused_functions(program), Some(true), "{libs:?}");
            }
        }
    }
    true
}

#[test]
fn pkg_config_links_the_library_of_the_kind_that_it_is_asked_for() {
    let libraries = installed().join("lib");
    if !consume_by_pkg_config(&libraries, &installed().join("consumer"), &["--libs", "--static"]) {
        return;
    }
    assert_eq!(pkg_config(&libraries, &["--modversion"]), Some(vec![env!("CARGO_PKG_VERSION").to_owned()]));
}

#[test]
fn nvcc_takes_the_flags_of_pkg_config() {
    let Some(nvcc) = std::env::var_os("NVCC") else { return skip("the flags for nvcc", "NVCC is not set") };
    let libraries = installed().join("lib");
    let Some(flags) = pkg_config(&libraries, &["--cflags", "--libs"]) else { return };
    let program = installed().join("consumer_nvcc");
    // A file without kernels: the CUDA runtime, which nvcc would link, has no part in it.
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-cudart", "none"]).arg(consumer("cpp")).args(&flags).arg("-o").arg(&program);
    succeed(&mut command).expect("nvcc links the consumer");
    let said = succeed(Command::new(program).env("LD_LIBRARY_PATH", libraries)).expect("it was just built");
    assert_eq!(said, SAYS);
}

/// Returns the files and links below a folder, by relative path.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("the folder exists").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("it has one").is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(folder).expect("below it").display().to_string());
            }
        }
    }
    found
}

#[test]
fn the_manifest_lists_every_file_and_uninstalling_leaves_nothing() {
    let prefix = empty("manifest");
    // Files of another version are removed, foreign files are not.
    for (file, text) in
        [("share/cachalot/manifest.txt", "lib/libcachalot.so.0.0.9\n"), ("lib/libcachalot.so.0.0.9", "")]
    {
        std::fs::create_dir_all(prefix.join(file).parent().expect("a folder")).expect("the prefix can be written");
        std::fs::write(prefix.join(file), text).expect("the prefix can be written");
    }
    install(&prefix, &[]);
    let manifest = std::fs::read_to_string(prefix.join("share/cachalot/manifest.txt")).expect("it is there");
    assert_eq!(manifest.lines().map(str::to_owned).collect::<BTreeSet<_>>(), files(&prefix));
    // The notices need a Python.
    let has_notices = prefix.join("share/doc/cachalot/THIRD-PARTY.txt").is_file();
    assert_eq!(has_notices, output(Command::new("python3").arg("--version")).is_some());
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(prefix.join("share/doc/cachalot").join(file).is_file(), "{file}");
    }
    std::fs::write(prefix.join("include/other.h"), "").expect("the prefix can be written");
    succeed(&mut Command::new(prefix.join("share/cachalot/uninstall.sh"))).expect("the script is there");
    assert_eq!(files(&prefix), BTreeSet::from(["include/other.h".to_owned()]));
    assert!(!prefix.join("lib").exists() && !prefix.join("share").exists());
}

#[test]
fn other_folders_can_be_chosen() {
    let stage = empty("stage");
    let variables =
        [("DESTDIR", stage.to_str().expect("UTF-8")), ("LIBDIR", "lib/x86_64-linux-gnu"), ("INCLUDEDIR", "include/c")];
    install(Path::new("/opt/cachalot"), &variables);
    let tree = stage.join("opt/cachalot");
    for header in ["cachalot.h", "cachalot/pools.h", "cachalot.hpp", "cachalot/pools.hpp", "cachalot_torch.h"] {
        assert!(tree.join("include/c").join(header).is_file(), "{header}");
    }
    let libraries = tree.join("lib/x86_64-linux-gnu");
    for file in files(&libraries.join("pkgconfig")) {
        let described = std::fs::read_to_string(libraries.join("pkgconfig").join(file)).expect("it is there");
        assert!(!described.contains('@') && !described.contains("/opt/"), "{described}");
    }
    // The staged tree is used in place: no file of the tree names the prefix.
    consume_by_pkg_config(&libraries, &stage.join("consumer"), &["--libs", "--static"]);
    build_with_cmake(&[&format!("-DCMAKE_PREFIX_PATH={}", libraries.join("cmake").display())], "staged");
}

/// Returns `CMake`: the program named by `CMAKE`, or found on the path.
fn cmake() -> Command {
    Command::new(std::env::var_os("CMAKE").unwrap_or_else(|| "cmake".into()))
}

/// Builds the consumers with `CMake`, if installed, and runs the consumers.
fn build_with_cmake(arguments: &[&str], name: &str) {
    let build = empty(name);
    let mut configure = cmake();
    configure.arg("-S").arg(root().join("tests/c_abi/consumer")).arg("-B").arg(&build).args(arguments);
    if succeed(&mut configure).is_none() {
        return skip("the CMake package", "no cmake; CMAKE can name one");
    }
    let mut command = cmake();
    command.arg("--build").arg(&build).envs(QUICKLY);
    succeed(&mut command).expect("it was there before");
    for language in ["c", "cpp"] {
        for target in ["cachalot", "static", "shared"] {
            let program = build.join(format!("consumer_{language}_{target}"));
            assert_eq!(succeed(&mut Command::new(&program)), Some(SAYS.to_owned()), "{language} {target}");
            let is_shared = needed(&program).map(|needed| needed.contains("libcachalot"));
            let expected = target == "shared" || (target == "cachalot" && arguments.contains(&"-DCACHALOT_SHARED=ON"));
            assert!(is_shared.is_none_or(|is_shared| is_shared == expected), "{language} {target}");
            if target == "static" {
                assert_ne!(has_unused_functions(&program), Some(true), "{language} {target}");
            }
        }
    }
}

#[test]
fn cmake_builds_the_library_as_a_part_of_another_project() {
    let source = format!("-DCACHALOT_SOURCE={}", root().display());
    let target = format!("-DCACHALOT_TARGET_DIR={}", scratch("cmake-cargo").display());
    for way in ["add_subdirectory", "FetchContent"] {
        // The second build finds what cargo made for the first.
        build_with_cmake(&[&format!("-DCONSUME={way}"), "-DCMAKE_BUILD_TYPE=Debug", &source, &target], way);
    }
}

/// Returns a call of Conan, the program named by `CONAN` or found on the path, with a cache in the
/// folder.
fn conan(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CONAN").unwrap_or_else(|| "conan".into()));
    command.args(arguments).current_dir(folder).env("CONAN_HOME", folder.join("home"));
    command.env("CACHALOT_LIBRARIES", library_folder());
    command
}

#[test]
fn conan_s_package_is_found_by_cmake() {
    let folder = empty("conan");
    if succeed(&mut conan(&folder, &["profile", "detect"])).is_none() {
        return skip("Conan's recipe", "no conan; CONAN can name one");
    }
    let recipe = root().join("ffi/packaging/conan").display().to_string();
    let required = concat!("--requires=cachalot/", env!("CARGO_PKG_VERSION"));
    for step in [
        &["export-pkg", &recipe][..],
        &["install", required, "--generator=CMakeDeps", "--generator=CMakeToolchain", "--output-folder=."],
    ] {
        succeed(&mut conan(&folder, step)).expect("it was there before");
    }
    let toolchain = format!("-DCMAKE_TOOLCHAIN_FILE={}", folder.join("conan_toolchain.cmake").display());
    build_with_cmake(&[&toolchain, "-DCMAKE_BUILD_TYPE=Release"], "conan-consumer");
}

#[test]
fn cmake_says_in_one_sentence_that_cargo_is_missing() {
    let mut configure = cmake();
    configure.arg("-S").arg(root()).arg("-B").arg(empty("no-cargo")).arg("-DCMAKE_MAKE_PROGRAM=make");
    configure.args(["-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"]);
    configure.env("HOME", "/nonexistent").env_remove("CARGO_HOME");
    let Some(said) = output(&mut configure) else { return skip("CMake without cargo", "no cmake; CMAKE can name one") };
    let words = printed(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!said.status.success(), "{words}");
    assert!(words.contains("cachalot is built by cargo, which was not found: install Rust"), "{words}");
}

#[test]
fn cmake_finds_the_package_after_it_was_moved() {
    // A copy has no file that names the first folder, so that it would be the same without it.
    let second = empty("after");
    let parts = ["include", "lib", "share"].map(|part| installed().join(part));
    succeed(Command::new("cp").arg("-a").args(parts).arg(&second)).expect("cp is there");
    let named = output(Command::new("grep").arg("-rlF").arg(installed()).arg(&second)).expect("grep is there");
    assert_eq!((named.status.code(), printed(&named).as_str()), (Some(1), ""));
    build_with_cmake(&[&format!("-DCMAKE_PREFIX_PATH={}", second.display()), "-DCACHALOT_SHARED=ON"], "moved");
}

#[test]
fn the_build_says_in_one_sentence_that_cargo_is_missing() {
    let mut build = Command::new(root().join("ffi/packaging/install.sh"));
    let said = output(build.arg(empty("no-build")).env("CARGO", "/nonexistent/cargo")).expect("the script is there");
    let sentence = "cachalot is built by cargo, which is not installed: install Rust from https://rustup.rs\n";
    assert_eq!((said.status.success(), printed(&said).as_str()), (false, sentence));
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

/// Returns the compiler of the tests.
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
    for (file, names) in [("install.sh", ours.clone()), ("cachalot-targets.cmake", SYSTEM_LIBRARIES.join(";"))] {
        let text = std::fs::read_to_string(root().join("ffi/packaging").join(file)).expect("it is there");
        assert!(text.contains(&format!("\"{names}\"")), "{file} names others");
    }
}

/// Builds a second Rust library, with or without link-time optimization.
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
    command.arg(root().join("ffi/library/Cargo.toml")).arg("--prefix").arg(&prefix);
    // A separate folder, because cargo-c's build differs from the build of the tests.
    command.arg("--target-dir").arg(scratch("cargo-c-target")).envs(QUICKLY);
    succeed(&mut command).expect("cargo is there");
    for header in ["cachalot.h", "cachalot/pools.h", "cachalot.hpp", "cachalot/pools.hpp", "cachalot_torch.h"] {
        assert!(prefix.join("include").join(header).is_file(), "{header}");
    }
    assert!(prefix.join("lib").join(common::soname()).is_file());
    // Its own pkg-config file leaves to the linker which kind is taken.
    consume_by_pkg_config(&prefix.join("lib"), &prefix.join("consumer"), &["--libs"]);
}
