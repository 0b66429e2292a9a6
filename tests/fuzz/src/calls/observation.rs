//! Calls that observe the allocator: statistics, callbacks, traces, snapshots.

use super::allocators::Room;
use super::argument::{Device, Handle, Size, Text, Word};
use super::callbacks;
use super::world::World;
use cachalot::c::abi::{cachalot_format, cachalot_snapshot_options, cachalot_statistics, cachalot_status};
use cachalot::c::capi::{
    cachalot_check_invariants, cachalot_find_statistic, cachalot_get_statistics, cachalot_on_out_of_memory,
    cachalot_on_shortage, cachalot_on_stack, cachalot_recorder_start, cachalot_reset_accumulated, cachalot_reset_peaks,
    cachalot_snapshot, cachalot_trace_start, cachalot_visit_statistics, cachalot_visit_trace,
};
use std::ffi::c_char;
use std::ptr::{from_mut, from_ref, null, null_mut};

/// Longest trace. A longer trace would exhaust the fuzzer's memory.
const LONGEST_TRACE: usize = 1 << 16;
/// Length of a trace beyond any host's memory.
const ENDLESS_TRACE: usize = 1 << 56;

/// Returns a callback, if it is to be set.
macro_rules! optional {
    ($is_set:expr, $callback:path) => {
        $is_set.then_some($callback as _)
    };
}

// The last number is the number of calls of a callback before the callback stops.
calls! {
    |world|
    Statistics(handle: Handle, device: Device, size: Size) => {
        let mut room = Room::new();
        // SAFETY: the room outlives the call.
        unsafe { cachalot_get_statistics(world.handle(handle), device.0, room.of::<cachalot_statistics>(size)) }
    },
    Statistic(handle: Handle, device: Device, key: Option<Text>) => {
        let (key, mut value) = (Text::pointer(key.as_ref()), 0);
        // SAFETY: the text and the variable outlive the call.
        unsafe { cachalot_find_statistic(world.handle(handle), device.0, key, &raw mut value) }
    },
    EachStatistic(handle: Handle, device: Device, count: Option<u8>) => {
        let (visit, mut left) = (optional!(count.is_some(), callbacks::see_statistic), count.unwrap_or(0));
        // SAFETY: the counter outlives the call.
        unsafe { cachalot_visit_statistics(world.handle(handle), device.0, visit, from_mut(&mut left).cast()) }
    },
    ResetPeaks(handle: Handle, device: Device) => cachalot_reset_peaks(world.handle(handle), device.0),
    ResetAccumulated(handle: Handle, device: Device) => cachalot_reset_accumulated(world.handle(handle), device.0),
    OnShortage(handle: Handle, on: bool) => {
        // SAFETY: the callback uses no userdata.
        unsafe { cachalot_on_shortage(world.handle(handle), optional!(on, callbacks::free_nothing), null_mut()) }
    },
    OnOutOfMemory(handle: Handle, on: bool) => {
        // SAFETY: the callback uses no userdata.
        unsafe { cachalot_on_out_of_memory(world.handle(handle), optional!(on, callbacks::read_report), null_mut()) }
    },
    OnStack(handle: Handle, on: bool) => {
        // SAFETY: the callback uses no userdata.
        unsafe { cachalot_on_stack(world.handle(handle), optional!(on, callbacks::describe), null_mut()) }
    },
    TraceStart(handle: Handle, device: Device, capacity: Word) => {
        let capacity = match capacity.0 as usize {
            endless @ ENDLESS_TRACE.. => endless,
            capacity => capacity.min(LONGEST_TRACE),
        };
        cachalot_trace_start(world.handle(handle), device.0, capacity)
    },
    RecorderStart(handle: Handle, text: u8) => {
        // No file is written: a failed request is no rare thing here.
        let text = match text {
            0..64 => c"files:0,events:1".as_ptr(),
            64..128 => c"0".as_ptr(),
            128..192 => c"files:0,events:1000".as_ptr(),
            192..224 => c"files:x".as_ptr(),
            _ => c"events:0,files:0,stacks:True".as_ptr(),
        };
        // SAFETY: the text is NUL-terminated.
        unsafe { cachalot_recorder_start(world.handle(handle), text) }
    },
    EachEvent(handle: Handle, device: Device, count: Option<u8>) => {
        let (visit, mut left) = (optional!(count.is_some(), callbacks::see_event), count.unwrap_or(0));
        // SAFETY: the counter outlives the call.
        unsafe { cachalot_visit_trace(world.handle(handle), device.0, visit, from_mut(&mut left).cast()) }
    },
    Snapshot(handle: Handle, count: Option<u8>) => world.write_snapshot(handle, None, *count),
    SnapshotAs(handle: Handle, format: u8, count: Option<u8>) => {
        let format = i32::from(if *format < 240 { format % 2 + 1 } else { *format });
        world.write_snapshot(handle, Some((null(), format)), *count)
    },
    SnapshotToFile(handle: Handle, file: u8) => {
        let path = match file {
            0..128 => c"/dev/null".as_ptr(),
            128..192 => c"/dev/full".as_ptr(),
            192..224 => c"".as_ptr(),
            _ => null(),
        };
        world.write_snapshot(handle, Some((path, 0)), None)
    },
    Check(handle: Handle) => cachalot_check_invariants(world.handle(handle)),
}

impl World {
    /// Writes a snapshot to a file, or to a callback that stops after `count` calls.
    fn write_snapshot(
        &self,
        handle: &Handle,
        to: Option<(*const c_char, cachalot_format)>,
        count: Option<u8>,
    ) -> cachalot_status {
        let (write, mut left) = (optional!(count.is_some(), callbacks::write), count.unwrap_or(0));
        let struct_size = size_of::<cachalot_snapshot_options>();
        let options = to.map(|(path, format)| cachalot_snapshot_options { struct_size, path, format, flags: 0 });
        let options = options.as_ref().map_or(null(), from_ref);
        // SAFETY: the counter outlives the call, and the texts are static.
        unsafe { cachalot_snapshot(self.handle(handle), options, write, from_mut(&mut left).cast()) }
    }
}
