//! A program finds the functions of the driver alone, by the loader and by the resolvers: no more
//! where the driver is older than the library, and each under the same name.

use super::{clean, compile, driver, output_of, run};
use crate::common::folder;
use cachalot_emulated_driver::install::{newer_than, symbols};
use std::process::Command;

/// Replaced functions of CUDA 12.3 and later.
const NEWER: [&str; 3] = ["cuStreamBeginCaptureToGraph", "cuCtxCreate_v4", "cuMemAllocFromPoolAsync_ptsz"];

/// Compares the found functions with the library and alone, over a driver without the functions in
/// `hidden`.
#[track_caller]
fn found_alike(name: &str, hidden: &[&str]) {
    let place = folder(name);
    let driver = driver(&place, hidden);
    let program = compile("names.c", &place, &[]);
    let mut names = symbols();
    names.extend(NEWER);
    names.extend(["cuGetProcAddress", "cuMemAlloc", "cuGetExportTable", "cuNoSuchFunction"]);
    names.sort_unstable();
    names.dedup();
    let mut plain = Command::new(&program);
    clean(&mut plain).args(&names).env("LD_LIBRARY_PATH", driver.parent().expect("a folder"));
    let alone = output_of(&mut plain);
    let served = output_of(run(&place, &driver).arg("--").arg(&program).args(&names));
    for (alone, served) in alone.lines().zip(served.lines()) {
        assert_eq!(served, alone);
    }
    for name in hidden {
        assert!(alone.contains(&format!("{name} missing")), "{name}");
    }
    assert!(alone.contains("cuMemAlloc_v2 found") && alone.contains("cuNoSuchFunction missing"));
    assert!(alone.contains(":cuMemAlloc_v2"), "the resolver gives a function of the table");
}

#[test]
fn a_complete_driver_offers_the_same_functions() {
    found_alike("complete", &[]);
}

#[test]
fn an_older_driver_offers_no_function_of_ours() {
    found_alike("without_pools", &["cuMemAllocAsync", "cuMemFreeAsync", "cuMemAllocFromPoolAsync", "cuMemCreate"]);
    let mut hidden = newer_than(11_040);
    // The program asks this resolver.
    hidden.retain(|name| *name != "cuGetProcAddress_v2");
    assert!(!hidden.is_empty());
    found_alike("version_11_4", &hidden);
}
