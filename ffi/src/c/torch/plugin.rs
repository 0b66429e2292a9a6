//! The allocator of the plug-in: one per process, created on first use, over every device of the
//! driver. A device is opened by its first allocation. The allocator lives until the process ends.

use super::{diagnostics, python, settings};
use crate::c::abi::{
    CACHALOT_OPEN_LATER, CACHALOT_STREAMS_REPORTED, cachalot_allocator, cachalot_options, cachalot_status,
};
use crate::c::boundary;
use crate::c::handle;
use crate::c::instance::Instance;
use crate::c::marshal::Userdata;
use crate::c::recording;
use crate::c::status::{CACHALOT_OK, Host, Outcome, Status};
use cachalot_cuda::log;
use cachalot_snapshot::recorder;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// Handle of the allocator, or null before the creation.
static ALLOCATOR: AtomicPtr<cachalot_allocator> = AtomicPtr::new(null_mut());

/// Configuration set by the program in place of the environment's. Locked while the allocator is
/// created.
static SETTINGS: Mutex<Option<CString>> = Mutex::new(None);

/// Returns the handle of the allocator, or null before the creation.
#[inline]
pub(super) fn present() -> *mut cachalot_allocator {
    // Relaxed suffices: the handle is a number, and the table of handles synchronizes on its own.
    ALLOCATOR.load(Ordering::Relaxed)
}

/// Runs the body of a plug-in function on the allocator, like [`boundary::with_instance`]. Creates
/// the allocator first if necessary.
#[inline]
pub(super) fn with_allocator(body: impl FnOnce(&'static Instance) -> Outcome) -> cachalot_status {
    let mut allocator = present();
    if allocator.is_null() {
        let made = boundary::without_instance(|| {
            allocator = make()?;
            Ok(())
        });
        if made != CACHALOT_OK {
            diagnostics::report_once("no allocator can be made", made);
            return made;
        }
    }
    boundary::with_instance(allocator, body)
}

/// Runs the body of a plug-in function on the allocator, or does nothing before the creation.
pub(super) fn with_present(body: impl FnOnce(&'static Instance) -> Outcome) -> cachalot_status {
    let allocator = present();
    if allocator.is_null() { CACHALOT_OK } else { boundary::with_instance(allocator, body) }
}

/// Creates the allocator, unless another thread has created it first.
#[cold]
fn make() -> Outcome<*mut cachalot_allocator> {
    // Checked before the lock: in a forked child the lock may be locked by a thread that no longer
    // exists.
    if !handle::begin() {
        return Err(handle::forked());
    }
    let own = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let present = present();
    if !present.is_null() {
        return Ok(present);
    }
    let text = chosen(own.as_ref())?;
    // PyTorch takes its streams from a pool, and destroys none.
    let flags = CACHALOT_OPEN_LATER | CACHALOT_STREAMS_REPORTED;
    let options = cachalot_options { flags, config: text.as_ptr(), ..cachalot_options::INIT };
    // SAFETY: the only pointer among the options is to a NUL-terminated text that outlives the
    // call.
    let instance = unsafe { Instance::open(&options, Host::PyTorch) }?;
    let made = handle::insert(instance)?;
    start_recorder(made);
    ALLOCATOR.store(made, Ordering::Relaxed);
    Ok(made)
}

/// Starts the flight recorder with the options of the environment.
fn start_recorder(made: *const cachalot_allocator) {
    let options = recorder::Options::of_environment(log::warning);
    let started = handle::instance(made).and_then(|instance| {
        recording::start(instance, made, &options)?;
        if options.events > 0 && options.stacks {
            instance.stacks.set(Some(python::describer()?), Userdata(null_mut()));
        }
        Ok(())
    });
    if let Err(status) = started {
        diagnostics::report_once("the flight recorder has not started as asked", status.number());
    }
}

/// Returns the program's configuration, or else the environment's.
fn chosen(own: Option<&CString>) -> Outcome<CString> {
    own.map_or_else(settings::of_environment, |text| Ok(text.clone()))
}

/// Returns the configuration with which the allocator is created.
pub(super) fn configuration() -> Outcome<CString> {
    // Checked before the lock, as in `make`.
    if handle::in_child() {
        return Err(handle::forked());
    }
    chosen(SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
}

/// Sets the configuration: of the allocator if created, else for the creation in place of the
/// environment's. `None` selects the environment's configuration.
pub(super) fn configure<'a>(text: impl Fn() -> Outcome<Option<&'a str>>) -> cachalot_status {
    if present().is_null() {
        let mut is_made = false;
        let outcome = boundary::without_instance(|| {
            // Checked before the lock, as in `make`.
            if handle::in_child() {
                return Err(handle::forked());
            }
            let mut own = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
            is_made = !present().is_null();
            if !is_made {
                *own = text()?.map(|text| settings::checked("config", text)).transpose()?;
                diagnostics::forget();
            }
            Ok(())
        });
        if !is_made {
            return outcome;
        }
    }
    boundary::with_instance(present(), |instance| instance.configure(text()?.ok_or_else(|| Status::null("config"))?))
}
