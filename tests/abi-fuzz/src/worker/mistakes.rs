//! Mistakes of a program, each with the status for the mistake. No state may change.

use super::Worker;
use crate::abi::{self, blank, pointer, stream};
use crate::world::add;
use cachalot::c::abi::{
    CACHALOT_PARK_TAG, CACHALOT_ROUTE_THREAD, cachalot_block, cachalot_park_options, cachalot_park_report,
    cachalot_park_target, cachalot_pool, cachalot_snapshot_options, cachalot_statistics, cachalot_tag_report,
};
#[allow(clippy::wildcard_imports, reason = "the header's numbers")]
use cachalot::c::status::*;
use std::ptr::{null, null_mut};

/// Returns the memory of a tag that no pool has.
fn unknown_tag() -> cachalot_park_target {
    cachalot_park_target { kind: CACHALOT_PARK_TAG, tag: 1 << 50, ..blank() }
}

impl Worker {
    /// Makes a mistake.
    pub(crate) fn mistake(&mut self) {
        add(&self.world.tally.mistakes);
        match self.rng.u8(..4) {
            0 => self.mistake_of_block(),
            1 => self.mistake_of_pool(),
            2 => self.mistake_of_argument(),
            _ => self.mistake_of_text(),
        }
    }

    /// Passes an address outside of blocks, or a wrong size.
    fn mistake_of_block(&mut self) {
        let allocator = self.world.allocator;
        let Some(index) = self.any_block() else { return };
        let (address, bytes) = (self.blocks[index].address, self.blocks[index].bytes);
        let inside = pointer(address + bytes as u64 / 2);
        match self.rng.u8(..7) {
            0 if bytes > 1 => allocator.free(inside).must_be(CACHALOT_ERROR_INVALID_POINTER),
            1 => allocator.free_sized(pointer(address), bytes + 1).must_be(CACHALOT_ERROR_WRONG_SIZE),
            2 if bytes > 1 => allocator.pin(inside).must_be(CACHALOT_ERROR_INVALID_POINTER),
            3 => allocator.unpin(pointer(4096)).must_be(CACHALOT_ERROR_NOT_PINNED),
            4 => allocator.free(pointer(4096)).must_be(CACHALOT_ERROR_INVALID_POINTER),
            5 => {
                let mut found = blank::<cachalot_block>();
                allocator.base_of(pointer(4096), &mut found).must_be(CACHALOT_ERROR_INVALID_POINTER);
            }
            _ => allocator.free(null_mut()).must_be(CACHALOT_OK),
        }
    }

    /// Passes an unknown pool, tag or range.
    fn mistake_of_pool(&mut self) {
        let (allocator, device) = (self.world.allocator, self.any_device() as i32);
        let unknown = cachalot_pool { first: 77, second: 1 << 50 };
        let mut users = 0;
        match self.rng.u8(..10) {
            0 => allocator.pool_release(device, unknown).must_be(CACHALOT_ERROR_UNKNOWN_POOL),
            1 => allocator.pool_users(device, unknown, &mut users).must_be(CACHALOT_ERROR_UNKNOWN_POOL),
            2 if self.rng.bool() => allocator.pool_empty(device, unknown).must_be(CACHALOT_ERROR_UNKNOWN_POOL),
            2 => allocator.pool_trim(device, unknown, 0).must_be(CACHALOT_ERROR_UNKNOWN_POOL),
            3 => {
                let reply = allocator.pool_begin(device, unknown, CACHALOT_ROUTE_THREAD, stream(0));
                reply.must_be(CACHALOT_ERROR_UNKNOWN_POOL);
            }
            4 => allocator.park(device, &unknown_tag(), null()).must_be(CACHALOT_ERROR_UNKNOWN_TAG),
            5 => allocator.wake(device, &unknown_tag()).must_be(CACHALOT_ERROR_UNKNOWN_TAG),
            6 => allocator.pool_tag(device, unknown, 5).must_be(CACHALOT_ERROR_UNKNOWN_POOL),
            7 => {
                let mut report = blank::<cachalot_park_report>();
                allocator.park_report(device, &unknown_tag(), &mut report).must_be(CACHALOT_ERROR_UNKNOWN_TAG);
            }
            8 => {
                let mut report = blank::<cachalot_tag_report>();
                allocator.tag_held(device, 1 << 50, &mut report).must_be(CACHALOT_ERROR_UNKNOWN_TAG);
                allocator.tag_trim(device, 1 << 50, 0).must_be(CACHALOT_ERROR_UNKNOWN_TAG);
            }
            _ => allocator.park_elsewhere(device, 1 << 50, 1).must_be(CACHALOT_ERROR_UNKNOWN_TAG),
        }
    }

    /// Passes an argument without a meaning.
    fn mistake_of_argument(&mut self) {
        let (allocator, device) = (self.world.allocator, self.any_device() as i32);
        let mut address = null_mut();
        let mut pool = cachalot_pool::default();
        match self.rng.u8(..10) {
            0 => allocator.malloc(device, 1 << 61, stream(0), &mut address).must_be(CACHALOT_ERROR_TOO_LARGE),
            1 => allocator.malloc(99, 512, stream(0), &mut address).must_be(CACHALOT_ERROR_UNKNOWN_DEVICE),
            2 => allocator.malloc(device, 512, stream(1 << 50), &mut address).must_be(CACHALOT_ERROR_INVALID_STREAM),
            3 => allocator
                .park(device, &cachalot_park_target { tag: 0, ..unknown_tag() }, null())
                .must_be(CACHALOT_ERROR_INVALID_ARGUMENT),
            4 => {
                let options = cachalot_park_options { mode: 3, ..blank() };
                let reply = allocator.park(device, &unknown_tag(), &raw const options);
                reply.must_be(CACHALOT_ERROR_INVALID_ARGUMENT);
            }
            5 => allocator.pool_create(device, 1 << 9, &mut pool).must_be(CACHALOT_ERROR_INVALID_ARGUMENT),
            6 => allocator.range_reserve(device, 0, null_mut()).must_be(CACHALOT_ERROR_NULL),
            7 => allocator.set_memory_fraction(device, 1.5).must_be(CACHALOT_ERROR_INVALID_FRACTION),
            8 => allocator.stream_unreported(device, stream(1 << 50)).must_be(CACHALOT_ERROR_INVALID_STREAM),
            _ => allocator.stream_destroyed(device, stream(0)).must_be(CACHALOT_ERROR_INVALID_STREAM),
        }
    }

    /// Passes an invalid text or structure.
    fn mistake_of_text(&mut self) {
        let (allocator, device) = (self.world.allocator, self.any_device() as i32);
        let (mut value, mut length) = (0, 1);
        match self.rng.u8(..5) {
            0 => allocator.configure(c"max_split_size_mb:none".as_ptr()).must_be(CACHALOT_ERROR_INVALID_CONFIG),
            1 => allocator.stat(device, c"no.such.key".as_ptr(), &mut value).must_be(CACHALOT_ERROR_UNKNOWN_KEY),
            2 => {
                let mut short = blank::<cachalot_statistics>();
                short.struct_size = 3;
                allocator.stats(device, &mut short).must_be(CACHALOT_ERROR_STRUCT_SIZE);
            }
            3 => {
                let path = c"/nonexistent/folder/file.json".as_ptr();
                let options = cachalot_snapshot_options { path, ..blank() };
                allocator.snapshot(&raw const options, None, null_mut()).must_be(CACHALOT_ERROR_IO);
            }
            _ => {
                let mut one = 0;
                allocator.config(device, null_mut(), 0, &mut length).must_be(CACHALOT_OK);
                let reply = allocator.config(device, &raw mut one, 1, &mut length);
                reply.must_be(if length == 0 { CACHALOT_OK } else { CACHALOT_ERROR_BUFFER_TOO_SMALL });
            }
        }
        if length != 0 && abi::last_error().is_empty() {
            crate::finding::report("text", "a mistake has no message");
        }
    }
}
