//! Addresses of functions and of tables: what a library in front of the driver, or a runtime, asks
//! for first. The versions are those of driver 580.159.

use crate::common::{Emulated, in_child, is_child, text};
use cachalot_emulated_driver::api::EXPORT_TABLE;
use cachalot_emulated_driver::install::symbols;
use std::ffi::{CString, c_void};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `_PER_THREAD_DEFAULT_STREAM`.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// `CU_GET_PROC_ADDRESS_SUCCESS`, `_SYMBOL_NOT_FOUND` and `_VERSION_NOT_SUFFICIENT`.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 1;
const TOO_OLD: i32 = 2;

/// A name, the symbols with the version since which the name means the symbol, and the same for
/// programs whose stream 0 is the thread's own.
type Row = (&'static str, &'static [(i32, &'static str)], &'static [(i32, &'static str)]);

/// The answers of driver 580.159, as far as the emulated driver has the symbols.
const ANSWERS: &[Row] = &[
    ("cuMemAlloc", &[(3020, "cuMemAlloc_v2")], &[(3020, "cuMemAlloc_v2")]),
    (
        "cuCtxCreate",
        &[(3020, "cuCtxCreate_v2"), (11_040, "cuCtxCreate_v3"), (12_050, "cuCtxCreate_v4")],
        &[(3020, "cuCtxCreate_v2"), (11_040, "cuCtxCreate_v3"), (12_050, "cuCtxCreate_v4")],
    ),
    ("cuMemAllocAsync", &[(11_020, "cuMemAllocAsync")], &[(11_020, "cuMemAllocAsync_ptsz")]),
    ("cuMemAllocFromPoolAsync", &[(11_020, "cuMemAllocFromPoolAsync")], &[(11_020, "cuMemAllocFromPoolAsync_ptsz")]),
    ("cuMemFreeAsync", &[(11_020, "cuMemFreeAsync")], &[(11_020, "cuMemFreeAsync_ptsz")]),
    ("cuMemcpyHtoD", &[(3020, "cuMemcpyHtoD_v2")], &[(7000, "cuMemcpyHtoD_v2_ptds")]),
    ("cuMemcpyDtoDAsync", &[(3020, "cuMemcpyDtoDAsync_v2")], &[(7000, "cuMemcpyDtoDAsync_v2_ptsz")]),
    ("cuStreamSynchronize", &[(2000, "cuStreamSynchronize")], &[(7000, "cuStreamSynchronize_ptsz")]),
    ("cuStreamWaitEvent", &[(3020, "cuStreamWaitEvent")], &[(7000, "cuStreamWaitEvent_ptsz")]),
    ("cuStreamBeginCapture", &[(10_010, "cuStreamBeginCapture_v2")], &[(10_010, "cuStreamBeginCapture_v2_ptsz")]),
    (
        "cuGetProcAddress",
        &[(11_030, "cuGetProcAddress"), (12_000, "cuGetProcAddress_v2")],
        &[(11_030, "cuGetProcAddress"), (12_000, "cuGetProcAddress_v2")],
    ),
    (
        "cuCtxSynchronize",
        &[(2000, "cuCtxSynchronize"), (13_000, "cuCtxSynchronize_v2")],
        &[(2000, "cuCtxSynchronize"), (13_000, "cuCtxSynchronize_v2")],
    ),
    (
        "cuGraphInstantiateWithParams",
        &[(12_000, "cuGraphInstantiateWithParams")],
        &[(12_000, "cuGraphInstantiateWithParams_ptsz")],
    ),
    ("cuGraphInstantiate", &[(11_000, "cuGraphInstantiate_v2")], &[(11_000, "cuGraphInstantiate_v2")]),
    ("cuIpcOpenMemHandle", &[(11_000, "cuIpcOpenMemHandle_v2")], &[(11_000, "cuIpcOpenMemHandle_v2")]),
    ("cuCtxRecordEvent", &[(12_050, "cuCtxRecordEvent")], &[(12_050, "cuCtxRecordEvent")]),
    ("cuPointerGetAttribute", &[(4000, "cuPointerGetAttribute")], &[(4000, "cuPointerGetAttribute")]),
    ("cuGetExportTable", &[(3000, "cuGetExportTable")], &[(3000, "cuGetExportTable")]),
    ("cuMemAllocHost", &[(3020, "cuMemAllocHost_v2")], &[(3020, "cuMemAllocHost_v2")]),
    ("cuMemHostAlloc", &[(2020, "cuMemHostAlloc")], &[(2020, "cuMemHostAlloc")]),
    ("cuLaunchKernel", &[(4000, "cuLaunchKernel")], &[(7000, "cuLaunchKernel_ptsz")]),
];

/// The asked versions.
const VERSIONS: [i32; 12] = [2000, 3010, 3020, 6050, 7000, 10_000, 10_010, 11_000, 11_030, 11_040, 12_050, 13_000];

/// Asks for an address. Returns code, address and status.
fn ask(driver: &Emulated, name: &str, version: i32, flags: u64) -> (u32, *mut c_void, i32) {
    let name = CString::new(name).expect("no NUL");
    let (mut address, mut status) = (std::ptr::dangling_mut(), -1);
    let code = driver.cuGetProcAddress_v2(name.as_ptr(), &mut address, version, flags, &raw mut status);
    (code, address, status)
}

/// Returns the address of a symbol, as the loader gives it.
fn symbol(driver: &Emulated, name: &str) -> *mut c_void {
    // SAFETY: the symbol is not used.
    *unsafe { driver.control.library().get::<*mut c_void>(name.as_bytes()) }.expect(name)
}

#[test]
fn a_name_and_a_version_give_the_symbol_of_that_version() {
    let driver = Emulated::without(&[]);
    for (name, plain, own) in ANSWERS {
        for (flags, list) in [(0, plain), (LEGACY, plain), (PER_THREAD, own)] {
            for version in VERSIONS {
                let expected = list.iter().rfind(|(since, _)| *since <= version);
                let (code, address, status) = ask(&driver, name, version, flags);
                let wanted = expected.map_or(std::ptr::null_mut(), |(_, wanted)| symbol(&driver, wanted));
                let expected = if expected.is_some() { FOUND } else { TOO_OLD };
                assert_eq!((code, address, status), (0, wanted, expected), "{name} {version} {flags}");
            }
        }
    }
}

#[test]
fn every_exported_symbol_is_found_by_its_name_without_ending() {
    let driver = Emulated::without(&[]);
    for exported in symbols() {
        let own = exported.ends_with("_ptsz") || exported.ends_with("_ptds");
        let name = exported.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let name = name.rsplit_once("_v").map_or(name, |(name, _)| name);
        let flags = if own { PER_THREAD } else { 0 };
        let found = (2..=13).flat_map(|major| (0..10).map(move |minor| 1000 * major + 10 * minor));
        let found = found.filter(|&version| version <= 13_000);
        let mut found = found.map(|version| ask(&driver, name, version, flags).1);
        assert!(found.any(|address| address == symbol(&driver, exported)), "{exported}");
    }
}

#[test]
fn an_ending_is_no_part_of_a_name() {
    let driver = Emulated::without(&[]);
    for name in ["cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuNothing", ""] {
        assert_eq!(ask(&driver, name, 13_000, 0), (0, std::ptr::null_mut(), NOT_FOUND), "{name}");
    }
}

#[test]
fn the_status_may_be_null_and_wrong_arguments_are_refused() {
    let driver = Emulated::without(&[]);
    let (mut address, null) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(driver.cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &mut address, 12_000, 0, null), 0);
    assert_eq!(address, symbol(&driver, "cuMemAlloc_v2"));
    assert_eq!(driver.cuGetProcAddress_v2(c"cuNothing".as_ptr(), &mut address, 12_000, 0, null), 0);
    assert!(address.is_null());
    assert_eq!(ask(&driver, "cuMemAlloc", 12_000, 3).0, 0);
    assert_eq!((ask(&driver, "cuMemAlloc", 12_000, 4).0, ask(&driver, "cuMemAlloc", 99_999, 0).0), (1, 1));
}

#[test]
fn the_older_lookup_has_no_status_and_answers_an_error() {
    let driver = Emulated::without(&[]);
    let mut address = std::ptr::null_mut();
    assert_eq!(driver.cuGetProcAddress(c"cuMemAlloc".as_ptr(), &mut address, 12_000, 0), 0);
    assert_eq!(address, symbol(&driver, "cuMemAlloc_v2"));
    assert_eq!(driver.cuGetProcAddress(c"cuNothing".as_ptr(), &mut address, 12_000, 0), 500);
    assert_eq!(driver.cuGetProcAddress(c"cuStreamGetId".as_ptr(), &mut address, 11_000, 0), 500);
}

#[test]
fn a_table_has_one_address_and_unknown_tables_are_refused() {
    let driver = Emulated::without(&[]);
    let (mut table, mut uuid) = (std::ptr::null(), EXPORT_TABLE);
    assert_eq!(driver.cuGetExportTable(&mut table, &raw mut uuid), 0, "before cuInit");
    let first = table;
    assert_eq!((driver.cuInit(0), driver.cuGetExportTable(&mut table, &raw mut uuid)), (0, 0));
    assert_eq!(table, first);
    // SAFETY: a table starts with the size.
    assert_eq!(unsafe { table.cast::<usize>().read() }, 16);
    // SAFETY: the function behind the size takes nothing.
    let function = unsafe { table.cast::<extern "C" fn() -> i32>().wrapping_add(1).read() };
    assert_eq!(function(), 1);
    uuid = [0x55; 16];
    assert_eq!((driver.cuGetExportTable(&mut table, &raw mut uuid), table.is_null()), (1, true));
    assert_eq!(driver.cuGetExportTable(&mut table, std::ptr::null_mut()), 1);
}

#[test]
fn a_function_that_no_header_has_can_be_called() {
    let driver = Emulated::without(&[]);
    let mut doubled = 0;
    assert_eq!((driver.cuEmulatedUnknownFunction(21, &mut doubled), doubled), (0, 42));
    assert_eq!(driver.cuEmulatedUnknownFunction(u64::MAX, &mut doubled), 1);
    assert_eq!(ask(&driver, "cuEmulatedUnknownFunction", 13_000, 0).1, symbol(&driver, "cuEmulatedUnknownFunction"));
}

#[test]
fn a_variant_uses_the_threads_own_stream_for_stream_0() {
    let driver = Emulated::new();
    let address = driver.alloc(8).expect("memory");
    // CU_STREAM_PER_THREAD.
    driver.control.hold(2).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async_ptsz(address, 1, 8, 0), 0);
    assert_eq!((driver.cuStreamQuery_ptsz(0), driver.control.pending(2), driver.control.pending(0)), (600, 1, 0));
    assert_eq!(driver.control.pending(1), 0, "nothing is on the legacy stream");
    let (mut own, mut legacy) = (0, 0);
    assert_eq!((driver.cuStreamGetId_ptsz(0, &mut own), driver.cuStreamGetId(0, &mut legacy)), (0, 0));
    assert_ne!(own, legacy);
    assert_eq!((driver.cuStreamGetId_ptsz(1, &mut own), own), (0, legacy), "1 names the legacy stream");
    driver.control.release(2).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize_ptsz(0), 0);
    // A copy that names no stream goes to the thread's own, too.
    let before = driver.log().len();
    let mut byte = [0_u8; 8];
    assert_eq!(driver.cuMemcpyDtoH_v2_ptds(byte.as_mut_ptr().cast(), address, 8), 0);
    assert_eq!((byte, driver.log()[before].0.as_str()), ([1; 8], "cuMemcpyDtoH_v2_ptds"));
    let pooled = {
        let mut pooled = 0;
        assert_eq!(driver.cuMemAllocAsync_ptsz(&mut pooled, 64, 0), 0);
        pooled
    };
    assert_eq!((driver.cuMemFreeAsync_ptsz(pooled, 0), driver.cuStreamSynchronize_ptsz(0)), (0, 0));
}

#[test]
fn the_runtime_of_nvidia_is_told_why_it_does_not_start_once() {
    const NAME: &str = "the_runtime_of_nvidia_is_told_why_it_does_not_start_once";
    if !is_child(NAME) {
        let said = text(&in_child(NAME, &[]));
        assert_eq!(said.matches("NVIDIA's CUDA runtime").count(), 1, "{said}");
        return;
    }
    let driver = Emulated::new();
    for first in [0xf8cf_f951_2146_8b4e_b9e2_fb46_9e7c_0dd9_u128, 0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9] {
        let (mut table, mut uuid) = (std::ptr::null(), first.to_be_bytes());
        assert_eq!((driver.cuGetExportTable(&mut table, &raw mut uuid), table.is_null()), (1, true));
    }
}
