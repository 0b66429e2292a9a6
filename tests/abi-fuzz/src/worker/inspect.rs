//! Statistics, snapshots, traces and texts.

use super::Worker;
use crate::abi::{self, blank};
use crate::finding;
use crate::permitted::Situation;
use cachalot::c::abi::{
    CACHALOT_JSON, CACHALOT_PICKLE, cachalot_buffer, cachalot_buffer_plan, cachalot_device_info, cachalot_fit,
    cachalot_page_statistics, cachalot_plan_report, cachalot_reclaim_statistics, cachalot_remaining_memory,
    cachalot_setting, cachalot_snapshot_options, cachalot_statistics, cachalot_trace_entry, cachalot_tune_report,
};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

/// Collects the parts of a text.
pub(crate) unsafe extern "C" fn collect(text: *mut c_void, part: *const c_char, bytes: usize) -> c_int {
    // SAFETY: the user data is the text, which only this call uses.
    let text = unsafe { &mut *text.cast::<Vec<u8>>() };
    // SAFETY: the library passes a part with its length.
    text.extend_from_slice(unsafe { std::slice::from_raw_parts(part.cast(), bytes) });
    0
}

/// Refuses the rest of a text after the first part.
unsafe extern "C" fn refuse(_: *mut c_void, _: *const c_char, _: usize) -> c_int {
    1
}

/// Counts statistics.
unsafe extern "C" fn count_statistic(count: *mut c_void, _: *const c_char, _: i64) -> c_int {
    // SAFETY: the user data is the count, which only this call uses.
    unsafe { *count.cast::<u64>() += 1 };
    0
}

/// Counts events.
unsafe extern "C" fn count_event(count: *mut c_void, _: *const cachalot_trace_entry) -> c_int {
    // SAFETY: the user data is the count, which only this call uses.
    unsafe { *count.cast::<u64>() += 1 };
    0
}

/// Counts a setting.
unsafe extern "C" fn count_setting(count: *mut c_void, _: *const cachalot_setting) -> c_int {
    // SAFETY: the user data is the count, which only this call uses.
    unsafe { *count.cast::<u64>() += 1 };
    0
}

impl Worker {
    /// Reads every kind of statistics of a device.
    pub(crate) fn statistics(&mut self) {
        let (allocator, device) = (self.world.allocator, self.any_device() as i32);
        let situation = self.situation_of_device();
        match self.rng.u8(..14) {
            0 => drop(allocator.page_stats(device, &mut blank::<cachalot_page_statistics>()).judge(situation)),
            1 => drop(allocator.reclaim_stats(device, &mut blank::<cachalot_reclaim_statistics>()).judge(situation)),
            2 => drop(allocator.planned(device, &mut blank::<cachalot_plan_report>()).judge(situation)),
            3 => drop(allocator.tuned(device, &mut blank::<cachalot_tune_report>()).judge(situation)),
            4 => drop(allocator.device_info(device, &mut blank::<cachalot_device_info>()).judge(situation)),
            5 => self.remaining(device),
            6 => drop(allocator.health(device).judge(situation)),
            7 => drop(allocator.reset_peaks(device).judge(situation)),
            8 => drop(allocator.reset_accumulated(device).judge(situation)),
            9 => {
                let mut value = -1;
                let key = c"reserved_bytes.all.current";
                allocator.stat(device, key.as_ptr(), &mut value).judge(situation);
            }
            10 => {
                let mut count = 0_u64;
                allocator.stats_for_each(device, Some(count_statistic), (&raw mut count).cast()).judge(situation);
            }
            11 => self.plan(),
            12 => {
                let mut count = 0_u64;
                let reply = abi::visit_settings(Some(count_setting), (&raw mut count).cast());
                if reply.judge(situation) && count < 40 {
                    finding::report("settings", &format!("{count} settings"));
                }
            }
            _ => self.counters(device),
        }
    }

    /// Plans buffers, and checks that no two of them share a byte.
    fn plan(&mut self) {
        let count = self.rng.usize(..20);
        let is_mistake = self.rng.u8(..8) == 0;
        let buffers: Vec<cachalot_buffer> = (0..count)
            .map(|_| {
                let (start, bytes) = (self.rng.u64(..10), self.rng.u64(u64::from(!is_mistake)..3));
                let (end, alignment) = (start + self.rng.u64(1..5), 1 << self.rng.u32(..10));
                cachalot_buffer { start, end, bytes, alignment, offset: 0, flags: 0, reserved: 0 }
            })
            .collect();
        let (mut offsets, mut out) = (vec![0; count], blank::<cachalot_buffer_plan>());
        let situation = if is_mistake { Situation::MISTAKE } else { Situation::NONE };
        if !abi::plan(&buffers, &mut offsets, &mut out).judge(situation) {
            return;
        }
        let placed: Vec<_> =
            buffers.iter().zip(&offsets).map(|(buffer, at)| (buffer, *at, at + buffer.bytes)).collect();
        let clash = placed.iter().enumerate().any(|(index, (one, low, high))| {
            let meets = |(other, base, end): &(&cachalot_buffer, u64, u64)| {
                one.start < other.end && other.start < one.end && low < end && base < high
            };
            *high > out.peak_bytes || low % one.alignment != 0 || placed[..index].iter().any(meets)
        });
        if clash || out.lower_bound_bytes > out.peak_bytes {
            finding::report("plan", &format!("{buffers:?} at {offsets:?}: {out:?}"));
        }
    }

    /// Reads the counters, and checks that the values fit together.
    fn counters(&self, device: i32) {
        let mut found = blank::<cachalot_statistics>();
        self.world.allocator.stats(device, &mut found).judge(self.situation());
        if self.world.case.threads > 1 {
            return;
        }
        let wrong = found.active_bytes.current < found.allocated_bytes.current
            || found.active_blocks.current < found.allocations.current
            || found.requested_bytes.current > found.active_bytes.current;
        if wrong {
            finding::report("statistics", &format!("{found:?}"));
        }
    }

    /// Reads the memory of a device by kind, and checks the sum.
    fn remaining(&self, device: i32) {
        let mut found = blank::<cachalot_remaining_memory>();
        let read = self.world.allocator.remaining(device, &mut found).judge(self.situation_of_device());
        let parts = [
            found.block_bytes,
            found.pending_bytes,
            found.cached_bytes,
            found.spare_bytes,
            found.leaked_bytes,
            found.other_bytes,
        ];
        let (sum, used) = (parts.iter().sum::<u64>(), found.used_bytes + found.spilled_bytes);
        // A call may free memory and fail: the memory counts as leaked, and is not used.
        let fits = sum == used || self.world.case.faults && found.leaked_bytes > 0 && sum > used;
        if read && !fits && self.world.case.threads == 1 {
            finding::report("statistics", &format!("{found:?}"));
        }
    }

    /// Writes snapshots and metrics.
    pub(crate) fn texts(&mut self) {
        let allocator = self.world.allocator;
        let mut text: Vec<u8> = Vec::new();
        let into: *mut c_void = (&raw mut text).cast();
        let situation = self.situation();
        match self.rng.u8(..5) {
            0 => drop(allocator.snapshot(null(), Some(collect), into).judge(situation)),
            format @ 1..=2 => {
                let format = [CACHALOT_JSON, CACHALOT_PICKLE][usize::from(format) - 1];
                let options = cachalot_snapshot_options { format, ..abi::blank() };
                let _ = allocator.snapshot(&raw const options, Some(collect), into).judge(situation);
            }
            3 => drop(allocator.metrics(Some(collect), into).judge(situation)),
            _ => {
                allocator.snapshot(null(), Some(refuse), into).judge(situation | Situation::STOPPED);
                return;
            }
        }
        if text.is_empty() {
            finding::report("text", "a snapshot is empty");
        }
    }

    /// Starts or reads a trace.
    pub(crate) fn trace(&mut self) {
        let (allocator, device) = (self.world.allocator, self.any_device() as i32);
        if self.rng.bool() {
            let capacity = if self.rng.bool() { 0 } else { self.rng.usize(1..4000) };
            if self.rng.u8(..4) == 0 {
                let options = if self.rng.bool() { c"0" } else { c"events:1000,files:0" };
                allocator.recorder_start(options.as_ptr()).judge(self.situation());
            }
            allocator.trace_start(device, capacity).judge(self.situation());
        } else {
            let mut count = 0_u64;
            allocator.trace_for_each(device, Some(count_event), (&raw mut count).cast()).judge(self.situation());
        }
    }

    /// Tells whether requests would fit, without a comparison.
    pub(crate) fn ask_whether_fits(&mut self) {
        let stream = self.any_stream();
        let Some(_alive) = stream.alive() else { return };
        let sizes: Vec<usize> = (0..self.rng.usize(1..6)).map(|_| self.any_size()).collect();
        let mut fit = blank::<cachalot_fit>();
        let mut situation = self.situation() | Situation::PARKED;
        situation |= Situation::NONE;
        self.enter(stream.device);
        let handle = abi::stream(stream.handle);
        let allocator = self.world.allocator;
        allocator.would_fit(stream.device as i32, sizes.as_ptr(), sizes.len(), handle, &mut fit).judge(situation);
    }
}
