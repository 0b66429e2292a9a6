//! Introspection: traces, snapshots, and the check of all invariants.

use crate::c::abi::{
    CACHALOT_JSON, CACHALOT_PICKLE, CACHALOT_WITHOUT_EVENTS, cachalot_allocator, cachalot_snapshot_options,
    cachalot_status, cachalot_trace_entry, cachalot_trace_visitor, cachalot_writer,
};
use crate::c::boundary;
use crate::c::callbacks;
use crate::c::instance::Instance;
use crate::c::marshal::{self, Versioned};
use crate::c::recording;
use crate::c::snapshot::{self, Contents};
use crate::c::status::{
    CACHALOT_ERROR_INVALID_ARGUMENT, CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_IO, CACHALOT_ERROR_PANIC,
    CACHALOT_ERROR_STOPPED, Outcome, Status,
};
use cachalot_snapshot::Format;
use cachalot_snapshot::recorder::Options as RecorderOptions;
use core::ffi::{c_char, c_int, c_void};

// SAFETY: `repr(C)` with its size first, and numbers and pointers without padding.
unsafe impl Versioned for cachalot_snapshot_options {
    const FIRST_SIZE: usize = 24;
}

/// Starts to record the latest `capacity` events of a device, or stops for 0.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_trace_start(
    allocator: *const cachalot_allocator,
    device: c_int,
    capacity: usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        recording::start_trace(instance, device, capacity)
    })
}

/// Starts the flight recorder with the options of a text, or stops it.
///
/// # Safety
/// `options` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_recorder_start(
    allocator: *const cachalot_allocator,
    options: *const c_char,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let text = if options.is_null() {
            ""
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { marshal::text(options, "options", CACHALOT_ERROR_INVALID_CONFIG) }?
        };
        let options =
            RecorderOptions::parse(text).map_err(|error| Status::new(CACHALOT_ERROR_INVALID_CONFIG, error))?;
        recording::start(instance, allocator, &options)
    })
}

/// Passes every recorded event to a callback.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_visit_trace(
    allocator: *const cachalot_allocator,
    device: c_int,
    visit: cachalot_trace_visitor,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let visit = visit.ok_or_else(|| Status::null("the callback"))?;
        let (device, _) = instance.device(device)?;
        // Copy first: the callback may call the allocator, which records more events.
        let mut entries = Vec::new();
        instance.allocator.trace(device)?.for_each(|entry| entries.push(*entry));
        let _running = instance.callbacks.enter();
        for entry in entries {
            let entry = cachalot_trace_entry {
                struct_size: size_of::<cachalot_trace_entry>(),
                address: entry.addr.0,
                bytes: entry.size,
                stream_id: entry.stream.0,
                time_us: entry.time_us,
                action: callbacks::number_of(entry.action),
                reserved: 0,
            };
            // SAFETY: guaranteed by the caller; the entry outlives the call.
            if unsafe { visit(userdata, &raw const entry) } != 0 {
                return Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"));
            }
        }
        Ok(())
    })
}

/// Passes a snapshot to a callback, or writes it to the file that the options name.
///
/// # Safety
/// `options` is NULL, or points to a structure as long as its first field says, with a path that is
/// NULL or NUL-terminated. The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_snapshot(
    allocator: *const cachalot_allocator,
    options: *const cachalot_snapshot_options,
    write: cachalot_writer,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let options = if options.is_null() {
            None
        } else {
            // SAFETY: guaranteed by the caller.
            Some(unsafe { marshal::read_struct(options, "options") }?)
        };
        let format = match options.map_or(0, |options| options.format) {
            0 => None,
            CACHALOT_JSON => Some(Format::Json),
            CACHALOT_PICKLE => Some(Format::Pickle),
            other => return Err(Status::argument(format_args!("{other} is no format of snapshots"))),
        };
        let contents = match options.map_or(0, |options| options.flags) {
            0 => Contents::Whole,
            CACHALOT_WITHOUT_EVENTS => Contents::WithoutEvents,
            other => return Err(Status::argument(format_args!("the flags {other:#x} of a snapshot have no meaning"))),
        };
        let path = options.map(|options| options.path).filter(|path| !path.is_null());
        match (path, write) {
            (Some(_), Some(_)) => Err(Status::argument(format_args!("a snapshot goes to a file or to a callback"))),
            (Some(path), None) => {
                // SAFETY: guaranteed by the caller.
                let path = unsafe { marshal::text(path, "path", CACHALOT_ERROR_INVALID_ARGUMENT) }?;
                snapshot::write_file(instance, contents, path.as_ref(), format)
                    .map_err(|error| Status::new(CACHALOT_ERROR_IO, format_args!("{path}: {error}")))
            }
            // SAFETY: guaranteed by the caller.
            (None, write) => unsafe { hand_out(instance, contents, format.unwrap_or(Format::Json), write, userdata) },
        }
    })
}

/// Passes a snapshot to a callback, part by part.
///
/// # Safety
/// The callback may be called with `userdata`.
unsafe fn hand_out(
    instance: &Instance,
    contents: Contents,
    format: Format,
    write: cachalot_writer,
    userdata: *mut c_void,
) -> Outcome {
    let write = write.ok_or_else(|| Status::null("the callback"))?;
    let _running = instance.callbacks.enter();
    snapshot::write(instance, contents, format, |part| {
        // SAFETY: guaranteed by the caller; the text outlives the call.
        unsafe { write(userdata, part.as_ptr().cast(), part.len()) == 0 }
    })
    .map_err(|error| match error {
        snapshot::Error::Stopped => Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"),
        snapshot::Error::Io(error) => Status::new(CACHALOT_ERROR_IO, error),
    })
}

/// Checks every invariant of an allocator.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_check_invariants(allocator: *const cachalot_allocator) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        instance.allocator.check_invariants().map_err(|broken| Status::new(CACHALOT_ERROR_PANIC, broken))
    })
}
