//! Functions that a program calls on the plug-in directly, not through `PyTorch`.

use super::{plugin, python};
use crate::c::abi::{cachalot_allocator, cachalot_status, cachalot_writer};
use crate::c::boundary;
use crate::c::handle;
use crate::c::marshal::{self, Out, Userdata};
use crate::c::notes;
use crate::c::status::{CACHALOT_ERROR_INVALID_CONFIG, CACHALOT_ERROR_PANIC, CACHALOT_ERROR_STOPPED, Status};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;

/// Sets the configuration of the allocator: before its creation for the creation, afterwards with
/// immediate effect.
///
/// # Safety
/// `config` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_configure(config: *const c_char) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::configure(|| {
            if config.is_null() {
                return Ok(None);
            }
            // SAFETY: guaranteed by the caller.
            unsafe { marshal::text(config, "config", CACHALOT_ERROR_INVALID_CONFIG) }.map(Some)
        })
    })
}

/// Passes a text for each setting without effect to a callback: of `config`, or of the settings
/// with which the allocator is created.
///
/// # Safety
/// `config` is NULL or NUL-terminated. The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_notes(
    config: *const c_char,
    write: cachalot_writer,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::without_instance(|| {
        let write = write.ok_or_else(|| Status::null("the callback"))?;
        let chosen = if config.is_null() { plugin::configuration()? } else { CString::default() };
        let config = if config.is_null() { chosen.as_ptr() } else { config };
        // SAFETY: guaranteed by the caller, and true for a configuration of the plug-in.
        let config = unsafe { marshal::text(config, "config", CACHALOT_ERROR_INVALID_CONFIG) }?;
        for note in notes::take(&crate::parse(config)?) {
            // SAFETY: guaranteed by the caller; the text outlives the call.
            if unsafe { write(userdata, note.as_ptr().cast(), note.len()) } != 0 {
                return Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"));
            }
        }
        Ok(())
    })
}

/// Returns the allocator, and creates it if necessary.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_allocator(out: *mut *mut cachalot_allocator) -> cachalot_status {
    plugin::with_allocator(|_| {
        // SAFETY: guaranteed by the caller.
        unsafe { Out::new(out, "out") }?.write(plugin::present());
        Ok(())
    })
}

/// Returns the allocator, or NULL if there is none yet.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_peek(out: *mut *mut cachalot_allocator) -> cachalot_status {
    boundary::without_instance(|| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        if handle::in_child() {
            return Err(handle::forked());
        }
        out.write(plugin::present());
        Ok(())
    })
}

/// Starts or stops recording the Python frames of each traced event.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_record_stacks(on: c_int) -> cachalot_status {
    plugin::with_allocator(|instance| {
        let callback = if on == 0 { None } else { Some(python::describer()?) };
        instance.stacks.set(callback, Userdata(null_mut()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c::status::CACHALOT_OK;

    /// Gathers texts, and asks to stop after the second.
    unsafe extern "C" fn gather(texts: *mut c_void, text: *const c_char, bytes: usize) -> c_int {
        // SAFETY: the test's own list, without another user during the call.
        let texts = unsafe { &mut *texts.cast::<Vec<String>>() };
        // SAFETY: the text has the passed length.
        let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), bytes) };
        texts.push(String::from_utf8_lossy(text).into_owned());
        c_int::from(texts.len() == 2)
    }

    #[test]
    fn each_setting_without_effect_is_told_until_the_program_asks_to_stop() {
        let (one, two) = (c"garbage_collection_threshold:0.8", c"compact:0.05,expandable_segments:True");
        let mut texts = Vec::<String>::new();
        for (config, status) in [(one, CACHALOT_OK), (two, CACHALOT_ERROR_STOPPED)] {
            // SAFETY: the configuration and the list outlive the call.
            let told = unsafe { cachalot_torch_notes(config.as_ptr(), Some(gather), (&raw mut texts).cast()) };
            assert_eq!(told, status, "{texts:?}");
        }
        assert!(texts[0].contains("garbage_collection_threshold") && texts[1].contains("compact"), "{texts:?}");
    }
}
