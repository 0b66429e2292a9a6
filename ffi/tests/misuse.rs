//! Misuse by C programs: the status equals the header's promise, nothing changes, and no driver
//! function is called.
//!
//! The programs are in `tests/c_abi/misuse`, one kind of misuse each.

use crate::common::{self, Link, build, emulated, simulated, sources, succeed, without_errors, without_leaks};

#[test]
fn every_misuse_is_refused() {
    for source in sources("tests/c_abi/misuse", "c") {
        let name = source.file_stem().expect("a name").display().to_string();
        let Some(program) = build(&source, Link::Shared, &[]) else { return };
        succeed(&mut simulated(&program));
        without_leaks(&mut emulated(&program), &name);
    }
}

#[test]
fn no_misuse_touches_memory_that_it_should_not() {
    for source in sources("tests/c_abi/misuse", "c") {
        let Some(program) = build(&source, Link::Shared, &[]) else { return };
        without_errors(&simulated(&program));
    }
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
