//! Pairs through the C interface, beside equal pairs through the Rust interface. Both interfaces
//! serve a device of one kind, with the library's lock. The difference is the price of the C
//! interface: the look-up of the handle, the check for a forked child, the number of the stream,
//! the panic boundary, and a device that may be of any kind.
//!
//! The functions are those of `libcachalot.a`: the crate `cachalot-library` links the same compiled
//! code.

use cachalot::c::abi::{CACHALOT_SIMULATED, cachalot_allocator, cachalot_options, cachalot_status, cachalot_stream};
use cachalot::c::capi::{
    cachalot_create, cachalot_destroy, cachalot_free, cachalot_free_sized, cachalot_malloc, cachalot_record_stream,
    cachalot_simulate_progress,
};
use cachalot::c::status::CACHALOT_OK;
use cachalot::c::torch::{cachalot_torch_free, cachalot_torch_malloc};
use cachalot::simulated::SimulatedDevice;
use cachalot::{Allocator, Config, CudaDevice, DeviceIndex, DevicePtr, HeapLock, StreamId, Tables};
use clap::ValueEnum;
use std::error::Error;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};

/// The size of each request, in bytes.
const BYTES: u64 = 4096;
/// The memory of a simulated device, in bytes.
const CAPACITY: u64 = 1 << 40;
/// The handles of the stream of the requests, and of a stream that uses their blocks. A driver
/// never sees them: a request for which a block is cached makes no call.
const STREAMS: [u64; 2] = [1 << 20, 1 << 20 | 256];
const DEVICE: DeviceIndex = DeviceIndex(0);

/// An interface of the library, over a kind of device.
#[derive(Clone, Copy, ValueEnum)]
pub enum Interface {
    /// `cachalot::open_simulated`
    Rust,
    /// `cachalot.h`, over a simulated device
    C,
    /// `cachalot::open_cuda`
    RustDriver,
    /// `cachalot.h`, over a device of the driver
    CDriver,
    /// `cachalot_torch.h`, over a device of the driver
    Torch,
}

/// The calls of a pair.
#[derive(Clone, Copy, ValueEnum)]
pub enum Pair {
    /// A request that splits a larger block, and a free that merges the halves
    Split,
    /// A request for which a block of that size is cached, and a free
    Cached,
    /// A request as above, and a free with the size
    Sized,
    /// A request as above, a use by a second stream, a free, and the end of the second stream's
    /// work
    Used,
}

/// A row of the table.
pub struct Row {
    /// The name in the table.
    pub name: &'static str,
    /// The name of the pair, for the command line.
    pub pair: &'static str,
    /// The names of the interface for Rust, and of the one for C.
    pub interfaces: [&'static str; 2],
}

const SIMULATED: [&str; 2] = ["rust", "c"];
const DRIVER: [&str; 2] = ["rust-driver", "c-driver"];
const TORCH: [&str; 2] = ["rust-driver", "torch"];

/// The rows of the table.
pub const ROWS: [Row; 8] = [
    Row { name: "simulated: split off a larger block", pair: "split", interfaces: SIMULATED },
    Row { name: "simulated: block of that size cached", pair: "cached", interfaces: SIMULATED },
    Row { name: "simulated: cached and free_sized", pair: "sized", interfaces: SIMULATED },
    Row { name: "simulated: cached and record_stream", pair: "used", interfaces: SIMULATED },
    Row { name: "driver: split off a larger block", pair: "split", interfaces: DRIVER },
    Row { name: "driver: block of that size cached", pair: "cached", interfaces: DRIVER },
    Row { name: "PyTorch: split off a larger block", pair: "split", interfaces: TORCH },
    Row { name: "PyTorch: block of that size cached", pair: "cached", interfaces: TORCH },
];

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The calls of the pairs, through one of the interfaces.
trait Calls {
    fn malloc(&self, bytes: u64, stream: u64) -> Outcome<DevicePtr>;
    fn free(&self, block: DevicePtr) -> Outcome;

    fn free_sized(&self, _: DevicePtr, _: u64) -> Outcome {
        Err("the interface has no free with a size".into())
    }

    fn record_stream(&self, _: DevicePtr, _: u64) -> Outcome {
        Err("the pair is for simulated devices".into())
    }

    /// Completes a stream's work.
    fn complete(&self, _: u64) -> Outcome {
        Err("the pair is for simulated devices".into())
    }
}

/// The Rust interface. Its functions are not inlined, as in a program that calls the library from
/// many places.
impl Calls for Allocator<SimulatedDevice, HeapLock, Tables> {
    #[inline(never)]
    fn malloc(&self, bytes: u64, stream: u64) -> Outcome<DevicePtr> {
        Ok(self.malloc(DEVICE, bytes, StreamId(stream))?)
    }

    #[inline(never)]
    fn free(&self, block: DevicePtr) -> Outcome {
        Ok(self.free(block)?)
    }

    #[inline(never)]
    fn free_sized(&self, block: DevicePtr, bytes: u64) -> Outcome {
        Ok(self.free_sized(block, bytes)?)
    }

    #[inline(never)]
    fn record_stream(&self, block: DevicePtr, stream: u64) -> Outcome {
        Ok(self.record_stream(block, StreamId(stream))?)
    }

    #[inline(never)]
    fn complete(&self, stream: u64) -> Outcome {
        self.device(DEVICE).ok_or("there is one device")?.complete(StreamId(stream));
        Ok(())
    }
}

impl Calls for Allocator<CudaDevice, HeapLock, Tables> {
    #[inline(never)]
    fn malloc(&self, bytes: u64, stream: u64) -> Outcome<DevicePtr> {
        Ok(self.malloc(DEVICE, bytes, StreamId(stream))?)
    }

    #[inline(never)]
    fn free(&self, block: DevicePtr) -> Outcome {
        Ok(self.free(block)?)
    }
}

/// The C interface: a handle, destroyed when dropped.
struct Handle(*mut cachalot_allocator);

impl Handle {
    /// Creates an allocator.
    fn create(flags: u32) -> Outcome<Self> {
        let options = cachalot_options { flags, simulated_bytes: CAPACITY, ..cachalot_options::INIT };
        let mut handle = null_mut();
        // SAFETY: the options hold no pointer but NULL, and the handle is a variable of this
        // function.
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
    fn malloc(&self, bytes: u64, stream: u64) -> Outcome<DevicePtr> {
        let mut block = null_mut();
        // SAFETY: the address of the block goes to a variable of this function.
        checked(unsafe { cachalot_malloc(self.0, 0, bytes as usize, self::stream(stream), &raw mut block) })?;
        Ok(DevicePtr(block.addr() as u64))
    }

    #[inline(always)]
    fn free(&self, block: DevicePtr) -> Outcome {
        checked(cachalot_free(self.0, pointer(block)))
    }

    #[inline(always)]
    fn free_sized(&self, block: DevicePtr, bytes: u64) -> Outcome {
        checked(cachalot_free_sized(self.0, pointer(block), bytes as usize))
    }

    #[inline(always)]
    fn record_stream(&self, block: DevicePtr, stream: u64) -> Outcome {
        checked(cachalot_record_stream(self.0, pointer(block), self::stream(stream)))
    }

    #[inline(always)]
    fn complete(&self, stream: u64) -> Outcome {
        checked(cachalot_simulate_progress(self.0, 0, self::stream(stream)))
    }
}

/// The functions that `PyTorch` calls, over the allocator of the process.
struct Torch;

#[allow(clippy::inline_always, reason = "a call around the call would be counted")]
impl Calls for Torch {
    #[inline(always)]
    fn malloc(&self, bytes: u64, stream: u64) -> Outcome<DevicePtr> {
        let block = cachalot_torch_malloc(bytes as usize, 0, self::stream(stream));
        if block.is_null() { Err("there is no block".into()) } else { Ok(DevicePtr(block.addr() as u64)) }
    }

    #[inline(always)]
    fn free(&self, block: DevicePtr) -> Outcome {
        cachalot_torch_free(pointer(block), BYTES as usize, 0, stream(STREAMS[0]));
        Ok(())
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

/// Converts the handle of a stream for C.
fn stream(handle: u64) -> cachalot_stream {
    without_provenance_mut(handle as usize)
}

/// Makes `pairs` pairs through an interface, with the default settings.
///
/// # Errors
/// The errors of the allocator.
pub fn make(interface: Interface, pair: Pair, pairs: u64) -> Outcome {
    let config = Config::new();
    match interface {
        Interface::Rust => make_with(&cachalot::open_simulated(CAPACITY, &config)?, pair, pairs),
        Interface::C => make_with(&Handle::create(CACHALOT_SIMULATED)?, pair, pairs),
        Interface::RustDriver => make_with(&cachalot::open_cuda(&[0], &config)?, pair, pairs),
        Interface::CDriver => make_with(&Handle::create(0)?, pair, pairs),
        Interface::Torch => make_with(&Torch, pair, pairs),
    }
}

fn make_with(calls: &impl Calls, pair: Pair, pairs: u64) -> Outcome {
    // Arguments that the compiler knows would make the Rust interface cheaper than it is.
    let (bytes, [own, other]) = black_box((BYTES, STREAMS));
    // The live blocks on both sides keep the cached block from merging.
    let neighbours = match pair {
        Pair::Split => None,
        Pair::Cached | Pair::Sized | Pair::Used => {
            let block = calls.malloc(bytes, own)?;
            let neighbours = [calls.malloc(bytes, own)?, calls.malloc(bytes, own)?];
            calls.free(block)?;
            Some(neighbours)
        }
    };
    for _ in 0..pairs {
        let block = black_box(calls.malloc(bytes, own)?);
        match pair {
            Pair::Split | Pair::Cached => calls.free(block)?,
            Pair::Sized => calls.free_sized(block, bytes)?,
            Pair::Used => {
                calls.record_stream(block, other)?;
                calls.free(block)?;
                calls.complete(other)?;
            }
        }
    }
    neighbours.into_iter().flatten().try_for_each(|block| calls.free(block))
}
