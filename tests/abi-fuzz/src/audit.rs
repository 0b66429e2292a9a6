//! Checks while no thread is at work, and the end of a case.

use crate::abi::{self, blank};
use crate::driver::insist;
use crate::finding::{self, Origin};
use crate::permitted::Situation;
use crate::places::Rest;
use crate::worker::Worker;
use crate::worker::collect;
use crate::worker::parking::Target;
use crate::world::World;
use cachalot::c::abi::{
    CACHALOT_NO_LIMIT, cachalot_block, cachalot_device_info, cachalot_page_statistics, cachalot_statistics,
};
use cachalot::c::status::CACHALOT_ERROR_INVALID_ARGUMENT;
use serde_json::Value;
use std::ffi::{CStr, c_void};
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Waits for all work of all devices.
pub(crate) fn settle(world: &World) {
    for device in 0..world.contexts.len() {
        insist("cuCtxSetCurrent", || world.driver.set_current(world.contexts[device]));
        insist("cuCtxSynchronize", || world.driver.synchronize_context());
    }
}

/// Checks the invariants and the sums.
pub(crate) fn audit(world: &World, workers: &[Worker]) {
    finding::set_origin(Origin { thread: 99, op: workers.iter().map(Worker::done).max().unwrap_or(0) });
    settle(world);
    let allocator = world.allocator;
    // The library's thread would change what is compared.
    allocator.maintain_every(0, 0).judge(world.situation());
    for device in 0..world.contexts.len() as i32 {
        allocator.process_events(device).judge(world.situation());
    }
    for device in 0..world.contexts.len() as i32 {
        // No other thread runs that a hold would refuse.
        allocator.hold_begin(device).judge(Situation::NONE);
        allocator.hold_end(device).judge(Situation::NONE);
        allocator.hold_end(device).must_be(CACHALOT_ERROR_INVALID_ARGUMENT);
    }
    allocator.check().judge(Situation::NONE);
    for device in 0..world.contexts.len() {
        sums(world, workers, device);
    }
}

/// Returns whether a device reaches `count` active blocks after the end of all work. The library's
/// thread was told to end, and may still poll an event.
fn gets_idle(world: &World, device: usize, count: i64) -> bool {
    (0..100).any(|look| {
        if look > 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            world.allocator.process_events(device as i32).judge(world.situation());
        }
        let mut found = blank::<cachalot_statistics>();
        world.allocator.stats(device as i32, &mut found).judge(Situation::NONE);
        found.active_blocks.current == count
    })
}

/// Compares the statistics of a device with the blocks and ranges of the program, and with a
/// snapshot.
fn sums(world: &World, workers: &[Worker], device: usize) {
    let mut found = blank::<cachalot_statistics>();
    world.allocator.stats(device as i32, &mut found).judge(Situation::NONE);
    let (mut count, mut bytes, mut requested) = (0, 0, 0);
    let offered = world.offered.lock();
    let held = workers.iter().flat_map(Worker::all_blocks).chain(offered.iter());
    for block in held.filter(|block| block.stream.device == device) {
        let mut described = blank::<cachalot_block>();
        world.allocator.base_of(abi::pointer(block.address), &mut described).judge(Situation::NONE);
        count += 1;
        bytes += described.bytes as i64;
        requested += block.bytes as i64;
    }
    let mut committed = 0;
    for (ranges, pages) in workers.iter().map(|worker| worker.ranges_of(device)) {
        count += ranges;
        committed += pages;
    }
    bytes += committed;
    requested += committed;
    let wrong = found.allocations.current != count
        || found.allocated_bytes.current != bytes
        || found.active_bytes.current < bytes
        || found.requested_bytes.current < requested;
    if wrong {
        let held = format!("{count} blocks and ranges, {bytes} bytes, {requested} requested");
        finding::report("statistics", &format!("device {device}: {held}; {found:?}"));
    }
    if !world.case.faults && !gets_idle(world, device, count) {
        finding::report("pending", &format!("device {device}: all work is done: {found:?}"));
    }
    let (in_segments, on_host, parts) = segments(world, device);
    let ranges: Vec<(u64, u64)> = workers.iter().flat_map(Worker::range_addresses).collect();
    // Decommitted pages stay in their range until others need them.
    let expected = in_segments + committed..=in_segments + committed.max(world.pages_inside(&ranges) as i64);
    if !expected.contains(&found.reserved_bytes.current) {
        let mut pages = blank::<cachalot_page_statistics>();
        world.allocator.page_stats(device as i32, &mut pages).judge(Situation::NONE);
        let mut info = blank::<cachalot_device_info>();
        world.allocator.device_info(device as i32, &mut info).judge(Situation::NONE);
        let (counter, held) = (found.reserved_bytes.current, info.reserved_bytes);
        let text = format!("device {device}: reserved by a snapshot {expected:?}, by counters {counter}, held {held}");
        let used = info.total_bytes - info.free_bytes;
        let nowhere = world.pages_outside(&[&parts[..], &ranges[..]].concat());
        let text = format!("{text}, pages in no segment: {nowhere:x?}");
        finding::report("sums", &format!("{text}, used {used}; committed {committed}: {pages:?}"));
    }
    of_host(world, device, on_host, world.pages_inside(&ranges));
}

/// Compares the memory of the host that a device holds with the bytes that a snapshot has there,
/// and with what `spill` allows. Pages of ranges, which are in no snapshot, may lie on either side.
fn of_host(world: &World, device: usize, in_segments: i64, in_ranges: u64) {
    let (used, spare) =
        (statistic(world, device, c"pages.spilled_bytes"), statistic(world, device, c"pages.spare_of_host_bytes"));
    world.tally.spilled.fetch_max(used as u64, Ordering::Relaxed);
    let within = (in_segments..=in_segments + in_ranges as i64).contains(&used);
    let most = world.case.most_on_host() as i64;
    if !within || used + spare > most {
        let text = format!("on the host by a snapshot {in_segments} of {most}, by counters {used} and {spare} spare");
        finding::report("spill", &format!("device {device}: {text}, pages of ranges {in_ranges}"));
    }
}

/// Returns a statistic of a device.
fn statistic(world: &World, device: usize, key: &CStr) -> i64 {
    let mut value = -1;
    world.allocator.stat(device as i32, key.as_ptr(), &mut value).judge(Situation::NONE);
    value
}

/// Returns the bytes of all segments of a device, by a snapshot, those of them on the host, and the
/// first and the last address of each segment.
fn segments(world: &World, device: usize) -> (i64, i64, Vec<(u64, u64)>) {
    let mut text: Vec<u8> = Vec::new();
    let into: *mut c_void = (&raw mut text).cast();
    world.allocator.snapshot(null(), Some(collect), into).judge(Situation::NONE);
    let snapshot: Value = match serde_json::from_slice(&text) {
        Ok(snapshot) => snapshot,
        Err(error) => finding::report("text", &format!("a snapshot is no JSON: {error}")),
    };
    let segments = snapshot["segments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |segment: &Value, key: &str| segment[key].as_i64().unwrap_or(0);
    let own: Vec<&Value> = segments.iter().filter(|segment| number(segment, "device") == device as i64).collect();
    let bytes = own.iter().map(|segment| number(segment, "total_size") - number(segment, "parked_size")).sum();
    let ends = |segment: &&Value| {
        let address = segment["address"].as_u64().unwrap_or(0);
        (address, address + segment["total_size"].as_u64().unwrap_or(0))
    };
    let on_host = own.iter().map(|segment| number(segment, "spilled_size")).sum();
    (bytes, on_host, own.iter().map(ends).collect())
}

/// Gives everything back, and destroys the allocator.
pub(crate) fn end(world: &World, workers: &mut [Worker]) {
    let (allocator, devices) = (world.allocator, world.contexts.len());
    for device in 0..devices as i32 {
        allocator.set_caching(device, 1).judge(world.situation());
        allocator.set_limit(device, CACHALOT_NO_LIMIT).judge(world.situation());
    }
    workers[0].begin();
    let mut taken = std::mem::take(&mut *world.offered.lock());
    workers[0].blocks.append(&mut taken);
    wake_all(world, &workers[0]);
    for worker in workers.iter_mut() {
        worker.begin();
        worker.give_all_back();
    }
    settle(world);
    workers[0].begin();
    workers[0].end_groups();
    workers[0].pause();
    for device in 0..devices {
        allocator.process_events(device as i32).judge(world.situation());
        allocator.empty_cache(device as i32).judge(world.situation());
    }
    allocator.check().judge(Situation::NONE);
    for device in 0..devices {
        nothing_left(world, device);
    }
    let held = if world.case.faults { Situation::HELD } else { Situation::NONE };
    allocator.destroy().judge(world.situation() | held);
}

/// Wakes every sleeping target, with memory spared by awake parts of the program.
fn wake_all(world: &World, worker: &Worker) {
    let groups: Vec<_> = world.groups.read().iter().cloned().map(Target::Group).collect();
    let streams = world.streams.read();
    let streams: Vec<_> =
        streams.iter().chain(&world.legacy).map(|stream| Target::Stream(Arc::clone(stream))).collect();
    for target in groups.into_iter().chain(streams) {
        if target.domain().rest() != Rest::Awake {
            worker.wake_by(&target, 2);
        }
    }
}

/// Checks that the allocator has no memory left on a device.
fn nothing_left(world: &World, device: usize) {
    let mut found = blank::<cachalot_statistics>();
    world.allocator.stats(device as i32, &mut found).judge(Situation::NONE);
    let counts = [
        found.allocations.current,
        found.allocated_bytes.current,
        found.active_bytes.current,
        found.requested_bytes.current,
    ];
    if counts != [0; 4] && !world.case.faults {
        finding::report("rest", &format!("device {device}: everything is freed: {found:?}"));
    }
    // Plans keep their segments while they are active.
    let planned = world.case.config.contains("policy:planned");
    let held = found.reserved_bytes.current - found.leaked_bytes as i64;
    if held > 0 && !planned && !world.case.faults {
        finding::report("rest", &format!("device {device}: reserved without a block: {found:?}"));
    }
    let spilled = [c"pages.spilled_bytes", c"pages.spare_of_host_bytes"].map(|key| statistic(world, device, key));
    if spilled != [0; 2] && !planned && !world.case.faults {
        finding::report("rest", &format!("device {device}: {spilled:?} on the host without a block"));
    }
}
