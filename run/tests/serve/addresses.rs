//! Questions of a program about addresses, rows of memory, and handles for other processes.

use super::setup::{PAGE, Setup};
use cachalot_cuda::driver::types::{CuIpcMemHandle, CuPointerAttribute};
use cachalot_run::Options;
use core::ffi::c_void;

/// Returns an attribute of an address, or the code of the refusal.
fn attribute(setup: &Setup, attribute: CuPointerAttribute, address: u64) -> Result<u64, u32> {
    let mut value = 0_u64;
    // SAFETY: the value has room for every attribute asked here.
    let code = unsafe { setup.process.pointer_get_attribute((&raw mut value).cast(), attribute, address) };
    if code.is_success() { Ok(value) } else { Err(code.0) }
}

/// Returns the range around an address.
fn range(setup: &Setup, address: u64) -> Result<(u64, usize), u32> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both variables outlive the call.
    let code = unsafe { setup.process.mem_get_address_range(&raw mut base, &raw mut bytes, address) };
    if code.is_success() { Ok((base, bytes)) } else { Err(code.0) }
}

/// Makes a handle of an address.
fn handle(setup: &Setup, address: u64) -> Result<CuIpcMemHandle, u32> {
    let mut handle = CuIpcMemHandle { reserved: [0; 64] };
    // SAFETY: `handle` outlives the call.
    let code = unsafe { setup.process.ipc_get_mem_handle(&raw mut handle, address) };
    if code.is_success() { Ok(handle) } else { Err(code.0) }
}

/// Opens a handle.
fn open(setup: &Setup, handle: CuIpcMemHandle) -> Result<u64, u32> {
    let mut address = 0;
    // SAFETY: `address` outlives the call.
    let code = unsafe { setup.process.ipc_open_mem_handle(&raw mut address, handle, 1) };
    if code.is_success() { Ok(address) } else { Err(code.0) }
}

#[test]
fn a_range_is_the_block_and_the_bytes_of_its_request() {
    let setup = Setup::new();
    for bytes in [100, 5000, PAGE + 5, 30 * PAGE + 1] {
        let (before, block) = (setup.take(bytes), setup.take(bytes));
        for inside in [0, 1, bytes as u64 - 1] {
            assert_eq!(range(&setup, block + inside), Ok((block, bytes)));
        }
        // SAFETY: null is left out.
        let code = unsafe { setup.process.mem_get_address_range(std::ptr::null_mut(), std::ptr::null_mut(), block) };
        assert_eq!((code.0, setup.give(block)), (0, 0));
        assert_eq!(range(&setup, block), Err(500), "a freed block");
        assert_eq!(range(&setup, before), Ok((before, bytes)));
    }
    assert_eq!(range(&setup, 4096), Err(500));
    let foreign = setup.alloc(PAGE).expect("memory");
    assert_eq!(range(&setup, foreign + 7), Ok((foreign, PAGE)));
}

#[test]
fn attributes_are_those_of_the_block() {
    let setup = Setup::new();
    let (one, two) = (setup.take(1000), setup.take(1000));
    assert_eq!(attribute(&setup, CuPointerAttribute::RANGE_START_ADDR, two + 5), Ok(two));
    assert_eq!(attribute(&setup, CuPointerAttribute::RANGE_SIZE, two + 5), Ok(1000));
    let number = attribute(&setup, CuPointerAttribute::BUFFER_ID, two).expect("a number");
    assert_eq!(attribute(&setup, CuPointerAttribute::BUFFER_ID, two + 999), Ok(number));
    assert_ne!(attribute(&setup, CuPointerAttribute::BUFFER_ID, one), Ok(number));
    assert_eq!(attribute(&setup, CuPointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE, two), Ok(1));
    let ordered = setup.take_on(1000, setup.stream());
    assert_eq!(attribute(&setup, CuPointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE, ordered), Ok(0));
    assert_eq!(setup.give(two), 0);
    for asked in [
        CuPointerAttribute::RANGE_START_ADDR,
        CuPointerAttribute::BUFFER_ID,
        CuPointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE,
        CuPointerAttribute(2),
    ] {
        assert_eq!(attribute(&setup, asked, two), Err(1), "a freed block");
    }
    // The block after a block at the same address has another number.
    let again = (0..5000).map(|_| setup.take(1000)).find(|&address| address == two).expect("complete");
    assert!(attribute(&setup, CuPointerAttribute::BUFFER_ID, again).is_ok_and(|other| other != number));
}

#[test]
fn several_attributes_are_answered_together() {
    let setup = Setup::new();
    let blocks = [setup.take(700), setup.take(700)];
    let ask = |address: u64| {
        let mut asked = [
            CuPointerAttribute::RANGE_START_ADDR,
            CuPointerAttribute::RANGE_SIZE,
            CuPointerAttribute::BUFFER_ID,
            CuPointerAttribute(2),
        ];
        let mut values = [0_u64; 4];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: both arrays have 4 entries, and each place has room for its attribute.
        let code = unsafe { setup.process.pointer_get_attributes(4, asked.as_mut_ptr(), places.as_mut_ptr(), address) };
        assert_eq!(code.0, 0);
        values
    };
    let values = ask(blocks[1] + 3);
    assert_eq!(values[..2], [blocks[1], 700]);
    assert_eq!((values[3] as u32, values[2] >= 1 << 62), (2, true));
    assert_eq!(setup.give(blocks[1]), 0);
    assert_eq!(ask(blocks[1])[3] as u32, 0, "a freed block has no type");
}

#[test]
fn synchronous_operations_are_chosen_for_each_block() {
    let setup = Setup::new();
    let (one, two) = (setup.take(1000), setup.take(1000));
    let set = |address: u64, on: u32| {
        // SAFETY: the value outlives the call.
        unsafe { setup.process.pointer_set_attribute((&raw const on).cast(), CuPointerAttribute::SYNC_MEMOPS, address) }
            .0
    };
    let flags =
        || [one, two].map(|block| attribute(&setup, CuPointerAttribute::SYNC_MEMOPS, block).map(|value| value as u32));
    assert_eq!(flags(), [Ok(0), Ok(0)]);
    assert_eq!((set(two + 9, 1), flags()), (0, [Ok(0), Ok(1)]));
    assert_eq!((set(one, 1), set(two, 0), flags()), (0, 0, [Ok(1), Ok(0)]));
    assert_eq!(setup.give(one), 0);
    let again = (0..5000).map(|_| setup.take(1000)).find(|&address| address == one).expect("complete");
    assert_eq!(attribute(&setup, CuPointerAttribute::SYNC_MEMOPS, again), Ok(0), "a new block begins without the flag");
    assert_eq!(set(4096, 1), 1);
}

#[test]
fn a_flag_that_is_set_while_a_neighbour_is_freed_stays_set() {
    let setup = Setup::new();
    let (freed, kept) = (setup.take(1000), setup.take(1000));
    let set = |address: u64| {
        let on = 1_u32;
        // SAFETY: the value outlives the call.
        unsafe { setup.process.pointer_set_attribute((&raw const on).cast(), CuPointerAttribute::SYNC_MEMOPS, address) }
            .0
    };
    assert_eq!(set(freed), 0);
    // The free takes the flag back late.
    setup.control.plan(r#"{"fn": "cuPointerSetAttribute", "delay_us": 200000}"#).expect("a plan");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            assert_eq!(setup.give(freed), 0);
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(set(kept), 0);
    });
    let mut flag = 0_u32;
    let attribute = CuPointerAttribute::SYNC_MEMOPS;
    // SAFETY: the variable outlives the call.
    let code = unsafe { setup.process.real().pointer_get_attribute((&raw mut flag).cast(), attribute, kept) };
    assert_eq!((code.0, flag), (0, 1), "the driver's own flag");
}

#[test]
fn rows_have_the_drivers_pitch() {
    let setup = Setup::new();
    for (width, height, element) in [(1, 1, 4), (511, 3, 8), (512, 9, 16), (513, 100, 4), (100_000, 700, 4)] {
        let ((mut address, mut pitch), (mut plain, mut expected)) = ((0, 0), (0, 0));
        // SAFETY: both variables outlive the call.
        let code = unsafe { setup.process.mem_alloc_pitch(&raw mut address, &raw mut pitch, width, height, element) };
        assert_eq!(setup.cuMemAllocPitch_v2(&mut plain, &mut expected, width, height, element), 0);
        assert_eq!((code.0, pitch), (0, expected));
        assert_eq!(range(&setup, address), Ok((address, pitch * height)));
        assert_eq!(setup.give(address), 0);
    }
    for (width, height, element) in [(0, 1, 4), (1, 0, 4), (1, 1, 5), (usize::MAX, 2, 4)] {
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: both variables outlive the call.
        let code = unsafe { setup.process.mem_alloc_pitch(&raw mut address, &raw mut pitch, width, height, element) };
        assert_ne!(code.0, 0, "{width} × {height} of {element}");
    }
}

#[test]
fn a_block_that_begins_its_segment_has_the_drivers_handle() {
    let setup = Setup::new();
    for bytes in [PAGE, 3 * PAGE + 9, 11 * PAGE, 40 * PAGE] {
        // Segments that serve again, too.
        for _ in 0..3 {
            let block = setup.take(bytes);
            let mut plain = [0; 64];
            let mut real = CuIpcMemHandle { reserved: plain };
            // SAFETY: `real` outlives the call.
            let code = unsafe { setup.process.real().ipc_get_mem_handle(&raw mut real, block) };
            plain.copy_from_slice(&real.reserved);
            assert_eq!((code.0, handle(&setup, block).map(|handle| handle.reserved)), (0, Ok(plain)), "{bytes}");
            assert_eq!(setup.give(block), 0);
        }
    }
}

#[test]
fn a_smaller_block_is_opened_as_itself_and_never_as_its_neighbour() {
    let setup = Setup::new();
    let importer = Setup::new();
    let blocks = [setup.take(1000), setup.take(1000)];
    for (at, &block) in blocks.iter().enumerate() {
        setup.fill(block, at as u8 + 1, 1000, 0);
    }
    assert_eq!(setup.cuCtxSynchronize(), 0);
    let made = handle(&setup, blocks[1]).expect("a handle");
    assert_eq!(handle(&setup, blocks[1] + 8), Ok(made));
    assert_eq!(importer.cuCtxSetCurrent(importer.context), 0);
    let opened = open(&importer, made).expect("opened");
    assert_eq!(importer.now(opened, 1000), [2; 1000]);
    assert_eq!(range(&importer, opened + 5), Ok((opened, 1000)));
    assert_eq!(open(&importer, made), Ok(opened));
    let close = || {
        // SAFETY: no work uses the memory.
        unsafe { importer.process.ipc_close_mem_handle(opened) }.0
    };
    assert_eq!([close(), close()], [0, 0]);
    assert_ne!(close(), 0, "closed more often than opened");
    // The driver itself refuses the library's handle.
    let mut address = 0;
    // SAFETY: `address` outlives the call.
    let refused = unsafe { importer.process.real().ipc_open_mem_handle(&raw mut address, made, 1) };
    assert_ne!(refused.0, 0);
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    assert_eq!(setup.give(blocks[1]), 0);
    assert_eq!(importer.cuCtxSetCurrent(importer.context), 0);
    assert_eq!(open(&importer, made), Err(1), "a freed block");
}

#[test]
fn memory_without_a_legacy_handle_has_none() {
    let setup = Setup::new();
    let ordered = setup.take_on(PAGE, setup.stream());
    assert_eq!(handle(&setup, ordered), Err(1));
    let block = setup.take(PAGE);
    assert_eq!((setup.give(block), handle(&setup, block)), (0, Err(1)));
    let pages = Setup::with(&[], Options { settings: "policy:stitched".to_owned(), ..Options::default() });
    let block = pages.take(PAGE);
    assert!(handle(&pages, block).is_err());
}

#[test]
fn an_allocation_that_nobody_saw_is_counted_when_it_is_freed() {
    let setup = Setup::with(&[], Options { ledger: true, ..Options::default() });
    let mut managed = 0;
    // SAFETY: `managed` outlives the call.
    assert_eq!(unsafe { setup.process.mem_alloc_managed(&raw mut managed, PAGE, 1) }.0, 0);
    // A pool that another device may use is the driver's.
    let stream = setup.stream();
    assert_eq!(setup.open_default_pool(0, 1), 0);
    let passed = setup.take_on(PAGE, stream);
    let unseen = setup.alloc(PAGE).expect("memory");
    assert_eq!((setup.give(setup.take(PAGE)), setup.give(managed), setup.give_on(passed, stream)), (0, 0, 0));
    assert_eq!((setup.give(0), setup.process.counts().missed), (0, 0));
    assert_eq!((setup.give(unseen), setup.give(unseen), setup.process.counts().missed), (0, 1, 1));
}
