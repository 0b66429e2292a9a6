//! The calls that a library in front of a driver makes and serves: addresses of functions,
//! pointers, handles of memory, several contexts.

use crate::sheet::{PAGE, Sheet, code, yes};
use cachalot_emulated_driver::api::{InstantiateParams, IpcMemory};
use cachalot_emulated_driver::install::versions;
use std::ffi::{CString, c_void};
use std::time::{Duration, Instant};

/// A page as an offset.
const STEP: u64 = PAGE as u64;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: i32 = 6;
/// Milliseconds of the long piece of work.
const LONG_MS: u64 = 60;
/// The last of the attributes.
const LAST_ATTRIBUTE: i32 = 22;

/// A piece of work that takes [`LONG_MS`].
unsafe extern "C" fn last_long(_: *mut c_void) {
    std::thread::sleep(Duration::from_millis(LONG_MS));
}

/// Asks for every symbol of the table by the name and the version, and names those that are not
/// found so.
pub(crate) fn lookup(sheet: &Sheet) {
    let mut wrong = Vec::new();
    for (symbol, name, since, own) in versions() {
        // No real driver has the function. A library in front of the driver cannot know the
        // function, and must pass it on.
        if symbol == "cuEmulatedUnknownFunction" {
            continue;
        }
        let name = CString::new(name).expect("no NUL");
        let ask = |version| {
            let (mut address, flags) = (std::ptr::null_mut(), if own { PER_THREAD } else { 0 });
            sheet.cuGetProcAddress_v2(name.as_ptr(), &mut address, version, flags, std::ptr::null_mut());
            (!address.is_null()).then_some(address)
        };
        let found = sheet.address(symbol);
        if found.is_none() || ask(since) != found || (since > 2000 && ask(since - 10) == found) {
            wrong.push(symbol);
        }
    }
    sheet.line("symbols that are not found since their version", format!("{wrong:?}"));
    let mut address = std::ptr::null_mut();
    for (name, symbol) in [("a known symbol", c"cuMemAlloc"), ("an unknown symbol", c"cuNothing")] {
        let answer = sheet.cuGetProcAddress(symbol.as_ptr(), &mut address, 12_000, 0);
        sheet.line(&format!("cuGetProcAddress of {name}"), answer);
        let null = std::ptr::null_mut();
        let answer = sheet.cuGetProcAddress_v2(symbol.as_ptr(), &mut address, 12_000, 0, null);
        sheet.line(&format!("cuGetProcAddress_v2 of {name} without a status"), answer);
    }
    for flags in [1, 2, 3, 4] {
        let answer = sheet.cuGetProcAddress(c"cuMemAlloc".as_ptr(), &mut address, 12_000, flags);
        sheet.line(&format!("cuGetProcAddress with the flags {flags}"), answer);
    }
    let (mut table, mut uuid) = (std::ptr::dangling(), [0x55; 16]);
    let answer = sheet.cuGetExportTable(&mut table, &raw mut uuid);
    sheet.line("cuGetExportTable of an unknown table", format!("{answer} null {}", yes(table.is_null())));
    sheet.line("cuGetExportTable without a UUID", sheet.cuGetExportTable(&mut table, std::ptr::null_mut()));
}

/// Memory of every kind, with a name for the questions.
fn memories(sheet: &Sheet) -> Vec<(&'static str, u64)> {
    let stream = sheet.stream(1).expect("a stream");
    let (base, handle) = (sheet.reserve(2 * PAGE).expect("addresses"), sheet.create(PAGE).expect("memory"));
    assert_eq!((sheet.cuMemMap(base, PAGE, 0, handle, 0), sheet.allow(base, PAGE)), (0, 0));
    let without_access = sheet.reserve(PAGE).expect("addresses");
    assert_eq!(sheet.cuMemMap(without_access, PAGE, 0, sheet.create(PAGE).expect("memory"), 0), 0);
    let (mut managed, mut pinned, mut rows) = (0, std::ptr::null_mut(), 0);
    assert_eq!((sheet.cuMemAllocManaged(&mut managed, 1000, 1), sheet.cuMemAllocHost_v2(&mut pinned, 1000)), (0, 0));
    assert_eq!(sheet.cuMemAllocPitch_v2(&mut rows, &mut 0, 1000, 10, 4), 0);
    let pool = sheet.alloc_async(2 * PAGE, stream).expect("memory");
    sheet.cuStreamSynchronize(stream);
    let own = Box::leak(Box::new([0_u8; 8192]));
    assert_eq!(sheet.cuMemHostRegister_v2(own.as_mut_ptr().cast(), 8192, 0), 0);
    let unknown = Box::leak(Box::new(0_u64));
    vec![
        ("large memory", sheet.alloc(4 * PAGE).expect("memory")),
        ("small memory", sheet.alloc(1000).expect("memory")),
        ("rows", rows),
        ("memory of a pool", pool),
        ("mapped memory", base),
        ("memory mapped without access", without_access),
        ("reserved addresses", base + STEP),
        ("managed memory", managed),
        ("pinned memory", pinned as u64),
        ("registered memory", own.as_mut_ptr() as u64),
        ("unknown memory", std::ptr::from_mut(unknown) as u64),
        ("null", 0),
    ]
}

/// Asks for an attribute: the code, or the value, an address as the distance from the asked one.
pub(crate) fn attribute(sheet: &Sheet, attribute: i32, address: u64) -> String {
    /// The byte that no answer leaves in a value.
    const UNTOUCHED: u8 = 0xee;
    let mut value = [UNTOUCHED; 16];
    match sheet.cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, address) {
        0 if value[4..8] == [UNTOUCHED; 4] => u32::from_ne_bytes(value[..4].try_into().expect("4 bytes")).to_string(),
        0 => {
            let value = u64::from_ne_bytes(value[..8].try_into().expect("8 bytes"));
            if value.abs_diff(address) < 1 << 30 && value > 1 << 30 {
                format!("the address - {}", address - value)
            } else {
                value.to_string()
            }
        }
        code => format!("code {code}"),
    }
}

/// Asks for the attributes of memory of every kind.
pub(crate) fn pointers(sheet: &Sheet) {
    /// Context, buffer, pool handle, size of a mapping, block: numbers that only the driver knows.
    const OF_THE_DRIVER: [i32; 5] = [1, 7, 17, 18, 20];
    let context = sheet.begin();
    for (name, start) in memories(sheet) {
        let address = if start == 0 { 0 } else { start + 8 };
        let mut answers = Vec::new();
        for number in (0..=LAST_ATTRIBUTE).filter(|number| !OF_THE_DRIVER.contains(number) && *number != 19) {
            answers.push(format!("{number}: {}", attribute(sheet, number, address)));
        }
        sheet.line(&format!("attributes inside {name}"), answers.join(", "));
        let mut its = 7_u64;
        let answer = sheet.cuPointerGetAttribute((&raw mut its).cast(), 1, address);
        let kind = match its {
            0 => "none",
            its if its == context => "the current",
            _ => "not written",
        };
        sheet.line(&format!("the context of {name}"), format!("{answer} {kind}"));
        let (on, mut read) = (1_u32, 9_u32);
        let set = sheet.cuPointerSetAttribute((&raw const on).cast(), SYNC_MEMOPS, address);
        let got = sheet.cuPointerGetAttribute((&raw mut read).cast(), SYNC_MEMOPS, address);
        sheet.line(&format!("cuPointerSetAttribute of {name}"), format!("{set} then {got} {read}"));
        let range = sheet.cuMemGetAddressRange_v2(&mut 0, &mut 0, address);
        sheet.line(&format!("cuMemGetAddressRange_v2 of {name}"), range);
        let mut handle = IpcMemory([0; 64]);
        sheet.line(&format!("cuIpcGetMemHandle of {name}"), sheet.cuIpcGetMemHandle(&mut handle, address));
        let (mut attributes, mut kind, mut ordinal) = ([2, 9], 7_u32, 7_i32);
        let mut values: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
        let answer = sheet.cuPointerGetAttributes(2, attributes.as_mut_ptr(), values.as_mut_ptr(), address);
        sheet.line(&format!("cuPointerGetAttributes of {name}"), format!("{answer} type {kind} device {ordinal}"));
    }
    handles(sheet);
    requests(sheet);
}

/// Handles of memory within one process.
fn handles(sheet: &Sheet) {
    let (address, mut first, mut second) =
        (sheet.alloc(2 * PAGE).expect("memory"), IpcMemory([0; 64]), IpcMemory([0; 64]));
    sheet.cuIpcGetMemHandle(&mut first, address);
    sheet.cuIpcGetMemHandle(&mut second, address + 4096);
    sheet.line("the handle of an interior address is the same", yes(first == second));
    sheet.line("cuIpcOpenMemHandle_v2 of its own", sheet.cuIpcOpenMemHandle_v2(&mut 0, first, 1));
    sheet.line("cuIpcOpenMemHandle_v2 of zeros", sheet.cuIpcOpenMemHandle_v2(&mut 0, IpcMemory([0; 64]), 1));
    sheet.line("cuIpcCloseMemHandle of its own", sheet.cuIpcCloseMemHandle(address));
    sheet.line("cuIpcCloseMemHandle of null", sheet.cuIpcCloseMemHandle(0));
}

/// Requests for rows, managed and pinned memory.
fn requests(sheet: &Sheet) {
    for element in [0, 1, 2, 3, 4, 8, 16, 32] {
        let mut pitch = 0;
        let answer = sheet.cuMemAllocPitch_v2(&mut 0, &mut pitch, 100, 10, element);
        sheet.line(&format!("cuMemAllocPitch_v2 with elements of {element}"), format!("{answer} pitch {pitch}"));
    }
    for (name, width, height) in [("no width", 0, 4), ("no height", 4, 0), ("2^80 bytes", 1 << 40, 1 << 40)] {
        let answer = sheet.cuMemAllocPitch_v2(&mut 0, &mut 0, width, height, 4);
        sheet.line(&format!("cuMemAllocPitch_v2 of {name}"), answer);
    }
    for flags in 0..=4 {
        let answer = sheet.cuMemAllocManaged(&mut 0, 1000, flags);
        sheet.line(&format!("cuMemAllocManaged with the flags {flags}"), answer);
    }
    sheet.line("cuMemAllocManaged of 0", sheet.cuMemAllocManaged(&mut 0, 0, 1));
    sheet.line("cuMemAllocManaged of 2^60", sheet.cuMemAllocManaged(&mut 0, 1 << 60, 1));
    let mut pinned = std::ptr::null_mut();
    sheet.line("cuMemAllocHost_v2 of 0", sheet.cuMemAllocHost_v2(&mut pinned, 0));
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut library = 0;
    let load =
        sheet.cuLibraryLoadData(&mut library, c"rubbish".as_ptr().cast(), options, values, 0, options, values, 0);
    sheet.line("cuLibraryLoadData of rubbish", load);
    sheet.line("cuModuleLoadData of rubbish", sheet.cuModuleLoadData(&mut 0, c"rubbish".as_ptr().cast()));
    let (mut graph, mut params) = (0, InstantiateParams::default());
    sheet.line("cuGraphCreate", sheet.cuGraphCreate(&mut graph, 0));
    sheet.line("cuGraphCreate with a flag", sheet.cuGraphCreate(&mut 0, 1));
    let null = std::ptr::null_mut();
    sheet.line("cuGraphInstantiate_v2", sheet.cuGraphInstantiate_v2(&mut 0, graph, null, std::ptr::null_mut(), 0));
    sheet.line("cuGraphInstantiateWithParams", sheet.cuGraphInstantiateWithParams(&mut 0, graph, &mut params));
    sheet.line("cuGraphInstantiateWithFlags of 256", sheet.cuGraphInstantiateWithFlags(&mut 0, graph, 256));
    sheet.line("cuGraphInstantiateWithFlags of null", sheet.cuGraphInstantiateWithFlags(&mut 0, 0, 0));
}

/// Asks about events of whole contexts, about captures, waits, and the end of contexts.
pub(crate) fn whole_contexts(sheet: &Sheet) {
    let own = sheet.begin();
    let (event, never) = (sheet.event().expect("an event"), sheet.event().expect("an event"));
    let stream = sheet.stream(1).expect("a stream");
    let (plain, mut managed, mut pinned) = (sheet.alloc(PAGE).expect("memory"), 0, std::ptr::null_mut());
    assert_eq!((sheet.cuMemAllocManaged(&mut managed, 8, 1), sheet.cuMemAllocHost_v2(&mut pinned, 8)), (0, 0));
    let mut other = 0;
    sheet.line("cuCtxCreate_v2 with the flags 4096", sheet.cuCtxCreate_v2(&mut other, 4096, 0));
    sheet.line("cuCtxCreate_v4 without parameters", sheet.cuCtxCreate_v4(&mut other, std::ptr::null_mut(), 0, 0));
    let (elsewhere, others) = (sheet.alloc(PAGE).expect("memory"), sheet.event().expect("an event"));
    sheet.cuCtxSetCurrent(own);
    sheet.line("cuCtxEnablePeerAccess of a context of the device", sheet.cuCtxEnablePeerAccess(other, 0));
    let cases =
        [("the own event", own, event), ("another context's event", other, event), ("its event", other, others)];
    for (name, context, event) in cases.into_iter().chain([("no context", 0, event), ("no event", own, 0)]) {
        sheet.line(&format!("cuCtxRecordEvent, {name}"), sheet.cuCtxRecordEvent(context, event));
        sheet.line(&format!("cuCtxWaitEvent, {name}"), sheet.cuCtxWaitEvent(context, event));
    }
    sheet.line("cuCtxWaitEvent, an event never recorded", sheet.cuCtxWaitEvent(own, never));
    let busy = || assert_eq!(sheet.cuLaunchHostFunc(stream, last_long, std::ptr::null_mut()), 0);
    busy();
    sheet.line("cuCtxRecordEvent while a stream works", sheet.cuCtxRecordEvent(own, event));
    sheet.line("cuEventQuery then", sheet.cuEventQuery(event));
    sheet.cuCtxSynchronize();
    sheet.line("cuEventQuery after the work", sheet.cuEventQuery(event));
    let waits = |name: &str, free: &dyn Fn() -> u32| {
        busy();
        let start = Instant::now();
        let answer = free();
        let waited = start.elapsed() > Duration::from_millis(LONG_MS / 2);
        sheet.line(name, format!("{answer} waits {}", yes(waited)));
        sheet.cuCtxSynchronize();
    };
    waits("cuMemFree_v2 while its context works", &|| sheet.cuMemFree_v2(plain));
    waits("cuMemFree_v2 of managed memory while its context works", &|| sheet.cuMemFree_v2(managed));
    waits("cuMemFreeHost while its context works", &|| sheet.cuMemFreeHost(pinned));
    waits("cuMemFree_v2 of another context's memory", &|| sheet.cuMemFree_v2(elsewhere));
    for mode in 0..3 {
        sheet.cuStreamBeginCapture_v2(stream, mode);
        let answer = sheet.cuCtxRecordEvent(own, event);
        let end = code(sheet.end_capture(stream));
        sheet.line(&format!("cuCtxRecordEvent in a capture of mode {mode}"), format!("{answer}, the end {end}"));
        sheet.cuStreamBeginCapture_v2(stream, mode);
        let answer = sheet.cuCtxWaitEvent(own, event);
        let end = code(sheet.end_capture(stream));
        sheet.line(&format!("cuCtxWaitEvent in a capture of mode {mode}"), format!("{answer}, the end {end}"));
    }
    endings(sheet, own, other, event);
}

/// The end of a context, and the reset of the primary context.
fn endings(sheet: &Sheet, own: u64, other: u64, event: u64) {
    sheet.cuCtxSetCurrent(other);
    let address = sheet.alloc(PAGE).expect("memory");
    sheet.cuCtxSetCurrent(own);
    sheet.line("cuCtxDestroy_v2", sheet.cuCtxDestroy_v2(other));
    sheet.line("cuMemFree_v2 of the destroyed context's memory", sheet.cuMemFree_v2(address));
    sheet.line("the type of the destroyed context's memory", attribute(sheet, 2, address));
    sheet.line("cuCtxRecordEvent, the destroyed context", sheet.cuCtxRecordEvent(other, event));
    let state = || {
        let (mut flags, mut active) = (9, 9);
        let answer = sheet.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active);
        format!("{answer} flags {flags} active {active}")
    };
    sheet.line("cuDevicePrimaryCtxGetState", state());
    sheet.line("cuDevicePrimaryCtxSetFlags_v2 of 4", sheet.cuDevicePrimaryCtxSetFlags_v2(0, 4));
    sheet.line("cuDevicePrimaryCtxSetFlags_v2 of 4096", sheet.cuDevicePrimaryCtxSetFlags_v2(0, 4096));
    sheet.line("cuDevicePrimaryCtxGetState then", state());
    let address = sheet.alloc(PAGE).expect("memory");
    sheet.line("cuDevicePrimaryCtxReset_v2", sheet.cuDevicePrimaryCtxReset_v2(0));
    sheet.line("cuMemFree_v2 after the reset", sheet.cuMemFree_v2(address));
    sheet.line("cuMemAlloc_v2 after the reset", code(sheet.alloc(8)));
    sheet.line("cuCtxSynchronize after the reset", sheet.cuCtxSynchronize());
    sheet.line("cuDevicePrimaryCtxGetState after the reset", state());
    sheet.line("cuDevicePrimaryCtxReset_v2 again", sheet.cuDevicePrimaryCtxReset_v2(0));
    sheet.line("cuDevicePrimaryCtxReset_v2 of device 99", sheet.cuDevicePrimaryCtxReset_v2(99));
    sheet.line("cuDevicePrimaryCtxRelease_v2 of the retain before", sheet.cuDevicePrimaryCtxRelease_v2(0));
    sheet.line("cuDevicePrimaryCtxRelease_v2 again", sheet.cuDevicePrimaryCtxRelease_v2(0));
    sheet.line("a retain after the reset has the same context", yes(sheet.enter(0) == Ok(own)));
    sheet.line("cuMemAlloc_v2 then", code(sheet.alloc(8)));
}
