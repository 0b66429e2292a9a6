//! An allocator of the C ABI on a simulated device, with its trace on or off. Measures the cost of
//! recording, the clock's share of the cost, and snapshots.

use crate::subject::Subject;
use cachalot::c::abi::{
    CACHALOT_SIMULATED, cachalot_action, cachalot_allocator, cachalot_format, cachalot_options,
    cachalot_snapshot_options, cachalot_stack,
};
use cachalot::c::capi::{
    cachalot_create, cachalot_destroy, cachalot_free, cachalot_malloc, cachalot_on_stack, cachalot_snapshot,
    cachalot_stack_push, cachalot_trace_start,
};
use cachalot_cuda::clock;
use std::ffi::{c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};

/// Kind of recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recording {
    /// No recording.
    Off,
    /// No recording, but each call reads the clock for timestamps.
    Clock,
    /// Records events.
    Events,
    /// Records events, each with a stack of [`FRAMES`] frames.
    Stacks,
}

/// Frames per recorded stack.
pub const FRAMES: c_int = 20;

/// Number of events in the ring. Small enough to be overwritten often, as in a long program.
const CAPACITY: usize = 100_000;

/// Bytes of the device.
const DEVICE_BYTES: u64 = 1 << 50;

/// An allocator, destroyed on drop.
pub struct Recorder {
    allocator: *mut cachalot_allocator,
    /// Whether each call reads the clock.
    reads_clock: bool,
}

impl Recorder {
    /// Creates an allocator with the given kind of recording.
    ///
    /// # Panics
    /// If the allocator cannot be created.
    pub fn new(recording: Recording) -> Self {
        let options =
            cachalot_options { flags: CACHALOT_SIMULATED, simulated_bytes: DEVICE_BYTES, ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: both variables outlive the call.
        let mut status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        if matches!(recording, Recording::Events | Recording::Stacks) {
            status += cachalot_trace_start(handle, 0, CAPACITY);
        }
        if recording == Recording::Stacks {
            // SAFETY: the callback takes no userdata.
            status += unsafe { cachalot_on_stack(handle, Some(describe), null_mut()) };
        }
        assert_eq!(status, 0, "an allocator over a simulated device");
        Self { allocator: handle, reads_clock: recording == Recording::Clock }
    }

    #[inline]
    fn read_clock(&self) {
        if self.reads_clock {
            black_box(clock::ticks());
        }
    }

    /// Writes a snapshot, discards the text, and returns the number of bytes.
    ///
    /// # Panics
    /// If the snapshot fails.
    pub fn snapshot(&self, format: cachalot_format) -> usize {
        unsafe extern "C" fn count(userdata: *mut c_void, _: *const c_char, bytes: usize) -> c_int {
            // SAFETY: the pointer refers to `sum` below, which no other code uses during the call.
            let sum = unsafe { &mut *userdata.cast::<usize>() };
            *sum += bytes;
            0
        }
        let mut sum = 0_usize;
        let struct_size = size_of::<cachalot_snapshot_options>();
        let options = cachalot_snapshot_options { struct_size, path: null(), format, flags: 0 };
        // SAFETY: the callback receives a pointer to `sum`, which outlives the call.
        let status =
            unsafe { cachalot_snapshot(self.allocator, &raw const options, Some(count), (&raw mut sum).cast()) };
        assert_eq!(status, 0, "a snapshot");
        sum
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Ignore the status: live blocks are no loss, since their memory is simulated.
        let _ = cachalot_destroy(self.allocator);
    }
}

/// Describes a constant stack.
unsafe extern "C" fn describe(_: *mut c_void, stack: *mut cachalot_stack, _: cachalot_action) {
    for line in 0..FRAMES {
        // SAFETY: the stack is the callback's argument; the texts are NUL-terminated.
        unsafe { cachalot_stack_push(stack, c"forward".as_ptr(), c"torch/nn/modules/module.py".as_ptr(), line) };
    }
}

impl Subject for Recorder {
    type Handle = *mut c_void;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<*mut c_void> {
        self.read_clock();
        let (stream, mut block) = (std::ptr::without_provenance_mut(stream as usize), null_mut());
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_malloc(self.allocator, 0, bytes as usize, stream, &raw mut block) };
        (status == 0).then_some(block)
    }

    #[inline(never)]
    fn free(&mut self, block: *mut c_void) {
        self.read_clock();
        assert_eq!(cachalot_free(self.allocator, block), 0, "the block is live");
    }
}
