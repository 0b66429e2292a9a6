//! Pairs through the C interface, beside equal pairs through the Rust interface. Both interfaces serve a simulated
//! device, with the library's lock. The difference is the price of the C interface: the look-up of the handle, the
//! check for a forked child, the panic boundary, and a device that may be of any kind.
//!
//! The functions are those of `libcachalot.a`: the crate `cachalot-library` links the same compiled code.

use cachalot::c::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options, cachalot_status, cachalot_stream};
use cachalot::c::capi::{
    cachalot_create, cachalot_destroy, cachalot_free, cachalot_free_sized, cachalot_malloc, cachalot_record_stream,
    cachalot_simulate_progress,
};
use cachalot::c::status::CACHALOT_OK;
use cachalot::{Config, DeviceIndex, DevicePtr, SimulatedAllocator, StreamId};
use clap::ValueEnum;
use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};

/// The size of each request, in bytes.
const BYTES: u64 = 4096;
/// The memory of the device, in bytes.
const CAPACITY: u64 = 1 << 40;
/// The handles of the stream of the requests, and of a stream that uses their blocks.
const STREAMS: [u64; 2] = [1 << 20, 1 << 20 | 256];
const DEVICE: DeviceIndex = DeviceIndex(0);

/// An interface of the library.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Interface {
    /// `cachalot::open_simulated`
    Rust,
    /// `cachalot.h`
    C,
}

/// The calls of a pair.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Pair {
    /// A request that splits a larger block, and a free that merges the halves
    Split,
    /// A request for which a block of that size is cached, and a free
    Cached,
    /// A request as above, and a free with the size
    Sized,
    /// A request as above, a use by a second stream, a free, and the end of the second stream's work
    Used,
}

/// The pairs with their names for the command line, and the rows of the table.
pub(crate) const PAIRS: [(&str, &str); 4] = [
    ("split", "malloc, split off a larger block, and free"),
    ("cached", "malloc, block of that size cached, and free"),
    ("sized", "malloc, block of that size cached, and free_sized"),
    ("used", "malloc, record_stream of another stream, free, and the end of the stream's work"),
];

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The calls of the pairs, through one of the interfaces.
trait Calls {
    fn malloc(&self) -> Outcome<DevicePtr>;
    fn free(&self, block: DevicePtr) -> Outcome;
    fn free_sized(&self, block: DevicePtr) -> Outcome;
    /// Records the use of a block by the second stream.
    fn record_stream(&self, block: DevicePtr) -> Outcome;
    /// Completes the second stream's work.
    fn complete(&self) -> Outcome;
}

/// The Rust interface. Its functions are not inlined, as in a program that calls the library from many places.
impl Calls for SimulatedAllocator {
    #[inline(never)]
    fn malloc(&self) -> Outcome<DevicePtr> {
        Ok(self.malloc(DEVICE, BYTES, StreamId(STREAMS[0]))?)
    }

    #[inline(never)]
    fn free(&self, block: DevicePtr) -> Outcome {
        Ok(self.free(block)?)
    }

    #[inline(never)]
    fn free_sized(&self, block: DevicePtr) -> Outcome {
        Ok(self.free_sized(block, BYTES)?)
    }

    #[inline(never)]
    fn record_stream(&self, block: DevicePtr) -> Outcome {
        Ok(self.record_stream(block, StreamId(STREAMS[1]))?)
    }

    #[inline(never)]
    fn complete(&self) -> Outcome {
        self.device(DEVICE).ok_or("there is one device")?.complete(StreamId(STREAMS[1]));
        Ok(())
    }
}

/// The C interface: a handle, destroyed when dropped.
struct Handle(*mut cachalot_allocator);

impl Handle {
    /// Creates an allocator over a simulated device.
    fn create() -> Outcome<Self> {
        let options =
            cachalot_options { flags: CACHALOT_SIMULATED, simulated_bytes: CAPACITY, ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: the options hold no pointer but NULL, and the handle is a variable of this function.
        checked(unsafe { cachalot_create(&raw const options, &raw mut handle) })?;
        Ok(Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        assert_eq!(cachalot_destroy(self.0), CACHALOT_OK, "every block was freed");
    }
}

/// Inlined, since each C function is a call of its own.
#[allow(clippy::inline_always, reason = "a call around the call would be counted")]
impl Calls for Handle {
    #[inline(always)]
    fn malloc(&self) -> Outcome<DevicePtr> {
        let mut block = null_mut();
        // SAFETY: the address of the block goes to a variable of this function.
        checked(unsafe { cachalot_malloc(self.0, 0, BYTES as usize, stream(0), &raw mut block) })?;
        Ok(DevicePtr(block.addr() as u64))
    }

    #[inline(always)]
    fn free(&self, block: DevicePtr) -> Outcome {
        checked(cachalot_free(self.0, pointer(block)))
    }

    #[inline(always)]
    fn free_sized(&self, block: DevicePtr) -> Outcome {
        checked(cachalot_free_sized(self.0, pointer(block), BYTES as usize))
    }

    #[inline(always)]
    fn record_stream(&self, block: DevicePtr) -> Outcome {
        checked(cachalot_record_stream(self.0, pointer(block), stream(1)))
    }

    #[inline(always)]
    fn complete(&self) -> Outcome {
        checked(cachalot_simulate_progress(self.0, 0, stream(1)))
    }
}

/// Returns the failure behind a status.
#[allow(clippy::inline_always, reason = "a call around the call would be counted")]
#[inline(always)]
fn checked(status: cachalot_status) -> Outcome {
    if status == CACHALOT_OK { Ok(()) } else { Err(format!("the status is {status}").into()) }
}

/// Converts an address for C.
fn pointer(block: DevicePtr) -> *mut c_void {
    without_provenance_mut(block.0 as usize)
}

/// Returns the handle of the first or second stream.
fn stream(number: usize) -> cachalot_stream {
    without_provenance_mut(STREAMS[number] as usize)
}

/// Makes `pairs` pairs through an interface, with the default settings.
///
/// # Errors
/// The errors of the allocator.
pub(crate) fn make(interface: Interface, pair: Pair, pairs: u64) -> Outcome {
    match interface {
        Interface::Rust => make_with(&cachalot::open_simulated(CAPACITY, &Config::new())?, pair, pairs),
        Interface::C => make_with(&Handle::create()?, pair, pairs),
    }
}

fn make_with(calls: &impl Calls, pair: Pair, pairs: u64) -> Outcome {
    // The live blocks on both sides keep the cached block from merging.
    let neighbours = match pair {
        Pair::Split => None,
        Pair::Cached | Pair::Sized | Pair::Used => {
            let block = calls.malloc()?;
            let neighbours = [calls.malloc()?, calls.malloc()?];
            calls.free(block)?;
            Some(neighbours)
        }
    };
    for _ in 0..pairs {
        let block = black_box(calls.malloc()?);
        match pair {
            Pair::Split | Pair::Cached => calls.free(block)?,
            Pair::Sized => calls.free_sized(block)?,
            Pair::Used => {
                calls.record_stream(block)?;
                calls.free(block)?;
                calls.complete()?;
            }
        }
    }
    neighbours.into_iter().flatten().try_for_each(|block| calls.free(block))
}
