//! Elastic ranges: addresses that the program fills with memory part by part.

use crate::c::abi::{cachalot_allocator, cachalot_range, cachalot_status, cachalot_stream};
use crate::c::boundary;
use crate::c::instance::Instance;
use crate::c::marshal::Out;
use crate::c::status::Outcome;
use cachalot_core::{DeviceIndex, RangeId, StreamId};
use cachalot_cuda::driver::types::CuStream;
use core::ffi::c_int;

/// Reserves addresses for `max_bytes` on a device, and writes the range to `out`.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_range_reserve(
    allocator: *const cachalot_allocator,
    device: c_int,
    max_bytes: usize,
    out: *mut cachalot_range,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        let (index, opened) = instance.device(device)?;
        opened.open()?;
        let reserved = instance.allocator.ranges(index)?.reserve(max_bytes as u64)?;
        out.write(cachalot_range {
            allocator,
            number: reserved.range.0,
            base: core::ptr::without_provenance_mut(reserved.base.0 as usize),
            bytes: reserved.bytes as usize,
            page_bytes: reserved.page_bytes as usize,
            device,
            reserved: 0,
        });
        Ok(())
    })
}

/// Gives a part of a range memory that later work on a stream may use.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_range_commit(
    range: cachalot_range,
    offset: usize,
    bytes: usize,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(range.allocator, |instance| {
        let (device, stream) = device_and_stream(instance, range, stream)?;
        Ok(instance.allocator.ranges(device)?.commit(RangeId(range.number), offset as u64, bytes as u64, stream)?)
    })
}

/// Gives the memory of a part up, after the present work of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_range_decommit(
    range: cachalot_range,
    offset: usize,
    bytes: usize,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(range.allocator, |instance| {
        let (device, stream) = device_and_stream(instance, range, stream)?;
        Ok(instance.allocator.ranges(device)?.decommit(RangeId(range.number), offset as u64, bytes as u64, stream)?)
    })
}

/// Releases a range, after the present work of all its streams.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_range_release(range: cachalot_range) -> cachalot_status {
    boundary::with_instance(range.allocator, |instance| {
        let (device, _) = instance.device(range.device)?;
        Ok(instance.allocator.ranges(device)?.release(RangeId(range.number))?)
    })
}

/// Returns the numbers of a range's device and of a stream.
fn device_and_stream(
    instance: &Instance,
    range: cachalot_range,
    stream: cachalot_stream,
) -> Outcome<(DeviceIndex, StreamId)> {
    let (index, device) = instance.device(range.device)?;
    Ok((index, device.stream_id(CuStream(stream.addr()))?))
}
