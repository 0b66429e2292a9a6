//! Allocation and freeing of blocks, the hot functions of the interface.

use crate::c::abi::{
    CACHALOT_BOUND_DEVICE, CACHALOT_BOUND_FRACTION, CACHALOT_BOUND_LIMIT, CACHALOT_BOUND_NONE, CACHALOT_BOUND_OTHER,
    CACHALOT_BOUND_TAG, CACHALOT_WOULD_EXPAND, CACHALOT_WOULD_FAIL, CACHALOT_WOULD_HIT, CACHALOT_WOULD_OBTAIN,
    CACHALOT_WOULD_RELEASE, cachalot_allocator, cachalot_block, cachalot_fit, cachalot_forecast, cachalot_status,
    cachalot_stream,
};
use crate::c::boundary;
use crate::c::device::{of_stream, refuse};
use crate::c::explanation;
use crate::c::marshal::{self, Out, OutStruct, Versioned};
use crate::c::status::{CACHALOT_OK, Status};
use cachalot_core::{Bound, DevicePtr, Error, Forecast, Segments, StreamId};
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::log;
use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;

// SAFETY: `repr(C)` with its size first, and numbers and pointers without padding.
unsafe impl Versioned for cachalot_block {
    // Version 0.1: everything up to `reserved`.
    const FIRST_SIZE: usize = 64;
}

// SAFETY: `repr(C)` with its size first, and numbers and pointers without padding.
unsafe impl Versioned for cachalot_forecast {
    // Version 0.1: everything up to `reserved`.
    const FIRST_SIZE: usize = 32;
}

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_fit {
    // Version 0.1: everything up to `reserved`.
    const FIRST_SIZE: usize = 48;
}

/// Converts a device address to C.
fn pointer(address: DevicePtr) -> *mut c_void {
    core::ptr::without_provenance_mut(address.0 as usize)
}

/// Converts a device address from C.
pub(super) fn address(pointer: *const c_void) -> DevicePtr {
    DevicePtr(pointer.addr() as u64)
}

/// Allocates a block of at least `bytes` on a device, usable at once on `stream`.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_malloc(
    allocator: *const cachalot_allocator,
    device: c_int,
    bytes: usize,
    stream: cachalot_stream,
    out: *mut *mut c_void,
) -> cachalot_status {
    boundary::straight(
        allocator,
        move |instance| {
            // SAFETY: guaranteed by the caller.
            let out = unsafe { Out::of(out) }?;
            out.write(pointer(instance.malloc_straight(device, bytes, stream)?));
            Some(CACHALOT_OK)
        },
        |failed| failed,
        // SAFETY: guaranteed by the caller.
        move || unsafe { malloc_anew(allocator, device, bytes, stream, out) },
    )
}

/// Allocates a block as [`cachalot_malloc`] does, under any conditions.
///
/// # Safety
/// `out` is NULL or valid for a write.
// With the same arguments in the same order, so that the call is a jump.
#[cold]
#[inline(never)]
unsafe extern "C" fn malloc_anew(
    allocator: *const cachalot_allocator,
    device: c_int,
    bytes: usize,
    stream: cachalot_stream,
    out: *mut *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(pointer(instance.malloc::<Status>(device, bytes, stream)?));
        Ok(())
    })
}

/// Frees a block, in the order of its own stream and of all recorded streams.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_free(allocator: *const cachalot_allocator, block: *mut c_void) -> cachalot_status {
    boundary::straight(
        allocator,
        move |instance| instance.free_straight(address(block), None).then_some(CACHALOT_OK),
        |failed| failed,
        move || free_anew(allocator, block, None),
    )
}

/// Frees a block after checking that it was requested with exactly `bytes`.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_free_sized(
    allocator: *const cachalot_allocator,
    block: *mut c_void,
    bytes: usize,
) -> cachalot_status {
    boundary::straight(
        allocator,
        move |instance| instance.free_straight(address(block), Some(bytes as u64)).then_some(CACHALOT_OK),
        |failed| failed,
        move || free_anew(allocator, block, Some(bytes as u64)),
    )
}

/// Frees a block once the safe frontier of its device has reached `count`.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_free_at(
    allocator: *const cachalot_allocator,
    block: *mut c_void,
    count: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| Ok(instance.allocator.free_at(address(block), count)?))
}

/// Declares all work of a device numbered up to `count` as done.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_safe_frontier(
    allocator: *const cachalot_allocator,
    device: c_int,
    count: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (index, _) = instance.device(device)?;
        Ok(instance.allocator.set_safe_frontier(index, count)?)
    })
}

/// Frees a block under any conditions, after a check of the requested size if `bytes` is given.
#[cold]
#[inline(never)]
fn free_anew(allocator: *const cachalot_allocator, block: *mut c_void, bytes: Option<u64>) -> cachalot_status {
    boundary::with_instance(allocator, |instance| instance.free(address(block), bytes))
}

/// Records the use of a block on another stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_record_stream(
    allocator: *const cachalot_allocator,
    block: *mut c_void,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        Ok(instance.allocator.record_stream(address(block), instance.stream_in_use(stream)?)?)
    })
}

/// Records the use of a block on another stream, up to the present end of the stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_record_use(
    allocator: *const cachalot_allocator,
    block: *mut c_void,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        Ok(instance.allocator.record_use(address(block), instance.stream_in_use(stream)?)?)
    })
}

/// Announces the destruction of a stream, or the end of the calling thread's use of its default
/// stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_stream_destroyed(
    allocator: *const cachalot_allocator,
    device: c_int,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (_, device) = instance.device(device)?;
        device.open()?;
        let handle = CuStream(stream.addr());
        let number = match device.cuda() {
            Some(cuda) => cuda.stream_destroyed(handle).map_err(|error| of_stream(handle, error))?,
            None => device.stream_id(handle)?,
        };
        if number == StreamId::DEFAULT {
            return Err(refuse(handle, 0));
        }
        // The stream has ended with its number. A failure of the releases, or of an event, is one
        // of the cache: the memory stays with the ended stream, and a later request tries again. A
        // status would tell the program that the stream goes on.
        for index in instance.devices() {
            if let Err(error) = instance.allocator.stream_destroyed(index, number) {
                log::warning(format_args!("device {}: the memory of an ended stream stays for now: {error}", index.0));
            }
        }
        Ok(())
    })
}

/// Releases free memory of a stream until it holds at most `keep_bytes`.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_stream_trim(
    allocator: *const cachalot_allocator,
    device: c_int,
    stream: cachalot_stream,
    keep_bytes: usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (index, device) = instance.device(device)?;
        let stream = device.stream_id(CuStream(stream.addr()))?;
        Ok(instance.allocator.trim_stream(index, stream, keep_bytes as u64)?)
    })
}

/// Reports a stream that may end without a report.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_stream_unreported(
    allocator: *const cachalot_allocator,
    device: c_int,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (_, device) = instance.device(device)?;
        let handle = CuStream(stream.addr());
        device.stream_id(handle)?;
        match device.streams() {
            Some(streams) if !streams.set_unreported(handle) => Err(Status::from(Error::TableFull("streams"))),
            _ => Ok(()),
        }
    })
}

/// Describes the block that contains an address.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_block(
    allocator: *const cachalot_allocator,
    address: *const c_void,
    out: *mut cachalot_block,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let block = instance.allocator.base_of(self::address(address))?;
        out.write(&cachalot_block {
            struct_size: size_of::<cachalot_block>(),
            base: pointer(block.base),
            bytes: block.size as usize,
            requested_bytes: block.requested as usize,
            stream_id: block.stream.0,
            segment_base: pointer(block.segment),
            segment_bytes: block.segment_bytes as usize,
            device: block.device.0 as c_int,
            reserved: 0,
        });
        Ok(())
    })
}

/// Copies an explanation of an address as a text.
///
/// # Safety
/// `buffer` is NULL or has `capacity` writable bytes, and `length` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_explain_address(
    allocator: *const cachalot_allocator,
    address: *const c_void,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let explanation = instance.allocator.explain(self::address(address))?;
        // Names of functions and files come without NUL.
        let text = CString::new(explanation::describe(&explanation, &instance.stacks)).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { marshal::hand_out(&text, buffer, capacity, length) }
    })
}

/// Forecasts the first step that a request would take, without changing anything.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_forecast(
    allocator: *const cachalot_allocator,
    device: c_int,
    bytes: usize,
    stream: cachalot_stream,
    out: *mut cachalot_forecast,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (index, device) = instance.device(device)?;
        // A device that is not open stays so: what it will have is known without a context.
        let stream = device.stream_id(CuStream(stream.addr()))?;
        let (outcome, address, bytes) = match instance.allocator.forecast(index)?.malloc(bytes as u64, stream)? {
            Forecast::Hit(at) => (CACHALOT_WOULD_HIT, at, 0),
            Forecast::Obtain(bytes) => (CACHALOT_WOULD_OBTAIN, DevicePtr::NULL, bytes),
            Forecast::Expand => (CACHALOT_WOULD_EXPAND, DevicePtr::NULL, 0),
            Forecast::Release(at) => (CACHALOT_WOULD_RELEASE, at, 0),
            Forecast::OutOfMemory => (CACHALOT_WOULD_FAIL, DevicePtr::NULL, 0),
        };
        out.write(&cachalot_forecast {
            struct_size: size_of::<cachalot_forecast>(),
            address: pointer(address),
            bytes: bytes as usize,
            outcome,
            reserved: 0,
        });
        Ok(())
    })
}

/// Reports whether requests would be served if they were made now.
///
/// # Safety
/// `sizes` is NULL or has `count` entries, and `out` is NULL, or a structure as long as its first
/// field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_fit(
    allocator: *const cachalot_allocator,
    device: c_int,
    sizes: *const usize,
    count: usize,
    stream: cachalot_stream,
    out: *mut cachalot_fit,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        if sizes.is_null() && count > 0 {
            return Err(Status::null("the sizes"));
        }
        // SAFETY: guaranteed by the caller.
        let sizes: Vec<u64> = unsafe { marshal::array(sizes, count) }.iter().map(|&bytes| bytes as u64).collect();
        let (index, device) = instance.device(device)?;
        if !device.is_open() {
            instance.allocator.forecast(index)?.note_memory(device.memory_info()?);
        }
        let stream = device.stream_id(CuStream(stream.addr()))?;
        let fit = instance.allocator.forecast(index)?.would_fit(&sizes, stream)?;
        out.write(&cachalot_fit {
            struct_size: size_of::<cachalot_fit>(),
            served: fit.served,
            new_bytes: fit.new_bytes,
            reserved_bytes: fit.reserved_bytes,
            device_free_bytes: fit.device_free.unwrap_or(u64::MAX),
            bound: match fit.bound {
                None => CACHALOT_BOUND_NONE,
                Some(Bound::Limit) => CACHALOT_BOUND_LIMIT,
                Some(Bound::Fraction) => CACHALOT_BOUND_FRACTION,
                Some(Bound::Device) => CACHALOT_BOUND_DEVICE,
                Some(Bound::TagMax) => CACHALOT_BOUND_TAG,
                Some(_) => CACHALOT_BOUND_OTHER,
            },
            reserved: 0,
        });
        Ok(())
    })
}
