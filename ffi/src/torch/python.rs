//! The calling thread's Python frames, by `CPython`'s own functions, found in the running process: 3.9 and later.
//!
//! `PyTorch` gives Python's lock up before it allocates, so it is taken here, as PyTorch's own allocator does: no lock of the
//! allocator's is held meanwhile. A thread that Python does not know has no frames and does not wait. Nothing here runs Python
//! code.

use crate::abi::{cachalot_action, cachalot_stack};
use crate::capi::cachalot_stack_push;
use crate::status::{CACHALOT_ERROR_UNSUPPORTED, Outcome, Status};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

/// An object of Python's.
#[repr(C)]
struct Object {
    _opaque: [u8; 0],
}

type Describer = unsafe extern "C" fn(*mut c_void, *mut cachalot_stack, cachalot_action);

/// Defines the table of functions, and how it is found: each by the first of its names that there is.
macro_rules! functions {
    ($($field:ident = $($name:literal)|+ ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of Python that are needed here.
        struct Python {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Python {
            /// Finds them among what the process has loaded.
            fn find() -> Option<Self> {
                Some(Self {
                    $($field: {
                        let found = [$($name),+].into_iter().find_map(find)?;
                        // SAFETY: CPython's function of this name has had this signature in every version from 3.9 to 3.14.
                        unsafe {
                            core::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    is_initialized = c"Py_IsInitialized" () -> c_int;
    is_finalizing = c"Py_IsFinalizing" | c"_Py_IsFinalizing" () -> c_int;
    this_thread = c"PyGILState_GetThisThreadState" () -> *mut Object;
    lock = c"PyGILState_Ensure" () -> c_int;
    unlock = c"PyGILState_Release" (c_int);
    current_frame = c"PyEval_GetFrame" () -> *mut Object;
    back = c"PyFrame_GetBack" (*mut Object) -> *mut Object;
    code = c"PyFrame_GetCode" (*mut Object) -> *mut Object;
    line = c"PyFrame_GetLineNumber" (*mut Object) -> c_int;
    attribute = c"PyObject_GetAttrString" (*mut Object, *const c_char) -> *mut Object;
    utf8 = c"PyUnicode_AsUTF8" (*mut Object) -> *const c_char;
    retain = c"Py_IncRef" (*mut Object);
    release = c"Py_DecRef" (*mut Object);
    error_fetch = c"PyErr_Fetch" (*mut *mut Object, *mut *mut Object, *mut *mut Object);
    error_restore = c"PyErr_Restore" (*mut Object, *mut Object, *mut Object);
    error_clear = c"PyErr_Clear" ();
}

/// A function of the process by its name.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends with NUL; the loader is only asked.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Python's functions, once they were found. A program that loads Python later is looked at again.
fn python() -> Option<&'static Python> {
    static FOUND: OnceLock<Python> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let found = Python::find()?;
    Some(FOUND.get_or_init(|| found))
}

/// What describes stacks by Python's frames, for [`Stacks::set`](crate::stacks::Stacks::set).
///
/// # Errors
/// [`CACHALOT_ERROR_UNSUPPORTED`] if there is no Python in the process.
pub(super) fn describer() -> Outcome<Describer> {
    python().map(|_| describe as Describer).ok_or_else(|| {
        Status::new(CACHALOT_ERROR_UNSUPPORTED, "there is no Python of version 3.9 or later in this process")
    })
}

/// Describes the calling thread's frames, innermost first.
unsafe extern "C" fn describe(_: *mut c_void, stack: *mut cachalot_stack, _: cachalot_action) {
    let Some(python) = python() else { return };
    let Some(_locked) = Locked::new(python) else { return };
    let _error = Error::set_aside(python);
    // SAFETY: the lock is held. The frame is borrowed.
    let mut frame = Owned::borrowed(python, unsafe { (python.current_frame)() });
    while let Some(at) = frame {
        push(stack, &at);
        // SAFETY: the lock is held and the frame is owned. The answer is owned, or NULL without an error.
        frame = Owned::new(python, unsafe { (python.back)(at.object.as_ptr()) });
    }
}

/// Python's lock, held by the calling thread.
struct Locked {
    python: &'static Python,
    state: c_int,
}

impl Locked {
    /// Waits for the lock, unless Python does not run or does not know the thread: then it has no frames.
    fn new(python: &'static Python) -> Option<Self> {
        // SAFETY: these may be called from any thread, at any time; they take nothing.
        let runs = unsafe { (python.is_initialized)() } != 0;
        // SAFETY: as above.
        let ends = unsafe { (python.is_finalizing)() } != 0;
        if !runs || ends {
            // A thread that waited for the lock now would be ended by Python.
            return None;
        }
        // SAFETY: as above, and Python runs.
        if unsafe { (python.this_thread)() }.is_null() {
            return None;
        }
        // SAFETY: Python runs, and whoever holds the lock already may take it again.
        Some(Self { python, state: unsafe { (python.lock)() } })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: given back as it was taken, by the same thread and in the reverse order.
        unsafe { (self.python.unlock)(self.state) };
    }
}

/// Adds one frame to a stack.
fn push(stack: *mut cachalot_stack, frame: &Owned) {
    let python = frame.python;
    // SAFETY: the lock is held and the frame is owned. The answer is owned, and never NULL.
    let Some(code) = Owned::new(python, unsafe { (python.code)(frame.object.as_ptr()) }) else { return };
    // SAFETY: as above; it answers a number.
    let line = unsafe { (python.line)(frame.object.as_ptr()) };
    let name = code.text(c"co_name");
    let file = code.text(c"co_filename");
    let text = |text: &Option<Text>| text.as_ref().map_or(null(), |text| text.bytes);
    // SAFETY: the stack is the one that is being described; the texts end with NUL and are held until they were copied.
    unsafe { cachalot_stack_push(stack, text(&name), text(&file), line) };
}

/// An object that is kept alive. Made, used and dropped while the thread holds Python's lock.
struct Owned {
    python: &'static Python,
    object: NonNull<Object>,
}

impl Owned {
    /// An object of which the caller has a reference to give.
    fn new(python: &'static Python, object: *mut Object) -> Option<Self> {
        NonNull::new(object).map(|object| Self { python, object })
    }

    /// An object of which somebody else has the reference.
    fn borrowed(python: &'static Python, object: *mut Object) -> Option<Self> {
        let owned = Self::new(python, object)?;
        // SAFETY: the lock is held and the object is alive.
        unsafe { (python.retain)(owned.object.as_ptr()) };
        Some(owned)
    }

    /// An attribute that is a text, if there is one of this name.
    fn text(&self, name: &CStr) -> Option<Text> {
        let python = self.python;
        // SAFETY: the lock is held, the object is alive and the name ends with NUL. The answer is owned.
        let found = Self::new(python, unsafe { (python.attribute)(self.object.as_ptr(), name.as_ptr()) });
        // SAFETY: the lock is held and the object is alive. The answer is the object's own, for as long as it lives.
        let bytes = found.as_ref().map_or(null(), |found| unsafe { (python.utf8)(found.object.as_ptr()) });
        if bytes.is_null() {
            // SAFETY: the lock is held; the error is one of the two calls above.
            unsafe { (python.error_clear)() };
            return None;
        }
        found.map(|object| Text { bytes, _object: object })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the lock is held, and the reference is this value's own.
        unsafe { (self.python.release)(self.object.as_ptr()) };
    }
}

/// A text, and the object that it is of.
struct Text {
    bytes: *const c_char,
    _object: Owned,
}

/// The error that the thread had before, if any: allocations are made while errors are dealt with, too. Set again when it is
/// dropped.
struct Error {
    python: &'static Python,
    parts: [*mut Object; 3],
}

impl Error {
    fn set_aside(python: &'static Python) -> Self {
        let mut parts = [null_mut(); 3];
        let [kind, value, traceback] = &mut parts;
        // SAFETY: the lock is held; the three variables outlive the call, which writes an owned object or NULL to each.
        unsafe { (python.error_fetch)(kind, value, traceback) };
        Self { python, parts }
    }
}

impl Drop for Error {
    fn drop(&mut self) {
        let [kind, value, traceback] = self.parts;
        // SAFETY: the lock is held; the three are what was fetched, and are given back.
        unsafe { (self.python.error_restore)(kind, value, traceback) };
    }
}
