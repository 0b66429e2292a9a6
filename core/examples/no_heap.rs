//! The core without a heap: every table is an array inside the allocator, whose size is known when
//! it is built.
//!
//! `cargo run -p cachalot-core --no-default-features --example no_heap`
//!
//! A program for a bare machine has its own lock and device in place of the ones here. The
//! allocator lies in a static, which the compiler makes, so no table passes over the stack. The
//! library is `no_std`; only `main` and `println!` use the standard library.

use cachalot_core::{
    Allocator, BasicDevice, Config, DeviceError, DeviceIndex, DevicePtr, DeviceResult, Error, ErrorKind, Event, Fixed,
    MemoryInfo, StreamId,
};
use spin::Mutex;

/// One device; 2 heaps, for the small and the large blocks of one stream; 16 blocks in a heap; 64
/// pages of 2 MiB.
type Small = Allocator<Bump, spin::mutex::SpinMutex<()>, Fixed<1, 2, 16, 64>>;

/// The allocator, which `main` starts.
static ALLOCATOR: Small = Allocator::empty();

/// The bytes that this program spends on the allocator. Larger tables fail the build here.
const BYTES: usize = 144 << 10;
const _: () = assert!(cfg!(any(feature = "alloc", feature = "paranoid")) || size_of::<Small>() <= BYTES);

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);

fn main() -> Result<(), Error> {
    sizes();
    ALLOCATOR.start([Bump::new(64 << 20)], &Config::new())?;
    let block = ALLOCATOR.block(DEVICE, 1 << 20, STREAM)?;
    println!("a block of {} bytes at {}", block.bytes(), block.ptr());
    drop(block);
    // Free memory between blocks has entries as well. A full table is an error, and changes
    // nothing.
    let mut blocks: [Option<_>; 16] = [const { None }; 16];
    let full = blocks.iter_mut().find_map(|place| match ALLOCATOR.block(DEVICE, 512, STREAM) {
        Ok(block) => {
            *place = Some(block);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(full, Some(Error::TableFull("blocks")));
    println!("{} blocks fit the tables", blocks.iter().flatten().count());
    Ok(())
}

/// The size of an allocator by the formula in the documentation of [`Fixed`], in bytes.
const fn estimate(devices: usize, heaps: usize, blocks: usize, pages: usize) -> usize {
    devices * (9_800 + heaps * (35_740 + 650 * blocks + 16 * pages) + 2_316 * blocks + 32 * pages)
}

/// Prints how many bytes the numbers of `Fixed` make, and what the formula says.
fn sizes() {
    macro_rules! row {
        ($($devices:literal, $heaps:literal, $blocks:literal, $pages:literal;)*) => {
            $(
                let bytes = size_of::<Allocator<
                    Bump, spin::mutex::SpinMutex<()>, Fixed<$devices, $heaps, $blocks, $pages>
                >>();
                let formula = estimate($devices, $heaps, $blocks, $pages);
                println!(
                    "Fixed<{}, {}, {}, {}>: {} KiB, by the formula {} KiB",
                    $devices, $heaps, $blocks, $pages, bytes >> 10, formula >> 10
                );
                // Without optional parts the formula is right to 5 %.
                assert!(cfg!(any(feature = "alloc", feature = "paranoid")) || bytes.abs_diff(formula) * 20 < bytes);
            )*
        };
    }
    row! {
        1, 2, 16, 64;
        1, 4, 32, 64;
        1, 8, 64, 64;
        1, 8, 64, 512;
        2, 8, 64, 512;
        1, 8, 512, 4096;
    }
}

/// A device that hands out addresses from the bottom up, and takes none back. Its streams do their
/// work at once.
struct Bump {
    capacity: u64,
    used: Mutex<u64>,
}

/// The first address of the device.
const BOTTOM: u64 = 1 << 30;

impl Bump {
    const fn new(capacity: u64) -> Self {
        Self { capacity, used: Mutex::new(0) }
    }
}

impl BasicDevice for Bump {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut used = self.used.lock();
        if bytes > self.capacity - *used {
            return Err(DeviceError::new(ErrorKind::OutOfMemory, 0));
        }
        let base = DevicePtr(BOTTOM + *used);
        *used += bytes;
        Ok(base)
    }

    fn release(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(MemoryInfo { free: self.capacity - *self.used.lock(), total: self.capacity })
    }

    fn create_event(&self) -> DeviceResult<Event> {
        Ok(Event(0))
    }

    fn destroy_event(&self, _: Event) -> DeviceResult<()> {
        Ok(())
    }

    fn record(&self, _: Event, _: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn is_complete(&self, _: Event) -> DeviceResult<bool> {
        Ok(true)
    }

    fn wait(&self, _: Event) -> DeviceResult<()> {
        Ok(())
    }

    fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn is_capturing(&self, _: StreamId) -> DeviceResult<bool> {
        Ok(false)
    }
}

#[test]
fn the_program_runs() {
    main().expect("nothing runs out but what is meant to");
}
