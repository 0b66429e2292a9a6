//! The README's first C program, as a newcomer builds it: with warnings as errors, over the installed, sealed archive.

mod common;

use common::install::{empty, installed};
use common::{WARNINGS, root, skip, succeed};
use std::process::Command;

/// The first block of C in the README.
fn first_program() -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README exists");
    let (_, rest) = readme.split_once("```c\n").expect("the README has a program in C");
    let (program, _) = rest.split_once("```").expect("the block ends");
    program.to_owned()
}

#[test]
fn the_first_program_compiles_without_warnings_and_runs() {
    let folder = empty("first");
    let (source, program) = (folder.join("app.c"), folder.join("app"));
    std::fs::write(&source, first_program()).expect("the test's folder can be written");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2"]).args(WARNINGS).arg(&source).arg("-I").arg(installed().join("include"));
    compiler.arg(installed().join("lib/libcachalot.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    if succeed(&mut compiler).is_none() {
        return skip("the README's first program", "no cc");
    }
    succeed(&mut Command::new(&program)).expect("it was just built");
}
