//! Calls that observe the allocator: statistics, callbacks, traces, snapshots.

use super::allocators::Room;
use super::argument::{Device, Handle, Size, Text, Word};
use super::callbacks;
use super::world::World;
use arbitrary::Arbitrary;
use cachalot::c::abi::{cachalot_format, cachalot_snapshot_options, cachalot_statistics, cachalot_status};
use cachalot::c::capi::{
    cachalot_check_invariants, cachalot_find_statistic, cachalot_get_statistics, cachalot_on_out_of_memory,
    cachalot_on_shortage, cachalot_on_stack, cachalot_reset_accumulated, cachalot_reset_peaks, cachalot_snapshot,
    cachalot_trace_start, cachalot_visit_statistics, cachalot_visit_trace,
};
use std::ffi::c_char;
use std::ptr::{from_mut, null, null_mut};

/// Longest trace. A longer trace would exhaust the fuzzer's memory.
const LONGEST_TRACE: usize = 1 << 16;
/// Length of a trace beyond any host's memory.
const ENDLESS_TRACE: usize = 1 << 56;

/// Returns the options of a snapshot.
fn options(path: *const c_char, format: cachalot_format) -> cachalot_snapshot_options {
    cachalot_snapshot_options { struct_size: size_of::<cachalot_snapshot_options>(), path, format, reserved: 0 }
}

/// A call. The last number is the number of calls of a callback before the callback stops.
#[derive(Arbitrary, Debug)]
pub(super) enum Call {
    Statistics(Handle, Device, Size),
    Statistic(Handle, Device, Option<Text>),
    EachStatistic(Handle, Device, Option<u8>),
    ResetPeaks(Handle, Device),
    ResetAccumulated(Handle, Device),
    OnShortage(Handle, bool),
    OnOutOfMemory(Handle, bool),
    OnStack(Handle, bool),
    TraceStart(Handle, Device, Word),
    EachEvent(Handle, Device, Option<u8>),
    Snapshot(Handle, Option<u8>),
    SnapshotAs(Handle, u8, Option<u8>),
    SnapshotToFile(Handle, u8),
    Check(Handle),
}

impl World {
    pub(super) fn call_observation(&mut self, call: &Call) -> cachalot_status {
        match call {
            Call::Statistics(handle, device, size) => {
                let mut room = Room::new();
                // SAFETY: the room outlives the call.
                unsafe { cachalot_get_statistics(self.handle(handle), device.0, room.of::<cachalot_statistics>(size)) }
            }
            Call::Statistic(handle, device, key) => {
                let (key, mut value) = (key.as_ref().map_or(null(), |text| text.0.as_ptr()), 0);
                // SAFETY: the text and the variable outlive the call.
                unsafe { cachalot_find_statistic(self.handle(handle), device.0, key, &raw mut value) }
            }
            Call::EachStatistic(handle, device, count) => {
                let (visit, mut left) = (count.map(|_| callbacks::see_statistic as _), count.unwrap_or(0));
                let userdata = from_mut(&mut left).cast();
                // SAFETY: the counter outlives the call.
                unsafe { cachalot_visit_statistics(self.handle(handle), device.0, visit, userdata) }
            }
            Call::ResetPeaks(handle, device) => cachalot_reset_peaks(self.handle(handle), device.0),
            Call::ResetAccumulated(handle, device) => cachalot_reset_accumulated(self.handle(handle), device.0),
            Call::TraceStart(handle, device, capacity) => {
                let capacity = match capacity.0 as usize {
                    endless @ ENDLESS_TRACE.. => endless,
                    capacity => capacity.min(LONGEST_TRACE),
                };
                cachalot_trace_start(self.handle(handle), device.0, capacity)
            }
            Call::EachEvent(handle, device, count) => {
                let (visit, mut left) = (count.map(|_| callbacks::see_event as _), count.unwrap_or(0));
                let userdata = from_mut(&mut left).cast();
                // SAFETY: the counter outlives the call.
                unsafe { cachalot_visit_trace(self.handle(handle), device.0, visit, userdata) }
            }
            Call::Check(handle) => cachalot_check_invariants(self.handle(handle)),
            Call::OnShortage(..) | Call::OnOutOfMemory(..) | Call::OnStack(..) => self.set_callback(call),
            Call::Snapshot(..) | Call::SnapshotAs(..) | Call::SnapshotToFile(..) => self.write_snapshot(call),
        }
    }

    fn set_callback(&self, call: &Call) -> cachalot_status {
        match call {
            Call::OnShortage(handle, on) => {
                let callback = on.then_some(callbacks::free_nothing as _);
                // SAFETY: the callback uses no userdata.
                unsafe { cachalot_on_shortage(self.handle(handle), callback, null_mut()) }
            }
            Call::OnOutOfMemory(handle, on) => {
                let callback = on.then_some(callbacks::read_report as _);
                // SAFETY: the callback uses no userdata.
                unsafe { cachalot_on_out_of_memory(self.handle(handle), callback, null_mut()) }
            }
            Call::OnStack(handle, on) => {
                let callback = on.then_some(callbacks::describe as _);
                // SAFETY: the callback uses no userdata.
                unsafe { cachalot_on_stack(self.handle(handle), callback, null_mut()) }
            }
            _ => unreachable!("{call:?} sets no callback"),
        }
    }

    fn write_snapshot(&self, call: &Call) -> cachalot_status {
        match call {
            Call::Snapshot(handle, count) => {
                let (write, mut left) = (count.map(|_| callbacks::write as _), count.unwrap_or(0));
                // SAFETY: the counter outlives the call.
                unsafe { cachalot_snapshot(self.handle(handle), null(), write, from_mut(&mut left).cast()) }
            }
            Call::SnapshotAs(handle, format, count) => {
                let (write, mut left) = (count.map(|_| callbacks::write as _), count.unwrap_or(0));
                let format = i32::from(if *format < 240 { format % 2 + 1 } else { *format });
                let options = options(null(), format);
                // SAFETY: the counter outlives the call.
                unsafe { cachalot_snapshot(self.handle(handle), &raw const options, write, from_mut(&mut left).cast()) }
            }
            Call::SnapshotToFile(handle, file) => {
                let file = match file {
                    0..128 => c"/dev/null".as_ptr(),
                    128..192 => c"/dev/full".as_ptr(),
                    192..224 => c"".as_ptr(),
                    _ => null(),
                };
                let options = options(file, 0);
                // SAFETY: the text is static, and there is no callback.
                unsafe { cachalot_snapshot(self.handle(handle), &raw const options, None, null_mut()) }
            }
            _ => unreachable!("{call:?} writes no snapshot"),
        }
    }
}
