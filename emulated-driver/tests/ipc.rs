//! Memory of `cuMemAlloc` in another process. The codes are those of driver 580.159 on an H100.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use cachalot_emulated_driver::api::{Given, IpcMemory};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY: u32 = 1;
/// A page as an offset.
const STEP: u64 = PAGE as u64;

/// Returns the handle of memory.
fn handle(driver: &Emulated, address: u64) -> Given<IpcMemory> {
    let mut handle = IpcMemory([0; 64]);
    match driver.cuIpcGetMemHandle(&mut handle, address) {
        0 => Ok(handle),
        code => Err(code),
    }
}

/// Opens memory.
fn open(driver: &Emulated, handle: IpcMemory) -> Given<u64> {
    let mut address = 0;
    match driver.cuIpcOpenMemHandle_v2(&mut address, handle, LAZY) {
        0 => Ok(address),
        code => Err(code),
    }
}

/// Writes a handle as text for a child's environment.
fn written(handle: &IpcMemory) -> String {
    handle.0.map(|byte| format!("{byte:02x}")).concat()
}

/// Reads a handle of [`written`].
fn passed(variable: &str) -> IpcMemory {
    let text = std::env::var(variable).expect("the parent passes it");
    let byte = |index: usize| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("a number");
    IpcMemory(std::array::from_fn(byte))
}

#[test]
fn another_process_opens_the_allocation_that_a_handle_names() {
    const NAME: &str = "another_process_opens_the_allocation_that_a_handle_names";
    let driver = Emulated::new();
    if is_child(NAME) {
        let (large, small) = (passed("LARGE"), passed("SMALL"));
        let address = open(&driver, large).expect("opened");
        assert_eq!(open(&driver, large), Ok(address), "the same address again");
        assert_eq!(driver.read(address, 2), Ok(vec![1, 2]));
        assert_eq!(driver.read(address + 3 * STEP - 1, 1), Ok(vec![3]));
        let inside = open(&driver, small).expect("opened");
        // The start of the allocation, although the page has other allocations before it.
        assert_eq!(driver.read(inside, 1), Ok(vec![7]));
        let (mut base, mut bytes) = (0, 0);
        assert_eq!(driver.cuMemGetAddressRange_v2(&mut base, &mut bytes, inside + 5), 0);
        assert_eq!((base, bytes), (inside, 1000));
        let stream = driver.stream(1).expect("a stream");
        assert_eq!((driver.cuMemsetD8Async(address, 9, 2, stream), driver.cuStreamSynchronize(stream)), (0, 0));
        let mut legacy = 7_u32;
        assert_eq!(driver.cuPointerGetAttribute((&raw mut legacy).cast(), 10, address), 0);
        assert_eq!((legacy, handle(&driver, address)), (0, Err(1)), "not passed on");
        assert_eq!((driver.cuMemFree_v2(address), driver.cuMemFreeAsync(address, stream)), (1, 1));
        let close = || driver.cuIpcCloseMemHandle(address);
        assert_eq!([close(), close(), close()], [0, 0, 1]);
        assert_eq!((driver.read(address, 1), driver.count("opened")), (Err(1), 1));
        assert_eq!((driver.cuIpcCloseMemHandle(inside), driver.count("opened")), (0, 0));
        assert_eq!(driver.info().expect("info").0, 1 << 30, "no memory of this process");
        return;
    }
    // Memory in two pieces of the device's file.
    let apart: Vec<u64> = (0..3).map(|_| driver.alloc(PAGE).expect("memory")).collect();
    let rest = driver.alloc((1 << 30) - 6 * PAGE).expect("memory");
    assert_eq!((driver.cuMemFree_v2(apart[1]), driver.cuMemFree_v2(apart[0])), (0, 0));
    let (first, second) = (driver.alloc(1000).expect("memory"), driver.alloc(1000).expect("memory"));
    let large = driver.alloc(3 * PAGE).expect("memory");
    assert_eq!((driver.write(large, &[1, 2]), driver.write(large + 3 * STEP - 1, &[3])), (0, 0));
    assert_eq!((driver.write(first, &[6]), driver.write(second, &[7])), (0, 0));
    let (large_handle, small_handle) = (handle(&driver, large).expect("one"), handle(&driver, second).expect("one"));
    let child = in_child(NAME, &[("LARGE", &written(&large_handle)), ("SMALL", &written(&small_handle))]);
    assert!(child.status.success(), "{}", text(&child));
    assert_eq!(driver.read(large, 2), Ok(vec![9, 9]));
    assert_eq!(driver.cuMemFree_v2(rest), 0);
}

#[test]
fn a_handle_names_the_allocation_and_not_the_address() {
    let driver = Emulated::new();
    let (address, small) = (driver.alloc(2 * PAGE).expect("memory"), driver.alloc(1000).expect("memory"));
    let whole = handle(&driver, address);
    assert!(whole.is_ok());
    assert_eq!((handle(&driver, address), handle(&driver, address + 4096)), (whole, whole));
    assert_ne!(handle(&driver, small), handle(&driver, driver.alloc(1000).expect("memory")));
    // The same address in a new life has another handle.
    assert_eq!(driver.cuMemFree_v2(address), 0);
    assert_eq!(driver.alloc(2 * PAGE), Ok(address));
    assert_ne!(handle(&driver, address), whole);
}

#[test]
fn only_plain_memory_has_a_handle() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let (base, physical) = (driver.reserve(2 * PAGE).expect("addresses"), driver.create(PAGE).expect("memory"));
    assert_eq!((driver.cuMemMap(base, PAGE, 0, physical, 0), driver.allow(base, PAGE)), (0, 0));
    let (mut managed, mut host) = (0, std::ptr::null_mut());
    assert_eq!((driver.cuMemAllocManaged(&mut managed, 8, 1), driver.cuMemAllocHost_v2(&mut host, 8)), (0, 0));
    let freed = driver.alloc(PAGE).expect("memory");
    assert_eq!(driver.cuMemFree_v2(freed), 0);
    let pool = driver.alloc_async(PAGE, stream).expect("memory");
    for address in [base, base + STEP, managed, host as u64, pool, freed, 4096, 0] {
        assert_eq!(handle(&driver, address), Err(1), "{address:#x}");
    }
    assert_eq!(driver.cuCtxSetCurrent(0), 0);
    assert_eq!(handle(&driver, 4096), Err(201));
}

#[test]
fn what_cannot_be_opened_is_refused() {
    // Two copies of the library are two drivers, as two processes are.
    let (owner, other) = (Emulated::new(), Emulated::new());
    let address = owner.alloc(PAGE).expect("memory");
    let given = handle(&owner, address).expect("a handle");
    assert_eq!(open(&owner, given), Err(201), "a process has its own memory already");
    assert_eq!([0, 2].map(|flags| other.cuIpcOpenMemHandle_v2(&mut 0, given, flags)), [1, 1]);
    assert_eq!([[0; 64], [7; 64]].map(|bytes| open(&other, IpcMemory(bytes))), [Err(1), Err(1)]);
    let mut wrong = given;
    wrong.0[16] ^= 1;
    assert_eq!(open(&other, wrong), Err(1), "the number by chance does not fit");
    let own = other.alloc(8).expect("memory");
    assert_eq!([own, 4096, 0].map(|address| other.cuIpcCloseMemHandle(address)), [1, 1, 1]);
    assert_eq!(owner.cuMemFree_v2(address), 0);
    assert_eq!(open(&other, given), Err(1), "the memory is gone");
}

#[test]
fn a_close_waits_for_the_work() {
    let (owner, other) = (Emulated::new(), Emulated::new());
    let address = owner.alloc(PAGE).expect("memory");
    let opened = open(&other, handle(&owner, address).expect("a handle")).expect("opened");
    let stream = other.stream(1).expect("a stream");
    other.control.hold(stream).expect("a stream");
    assert_eq!(other.cuMemsetD8Async(opened, 4, PAGE, stream), 0);
    std::thread::scope(|scope| {
        let close = scope.spawn(|| {
            other.enter(0).expect("a context");
            other.cuIpcCloseMemHandle(opened)
        });
        while other.count("opened") > 0 {
            std::thread::yield_now();
        }
        assert!(!close.is_finished());
        other.control.release(stream).expect("a stream");
        assert_eq!(close.join().expect("joined"), 0);
    });
    assert_eq!(owner.read(address, PAGE), Ok(vec![4; PAGE]));
}

#[test]
fn the_end_of_a_context_closes_what_the_context_opened() {
    let (owner, other) = (Emulated::new(), Emulated::new());
    let given = handle(&owner, owner.alloc(PAGE).expect("memory")).expect("a handle");
    let opened = open(&other, given).expect("opened");
    assert_eq!((other.cuDevicePrimaryCtxReset_v2(0), other.count("opened")), (0, 0));
    other.enter(0).expect("a context");
    assert_eq!(other.cuIpcCloseMemHandle(opened), 1);
    assert!(open(&other, given).is_ok());
}
