//! The one allocator behind the plug-in. It is made when it is first needed, over every device of the driver, each opened when
//! it is first allocated from; and it stays until the process ends.

use super::{diagnostics, settings};
use crate::abi::{CACHALOT_OPEN_LATER, cachalot_allocator, cachalot_options, cachalot_status};
use crate::boundary;
use crate::handle;
use crate::instance::Instance;
use crate::status::{CACHALOT_OK, Host, Outcome, Status};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// The allocator's handle; null until there is one.
static ALLOCATOR: AtomicPtr<cachalot_allocator> = AtomicPtr::new(null_mut());

/// The settings that the program gave in place of the environment's. Held while the allocator is made.
static SETTINGS: Mutex<Option<CString>> = Mutex::new(None);

/// The allocator's handle; null if there is none yet.
#[inline]
pub(super) fn present() -> *mut cachalot_allocator {
    // Acquire is not needed: the handle is a number, and the table that it is looked up in has an order of its own.
    ALLOCATOR.load(Ordering::Relaxed)
}

/// Runs the body of a function of the plug-in's: as [`boundary::with_instance`], on the one allocator, which is made if there is none.
#[inline]
pub(super) fn with_allocator(body: impl FnOnce(&'static Instance) -> Outcome) -> cachalot_status {
    let mut allocator = present();
    if allocator.is_null() {
        let made = boundary::alone(|| {
            allocator = make()?;
            Ok(())
        });
        if made != CACHALOT_OK {
            diagnostics::tell_once("no allocator can be made", made);
            return made;
        }
    }
    boundary::with_instance(allocator, body)
}

/// The same if there is an allocator: if there is none, there is nothing to do.
pub(super) fn with_present(body: impl FnOnce(&'static Instance) -> Outcome) -> cachalot_status {
    let allocator = present();
    if allocator.is_null() { CACHALOT_OK } else { boundary::with_instance(allocator, body) }
}

/// Makes the allocator, unless another thread has meanwhile.
#[cold]
fn make() -> Outcome<*mut cachalot_allocator> {
    // Looked at before the lock: in a forked child nobody may be left to release it.
    if !handle::begin() {
        return Err(handle::forked());
    }
    let own = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let present = present();
    if !present.is_null() {
        return Ok(present);
    }
    let text = match &*own {
        Some(text) => text.clone(),
        None => settings::of_environment()?,
    };
    let options = cachalot_options { flags: CACHALOT_OPEN_LATER, config: text.as_ptr(), ..cachalot_options::INIT };
    // SAFETY: the only pointer among the options is to a text that ends with NUL and outlives the call.
    let instance = unsafe { Instance::open(&options, Host::PyTorch) }?;
    let made = handle::insert(instance)?;
    ALLOCATOR.store(made, Ordering::Relaxed);
    Ok(made)
}

/// Puts settings in force: for the allocator to be made, in place of the environment's, or for the one that there is.
/// `None`: those of the environment.
pub(super) fn configure<'a>(text: impl Fn() -> Outcome<Option<&'a str>>) -> cachalot_status {
    if present().is_null() {
        let mut is_made = false;
        let kept = boundary::alone(|| {
            // Looked at before the lock, as above.
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
            return kept;
        }
    }
    boundary::with_instance(present(), |instance| instance.configure(text()?.ok_or_else(|| Status::null("config"))?))
}
