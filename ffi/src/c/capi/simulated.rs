//! Control of simulated devices.

use crate::c::abi::{cachalot_allocator, cachalot_status, cachalot_stream};
use crate::c::boundary;
use crate::c::device::Device;
use crate::c::status::{CACHALOT_ERROR_UNSUPPORTED, Outcome, Status};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_cuda::driver::types::CuStream;
use cachalot_tuner::program::Simulates;
use core::ffi::c_int;

/// Returns the simulated device, or an error for a real device.
fn simulated(device: &Device) -> Outcome<&SimulatedDevice> {
    let not_one = || Status::new(CACHALOT_ERROR_UNSUPPORTED, format_args!("device {} is not simulated", device.number));
    device.simulated().ok_or_else(not_one)
}

/// Completes the work queued on a stream so far.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_simulate_progress(
    allocator: *const cachalot_allocator,
    device: c_int,
    stream: cachalot_stream,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (_, device) = instance.device(device)?;
        simulated(device)?.complete(device.stream_id(CuStream(stream.addr()))?);
        Ok(())
    })
}

/// Starts or ends a capture on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_simulate_capture(
    allocator: *const cachalot_allocator,
    device: c_int,
    stream: cachalot_stream,
    on: c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (_, device) = instance.device(device)?;
        simulated(device)?.set_capturing(device.stream_id(CuStream(stream.addr()))?, on != 0);
        Ok(())
    })
}
