//! Reads the calling thread's Python frames through `CPython`'s C API, looked up in the running
//! process. Supports 3.9 and later.
//!
//! `PyTorch` releases the GIL before an allocation, so this module acquires the GIL, as PyTorch's
//! own allocator does. No lock of the allocator is held in the meantime. A thread unknown to Python
//! has no frames and does not wait. No Python code runs here.

use crate::c::abi::{cachalot_action, cachalot_stack};
use crate::c::capi::cachalot_stack_push;
use crate::c::status::{CACHALOT_ERROR_UNSUPPORTED, Outcome, Status};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

/// A Python object, only ever used behind a pointer.
#[repr(C)]
struct Object {
    _opaque: [u8; 0],
}

type Describer = unsafe extern "C" fn(*mut c_void, *mut cachalot_stack, cachalot_action);

/// Defines the table of API functions. Each function lists its possible names; the first name found
/// is used.
macro_rules! functions {
    ($($field:ident = $($name:literal)|+ ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of `CPython`'s C API that this module calls.
        struct Python {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Python {
            /// Looks up every function in the loaded libraries. `None` if a function is missing.
            fn find() -> Option<Self> {
                Some(Self {
                    $($field: {
                        let found = [$($name),+].into_iter().find_map(find)?;
                        // SAFETY: CPython's function of this name has had this signature in every
                        // version from 3.9 to 3.14.
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

/// Looks up a function of the process by name.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is NUL-terminated; the lookup changes nothing.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Returns the API functions. Repeats a failed lookup, because a program may load Python later.
fn python() -> Option<&'static Python> {
    static FOUND: OnceLock<Python> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let found = Python::find()?;
    Some(FOUND.get_or_init(|| found))
}

/// Returns the callback that describes Python stacks, for
/// [`Stacks::set`](crate::c::stacks::Stacks::set).
///
/// # Errors
/// [`CACHALOT_ERROR_UNSUPPORTED`] if the process has not loaded Python.
pub(super) fn describer() -> Outcome<Describer> {
    python().map(|_| describe as Describer).ok_or_else(|| {
        Status::new(CACHALOT_ERROR_UNSUPPORTED, "there is no Python of version 3.9 or later in this process")
    })
}

/// Describes the calling thread's frames, innermost first.
unsafe extern "C" fn describe(_: *mut c_void, stack: *mut cachalot_stack, _: cachalot_action) {
    let Some(python) = python() else { return };
    let Some(_locked) = Locked::new(python) else { return };
    let _error = PythonError::set_aside(python);
    // SAFETY: the GIL is held. The frame is borrowed.
    let mut frame = Owned::borrowed(python, unsafe { (python.current_frame)() });
    while let Some(at) = frame {
        push(stack, &at);
        // SAFETY: the GIL is held and the frame is owned. The result is owned, or NULL without an
        // error.
        frame = Owned::new(python, unsafe { (python.back)(at.object.as_ptr()) });
    }
}

/// Guard of the GIL, released on drop.
struct Locked {
    python: &'static Python,
    state: c_int,
}

impl Locked {
    /// Acquires the GIL. `None` if Python is not running or does not know the thread, which then
    /// has no frames.
    fn new(python: &'static Python) -> Option<Self> {
        // SAFETY: callable from any thread at any time, without arguments.
        let runs = unsafe { (python.is_initialized)() } != 0;
        // SAFETY: callable from any thread at any time, without arguments.
        let ends = unsafe { (python.is_finalizing)() } != 0;
        if !runs || ends {
            // Python would end a thread that waits for the GIL now.
            return None;
        }
        // SAFETY: callable from any thread while Python runs.
        if unsafe { (python.this_thread)() }.is_null() {
            return None;
        }
        // SAFETY: Python runs, and a thread that holds the GIL already may acquire it again.
        Some(Self { python, state: unsafe { (python.lock)() } })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: releases the state acquired in `new`, on the same thread, in reverse order.
        unsafe { (self.python.unlock)(self.state) };
    }
}

/// Appends one frame to a stack.
fn push(stack: *mut cachalot_stack, frame: &Owned) {
    let python = frame.python;
    // SAFETY: the GIL is held and the frame is owned. The result is owned, and never NULL.
    let Some(code) = Owned::new(python, unsafe { (python.code)(frame.object.as_ptr()) }) else { return };
    // SAFETY: the GIL is held and the frame is owned. The result is a number.
    let line = unsafe { (python.line)(frame.object.as_ptr()) };
    let name = code.text(c"co_name");
    let file = code.text(c"co_filename");
    let text = |text: &Option<Text>| text.as_ref().map_or(null(), |text| text.bytes);
    // SAFETY: the stack is the one being described; the texts are NUL-terminated and alive until
    // they are copied.
    unsafe { cachalot_stack_push(stack, text(&name), text(&file), line) };
}

/// A reference to a Python object. Created, used and dropped while the thread holds the GIL.
struct Owned {
    python: &'static Python,
    object: NonNull<Object>,
}

impl Owned {
    /// Takes over a reference of the caller.
    fn new(python: &'static Python, object: *mut Object) -> Option<Self> {
        NonNull::new(object).map(|object| Self { python, object })
    }

    /// Adds a reference to an object that another owner keeps alive.
    fn borrowed(python: &'static Python, object: *mut Object) -> Option<Self> {
        let owned = Self::new(python, object)?;
        // SAFETY: the lock is held and the object is alive.
        unsafe { (python.retain)(owned.object.as_ptr()) };
        Some(owned)
    }

    /// Returns a text attribute, or `None` if the object has no text attribute of the name.
    fn text(&self, name: &CStr) -> Option<Text> {
        let python = self.python;
        // SAFETY: the GIL is held, the object is alive and the name is NUL-terminated. The result
        // is owned.
        let found = Self::new(python, unsafe { (python.attribute)(self.object.as_ptr(), name.as_ptr()) });
        // SAFETY: the GIL is held and the object is alive. The result belongs to the object, and
        // lives as long.
        let bytes = found.as_ref().map_or(null(), |found| unsafe { (python.utf8)(found.object.as_ptr()) });
        if bytes.is_null() {
            // SAFETY: the GIL is held; the error was set by one of the two calls above.
            unsafe { (python.error_clear)() };
            return None;
        }
        found.map(|object| Text { bytes, _object: object })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the GIL is held, and the reference is this value's own.
        unsafe { (self.python.release)(self.object.as_ptr()) };
    }
}

/// A text, with the object that owns the bytes.
struct Text {
    bytes: *const c_char,
    _object: Owned,
}

/// The thread's Python error, set aside: allocations also happen during error handling. The drop
/// restores the error.
struct PythonError {
    python: &'static Python,
    parts: [*mut Object; 3],
}

impl PythonError {
    /// Fetches and clears the thread's error.
    fn set_aside(python: &'static Python) -> Self {
        let mut parts = [null_mut(); 3];
        let [kind, value, traceback] = &mut parts;
        // SAFETY: the GIL is held; the three variables outlive the call, which writes an owned
        // object or NULL to each.
        unsafe { (python.error_fetch)(kind, value, traceback) };
        Self { python, parts }
    }
}

impl Drop for PythonError {
    fn drop(&mut self) {
        let [kind, value, traceback] = self.parts;
        // SAFETY: the GIL is held; the call takes over the three references that were fetched.
        unsafe { (self.python.error_restore)(kind, value, traceback) };
    }
}
