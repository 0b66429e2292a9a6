//! Starts the flight recorder of an allocator, and traces in its place.

use crate::c::abi::cachalot_allocator;
use crate::c::handle;
use crate::c::instance::Instance;
use crate::c::recorder::Active;
use crate::c::snapshot::{self, Contents};
use crate::c::status::Outcome;
use cachalot_core::{DeviceIndex, EventTimes};
use cachalot_cuda::own_files::quietly;
use cachalot_snapshot::recorder::{Files, Options};
use std::sync::Arc;

/// Starts the recorder of an allocator, changes its options, or stops it if it keeps no events.
/// `allocator` is the handle of `instance`.
pub(crate) fn start(instance: &Instance, allocator: *const cachalot_allocator, options: &Options) -> Outcome {
    let events = options.events;
    if events == 0 && instance.recorder.events() == 0 {
        // It is off, and a trace goes on.
        return Ok(());
    }
    for device in instance.devices() {
        instance.allocator.trace(device)?.record_with(events, EventTimes::Numbered)?;
    }
    // A device knows its allocator only by the handle.
    let (files, number) = (Files::new(options), allocator.addr());
    let write = move || {
        let instance = handle::instance(core::ptr::without_provenance(number)).ok()?;
        quietly(|| files.write(|| snapshot::take(instance, Contents::Whole)))
    };
    instance.recorder.set((events > 0).then(|| Active { events, write: Arc::new(write) }));
    Ok(())
}

/// Starts a trace of a device, or stops it for 0 events. The recorder, if it is on, goes on after
/// the trace.
pub(crate) fn start_trace(instance: &Instance, device: DeviceIndex, capacity: usize) -> Outcome {
    let trace = instance.allocator.trace(device)?;
    match (capacity, instance.recorder.events()) {
        (0, events @ 1..) => Ok(trace.record_with(events, EventTimes::Numbered)?),
        _ => Ok(trace.record(capacity)?),
    }
}
