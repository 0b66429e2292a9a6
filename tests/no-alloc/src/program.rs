//! The program: requests on two streams, a pool, a shortage, full tables, and everything given
//! back.

use crate::device::BumpDevice;
use cachalot_core::{
    Action, Allocator, Config, DeviceIndex, DevicePtr, Error, Fixed, MIB, PointerFault, PoolOptions, Route,
    RoutePurpose, StreamId,
};

/// An allocator for one device, two streams, a pool on one of the streams, 24 blocks per heap, and
/// 64 pages.
type Small = Allocator<BumpDevice, spin::mutex::SpinMutex<()>, Fixed<1, 6, 24, 64>>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAMS: [StreamId; 2] = [StreamId(0), StreamId(1)];

/// Checks an expectation. `otherwise` describes the failure.
fn expect(holds: bool, otherwise: &'static str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(Failed::Unexpected(otherwise)) }
}

/// Why the program failed.
#[derive(Debug)]
pub enum Failed {
    /// A call to the allocator did.
    Allocator(Error),
    /// An expectation does not hold.
    Unexpected(&'static str),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Allocator(error)
    }
}

impl From<&'static str> for Failed {
    fn from(violated: &'static str) -> Self {
        Self::Unexpected(violated)
    }
}

/// Runs the program.
///
/// # Errors
/// The first expectation that does not hold.
pub fn run() -> Result<(), Failed> {
    let config = Config::parse("max_split_size_mb:32").map_err(|_| "the configuration is valid")?;
    let allocator = Small::new([BumpDevice::new(100 * MIB)], &config)?;
    allocator.trace(DEVICE)?.record(16)?;
    requests(&allocator)?;
    other_streams(&allocator)?;
    a_pool(&allocator)?;
    shortages(&allocator)?;
    allocator.empty_cache(DEVICE)?;
    allocator.check_invariants()?;
    let device = allocator.device(DEVICE).ok_or("there is a device")?;
    expect(device.used() == 0, "everything went back")?;
    let mut last = None;
    allocator.trace(DEVICE)?.for_each(|entry| last = Some(entry.action));
    expect(last == Some(Action::SegmentFree), "the last event is a release")
}

fn requests(allocator: &Small) -> Result<(), Failed> {
    let first = allocator.malloc(DEVICE, 1000, STREAMS[0])?;
    // Behind it, on the same page, is another heap's segment: the address alone does not say whose
    // it is.
    let large = allocator.malloc(DEVICE, 3 * MIB, STREAMS[1])?;
    expect(large == first.offset(2 * MIB), "segments are packed")?;
    expect(allocator.base_of(large.offset(5))?.base == large, "an address inside leads to its block")?;
    allocator.free_sized(first, 1000)?;
    expect(allocator.malloc(DEVICE, 700, STREAMS[0])? == first, "a freed block is reused")?;
    allocator.check_invariants()?;
    let wrong = first.offset(512);
    let fault = PointerFault::Interior { block: first, requested: 700 };
    expect(
        allocator.free(wrong) == Err(Error::InvalidPointer { ptr: wrong, fault }),
        "only what is held can be freed",
    )?;
    allocator.free(first)?;
    allocator.free(large)?;
    let mut keys = 0;
    allocator.stats(DEVICE)?.totals().for_each(|_, _| keys += 1);
    expect(keys == 123, "every statistic is there")
}

fn other_streams(allocator: &Small) -> Result<(), Failed> {
    let used = allocator.malloc(DEVICE, 5000, STREAMS[0])?;
    allocator.record_stream(used, STREAMS[1])?;
    allocator.free(used)?;
    let other = allocator.malloc(DEVICE, 5000, STREAMS[0])?;
    expect(other != used, "the other stream is not done")?;
    allocator.device(DEVICE).ok_or("there is a device")?.complete_all();
    expect(allocator.malloc(DEVICE, 5000, STREAMS[0])? == used, "now it is")?;
    allocator.free(used)?;
    allocator.free(other)?;
    Ok(())
}

fn a_pool(allocator: &Small) -> Result<(), Failed> {
    let pool = allocator.pools(DEVICE)?.create(PoolOptions { use_on_oom: false, no_split: true })?;
    allocator.pools(DEVICE)?.begin_route(pool, Route::Stream(STREAMS[0]), RoutePurpose::Requests)?;
    let blocks = [allocator.malloc(DEVICE, MIB, STREAMS[0])?, allocator.malloc(DEVICE, MIB, STREAMS[0])?];
    allocator.pools(DEVICE)?.end_route(pool, RoutePurpose::Requests)?;
    for block in blocks {
        expect(allocator.base_of(block)?.segment == block, "the pool does not split")?;
        allocator.free(block)?;
    }
    allocator.pools(DEVICE)?.release(pool)?;
    allocator.pools(DEVICE)?.release(pool)?;
    allocator.pools(DEVICE)?.empty(pool)?;
    expect(allocator.pools(DEVICE).unwrap().users(pool) == Err(Error::UnknownPool(pool)), "the pool is gone")
}

/// Memory runs out, then a table: neither loses anything.
fn shortages(allocator: &Small) -> Result<(), Failed> {
    allocator.empty_cache(DEVICE)?;
    let refused = allocator.malloc(DEVICE, 101 * MIB, STREAMS[0]);
    expect(matches!(refused, Err(Error::OutOfMemory(_))), "the device is smaller")?;
    let mut blocks = [DevicePtr::NULL; 24];
    let mut held = 0;
    let full = loop {
        match allocator.malloc(DEVICE, 512, STREAMS[1]) {
            Ok(block) => blocks[held] = block,
            Err(error) => break error,
        }
        held += 1;
    };
    expect(full == Error::TableFull("blocks"), "the table of blocks is full before the device")?;
    allocator.check_invariants()?;
    for block in &blocks[..held] {
        allocator.free(*block)?;
    }
    expect(held > 20, "nearly all entries can be used")
}
