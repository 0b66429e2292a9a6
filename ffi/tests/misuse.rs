//! Misuse by C programs: the status equals the header's promise, nothing changes, and no driver
//! function is called.
//!
//! The programs are in `tests/c_abi/misuse`, one kind of misuse each.

use crate::common::{
    self, Link, build, compiler, emulated, library_path, scratch, simulated, skip, sources, succeed, without_errors,
    without_leaks,
};
use std::fmt::Write;
use std::path::PathBuf;

#[test]
fn every_misuse_is_refused() {
    for source in sources("tests/c_abi/misuse", "c") {
        let name = source.file_stem().expect("a name").display().to_string();
        let Some(program) = build(&source, Link::Shared, &[]) else { return };
        succeed(&mut simulated(&program));
        without_leaks(&mut emulated(&program), &name);
    }
}

/// Builds one program that runs all the programs, one after another, because valgrind takes longer
/// to start and to translate the library than to check most of them. Prints a line and returns
/// `None` without a compiler.
fn build_all_in_one() -> Option<PathBuf> {
    let folder = scratch("misuse");
    let (mut objects, mut declared, mut called) = (Vec::new(), String::new(), String::new());
    for source in sources("tests/c_abi/misuse", "c") {
        let name = source.file_stem().expect("a name").display().to_string();
        let object = folder.join(&name).with_extension("o");
        let mut command = compiler(&source);
        command.arg(format!("-Dmain={name}")).arg("-c").arg(&source).arg("-o").arg(&object);
        if succeed(&mut command).is_none() {
            skip("misuse under valgrind", "no compiler");
            return None;
        }
        objects.push(object);
        writeln!(declared, "int {name}(int, char **);").expect("a string grows");
        writeln!(called, "  failed += {name}(argc, argv);").expect("a string grows");
    }
    assert!(objects.len() > 5, "{objects:?}");
    let (source, program) = (folder.join("all.c"), folder.join("all"));
    let text =
        format!("{declared}int main(int argc, char **argv) {{\n  int failed = 0;\n{called}  return failed;\n}}\n");
    std::fs::write(&source, text).expect("the test's folder can be written");
    let mut command = compiler(&source);
    command.arg(&source).args(objects).arg("-L").arg(library_path()).args(["-lcachalot", "-ldl", "-lpthread"]);
    succeed(command.arg(format!("-Wl,-rpath,{}", library_path().display())).arg("-o").arg(&program));
    Some(program)
}

#[test]
fn no_misuse_touches_memory_that_it_should_not() {
    let Some(program) = build_all_in_one() else { return };
    without_errors(&simulated(&program));
}

/// A function missing from the list would not be tried with a dead handle, a wrong device, or in a
/// child.
#[test]
fn the_list_of_calls_has_every_function_of_an_allocator() {
    let list = std::fs::read_to_string(common::root().join("tests/c_abi/misuse/every_call.h")).expect("it exists");
    let header = common::c_headers();
    let declarations = header.split(';').filter(|text| text.contains("(const cachalot_allocator *allocator"));
    let names: Vec<_> = declarations.filter_map(|text| text.rsplit_once('(')?.0.rsplit([' ', '*']).next()).collect();
    assert!(names.len() > 35, "{names:?}");
    let missing: Vec<_> = names.into_iter().filter(|name| !list.contains(&format!("({name}, ("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
