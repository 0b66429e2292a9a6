//! An allocator in a static needs little stack, whatever the size of its tables.

use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, Error, Fixed, MIB, StreamId};
use cachalot_no_alloc::BumpDevice;
use std::thread::Builder;

type Tables = Allocator<BumpDevice, spin::mutex::SpinMutex<()>, Fixed<1, 2, 64, 64>>;

static ALLOCATOR: Tables = Allocator::empty();

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);

/// Runs `act` on a thread with a stack of this many bytes. A stack that overflows ends the test
/// program.
fn on_stack(bytes: usize, act: fn()) {
    Builder::new().stack_size(bytes).spawn(act).unwrap().join().unwrap();
}

fn start() {
    ALLOCATOR.start([BumpDevice::new(100 * MIB)], &Config::new()).unwrap();
}

/// Makes both heaps, fills the tables, runs out of memory, and gives everything back.
fn work() {
    let large = ALLOCATOR.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    let (mut blocks, mut held) = ([DevicePtr::NULL; 64], 0);
    let full = loop {
        match ALLOCATOR.malloc(DEVICE, 512, STREAM) {
            Ok(block) => blocks[held] = block,
            Err(error) => break error,
        }
        held += 1;
    };
    assert_eq!(full, Error::TableFull("blocks"));
    assert!(matches!(ALLOCATOR.malloc(DEVICE, 101 * MIB, STREAM), Err(Error::OutOfMemory(_))));
    blocks[..held].iter().for_each(|&block| ALLOCATOR.free(block).unwrap());
    ALLOCATOR.free(large).unwrap();
    ALLOCATOR.empty_cache(DEVICE).unwrap();
    assert_eq!(ALLOCATOR.device(DEVICE).unwrap().used(), 0);
}

#[test]
fn a_static_allocator_starts_and_works_on_a_small_stack() {
    // The program's own frames, and what the standard library keeps on the stack of a thread, are
    // in the numbers.
    const START: usize = 16 << 10;
    const WORK: usize = 52 << 10;
    assert!(size_of::<Tables>() > 4 * WORK);
    let nothing = || assert_eq!(ALLOCATOR.malloc(DEVICE, 512, STREAM), Err(Error::UnknownDevice(DEVICE)));
    on_stack(START, nothing);
    on_stack(START, start);
    on_stack(WORK, work);
}
