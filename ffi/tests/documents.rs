//! Tries the first documents of a newcomer: the first programs of the README, of the book and of
//! the header, and doxygen's reference of the headers.

use crate::common::install::{empty, installed};
use crate::common::{WARNINGS, output, printed, root, skip, succeed};
use std::path::Path;
use std::process::Command;

/// Returns the text of a file of the repository.
fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).expect("the file exists")
}

/// Returns the part of a text between two other texts.
fn between(text: &str, before: &str, after: &str) -> String {
    let (_, rest) = text.split_once(before).expect("the text before it is there");
    rest.split_once(after).expect("the text after it is there").0.to_owned()
}

/// Builds a C program like a newcomer, over the installed, sealed archive and with warnings as
/// errors. Prints a line and returns false without a compiler.
fn build(folder: &Path, program: &str) -> bool {
    std::fs::write(folder.join("app.c"), program).expect("the test's folder can be written");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2"]).args(WARNINGS).arg("app.c").arg("-I").arg(installed().join("include"));
    compiler.arg(installed().join("lib/libcachalot.a")).args(["-lpthread", "-ldl", "-lm", "-Wl,--gc-sections"]);
    if succeed(compiler.args(["-o", "app"]).current_dir(folder)).is_none() {
        skip("the first programs", "no cc");
        return false;
    }
    true
}

#[test]
fn the_readmes_first_program_compiles_without_warnings_and_runs() {
    let folder = empty("readme");
    if build(&folder, &between(&text("README.md"), "```c\n", "```")) {
        succeed(&mut Command::new(folder.join("app"))).expect("it was just built");
    }
}

#[test]
fn the_headers_first_program_compiles_without_warnings_and_runs() {
    let folder = empty("header");
    let example = between(&text("include/cachalot.h"), " * @code\n", " * @endcode");
    let body: String = example.lines().map(|line| line.trim_start_matches(" *").to_owned() + "\n").collect();
    // On a simulated device, with a stream and without a kernel.
    let body = body.replacen("CACHALOT_OPTIONS_INIT;", "CACHALOT_OPTIONS_INIT; options.flags = CACHALOT_SIMULATED;", 1);
    let program = format!(
        "#include <cachalot.h>\n#include <stdio.h>\nint main(void) {{\ncachalot_stream stream = NULL;\n{body}\nreturn 0;\n}}\n"
    );
    if build(&folder, &program) {
        let said = output(&mut Command::new(folder.join("app"))).expect("it was just built");
        assert!(said.status.success() && printed(&said).is_empty(), "{}", printed(&said));
    }
}

#[test]
fn the_first_program_in_cpp_compiles_without_warnings_and_runs() {
    let folder = empty("cpp");
    std::fs::write(folder.join("app.cpp"), between(&text("docs/cpp.md"), "```cpp\n", "```"))
        .expect("it can be written");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2"]).args(WARNINGS).arg("app.cpp").arg("-I").arg(installed().join("include"));
    compiler.arg(installed().join("lib/libcachalot.a")).args(["-lpthread", "-ldl", "-lm", "-o", "app"]);
    if succeed(compiler.current_dir(&folder)).is_none() {
        return skip("the first programs", "no c++");
    }
    let said = succeed(&mut Command::new(folder.join("app"))).expect("it was just built");
    assert_eq!(said, "1000 numbers, 2 blocks\n");
}

#[test]
fn doxygen_finds_a_text_for_every_function_type_and_field() {
    let folder = empty("doxygen");
    let mut command = Command::new("doxygen");
    command.arg("docs/Doxyfile").current_dir(root()).env("DOXYGEN_OUTPUT", &folder);
    let Some(said) = output(&mut command) else { return skip("the reference of the headers", "no doxygen") };
    assert!(said.status.success(), "{}", printed(&said));
    let page =
        std::fs::read_to_string(folder.join("c/cachalot_8h.html")).expect("doxygen writes a page for each header");
    assert!(page.contains("Allocates a block"), "the texts of functions are in the reference");
}
