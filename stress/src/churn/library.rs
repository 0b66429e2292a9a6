//! The allocator as seen by C programs: the functions of `cachalot.h`. A refused call becomes a
//! text.

use cachalot::c::abi::{
    CACHALOT_ASK_STREAM_ID, CACHALOT_ROUTE_THREAD, CACHALOT_SIMULATED, cachalot_allocator, cachalot_options,
    cachalot_pool, cachalot_status, cachalot_stream,
};
use cachalot::c::capi::{
    cachalot_check_invariants, cachalot_create, cachalot_destroy, cachalot_empty_cache, cachalot_find_statistic,
    cachalot_free, cachalot_last_error, cachalot_malloc, cachalot_pool_begin, cachalot_pool_create, cachalot_pool_end,
    cachalot_pool_release, cachalot_record_stream, cachalot_simulate_progress, cachalot_status_name,
    cachalot_stream_destroyed,
};
use cachalot::c::status::CACHALOT_OK;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

/// A stream's handle. 2 stands for the calling thread's own default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stream(pub(super) usize);

/// A block's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockAddress(usize);

/// A private pool: device and name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    device: c_int,
    name: cachalot_pool,
}

/// Result of a call. The error is a text about a refusal that the contract does not permit here.
pub(super) type Answer<T = ()> = Result<T, String>;

/// An allocator of the C interface.
#[derive(Debug)]
pub(super) struct Library {
    /// The allocator's handle: a number in the shape of a pointer, usable on every thread.
    handle: usize,
    simulated: bool,
}

/// The calling thread's own default stream.
pub(super) const PER_THREAD: Stream = Stream(2);

impl Library {
    /// Creates an allocator for the first `devices` devices.
    pub(super) fn create(devices: u32, simulated: bool, asked: bool, config: &str) -> Answer<Self> {
        let config = CString::new(config).map_err(|error| error.to_string())?;
        let flags = if simulated { CACHALOT_SIMULATED } else { 0 } | if asked { CACHALOT_ASK_STREAM_ID } else { 0 };
        let options =
            cachalot_options { flags, device_count: devices, config: config.as_ptr(), ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: the options and their text outlive the call, which writes one handle.
        let status = unsafe { cachalot_create(&raw const options, &raw mut handle) };
        accepted("create", status)?;
        Ok(Self { handle: handle.addr(), simulated })
    }

    /// Destroys the allocator, which must have no live block.
    pub(super) fn destroy(&self) -> Answer {
        accepted("destroy", cachalot_destroy(self.handle()))
    }

    fn handle(&self) -> *mut cachalot_allocator {
        without_provenance_mut(self.handle)
    }

    pub(super) fn malloc(&self, device: c_int, bytes: usize, on: Stream) -> Answer<BlockAddress> {
        let mut block: *mut c_void = null_mut();
        // SAFETY: the variable outlives the call, which writes one address to it.
        let status = unsafe { cachalot_malloc(self.handle(), device, bytes, on.raw(), &raw mut block) };
        accepted("malloc", status)?;
        Ok(BlockAddress(block.addr()))
    }

    pub(super) fn free(&self, block: BlockAddress) -> Answer {
        accepted("free", cachalot_free(self.handle(), without_provenance_mut(block.0)))
    }

    pub(super) fn record_stream(&self, block: BlockAddress, on: Stream) -> Answer {
        let status = cachalot_record_stream(self.handle(), without_provenance_mut(block.0), on.raw());
        accepted("record_stream", status)
    }

    pub(super) fn stream_destroyed(&self, device: c_int, stream: Stream) -> Answer {
        let status = cachalot_stream_destroyed(self.handle(), device, stream.raw());
        accepted(&format!("stream_destroyed of {:#x}", stream.0), status)
    }

    pub(super) fn empty_cache(&self, device: c_int) -> Answer {
        accepted("empty_cache", cachalot_empty_cache(self.handle(), device))
    }

    /// Creates a private pool, and routes the calling thread's requests into the pool.
    pub(super) fn enter_pool(&self, device: c_int) -> Answer<Pool> {
        let mut name = cachalot_pool { first: 0, second: 0 };
        // SAFETY: the variable outlives the call, which writes one name to it.
        let status = unsafe { cachalot_pool_create(self.handle(), device, 0, &raw mut name) };
        accepted("pool_create", status)?;
        let status = cachalot_pool_begin(self.handle(), device, name, CACHALOT_ROUTE_THREAD, null_mut());
        accepted("pool_begin", status)?;
        Ok(Pool { device, name })
    }

    /// Ends the route into the pool.
    pub(super) fn leave_pool(&self, pool: Pool) -> Answer {
        accepted("pool_end", cachalot_pool_end(self.handle(), pool.device, pool.name))
    }

    /// Releases the pool twice: once for the creation, once for the route.
    pub(super) fn release_pool(&self, pool: Pool) -> Answer {
        for _ in 0..2 {
            accepted("pool_release", cachalot_pool_release(self.handle(), pool.device, pool.name))?;
        }
        Ok(())
    }

    /// Completes all queued work of a simulated stream. The driver's streams make progress by
    /// themselves.
    pub(super) fn progress(&self, device: c_int, stream: Stream) -> Answer {
        if !self.simulated {
            return Ok(());
        }
        accepted("simulate_progress", cachalot_simulate_progress(self.handle(), device, stream.raw()))
    }

    /// Checks the allocator's invariants, and that no block is active and no memory is reserved on
    /// a device.
    pub(super) fn check_empty(&self, device: c_int) -> Answer {
        accepted("check", cachalot_check_invariants(self.handle()))?;
        let active = self.stat(device, c"active.all.current")?;
        let reserved = self.stat(device, c"reserved_bytes.all.current")?;
        if (active, reserved) == (0, 0) {
            return Ok(());
        }
        Err(format!("{active} blocks are in use and {reserved} bytes reserved of device {device} at the end"))
    }

    /// Returns the value of a statistic.
    fn stat(&self, device: c_int, key: &CStr) -> Answer<i64> {
        let mut value = 0;
        // SAFETY: the key is a C string, and the variable outlives the call, which writes one
        // number to it.
        let status = unsafe { cachalot_find_statistic(self.handle(), device, key.as_ptr(), &raw mut value) };
        accepted("stat", status).map(|()| value)
    }
}

impl Stream {
    fn raw(self) -> cachalot_stream {
        without_provenance_mut(self.0)
    }
}

/// Copies a text of the library.
fn text(text: *const c_char) -> String {
    // SAFETY: names live forever, and the last error lives until the calling thread's next failing
    // call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Converts a status to a result with a text.
fn accepted(what: &str, status: cachalot_status) -> Answer {
    if status == CACHALOT_OK {
        return Ok(());
    }
    Err(format!("{what}: {}: {}", text(cachalot_status_name(status)), text(cachalot_last_error())))
}
