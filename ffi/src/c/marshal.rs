//! Conversion between C and Rust: checks arguments before use, and writes results only after
//! success.

use crate::c::abi::cachalot_status;
use crate::c::status::{CACHALOT_ERROR_BUFFER_TOO_SMALL, CACHALOT_ERROR_STRUCT_SIZE, Outcome, Status};
use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A variable of the program, written only when the call succeeds.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Wraps an output pointer, unless it is NULL.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn of(pointer: *mut T) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// Wraps an output pointer. `what` names the argument in error messages.
    ///
    /// # Errors
    /// If the pointer is NULL.
    ///
    /// # Safety
    /// `pointer` is NULL, or stays valid for writes until the call returns.
    #[inline(always)]
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::of(pointer) }.ok_or_else(|| Status::null(what))
    }

    /// Writes the result of a call that succeeded.
    #[inline(always)]
    pub(crate) fn write(self, value: T) {
        // SAFETY: the caller of `new` guarantees a valid pointer. The variable may be
        // uninitialised, so nothing is dropped.
        unsafe { self.0.write(value) };
    }
}

/// A versioned structure of the C interface: starts with its size, followed by numbers and
/// pointers, so that all zeros are a valid value.
///
/// # Safety
/// The type is `repr(C)` without padding, the first field is `struct_size: usize`, and every bit
/// pattern is a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// Size of the structure in the version that introduced it: a number, because `size_of` grows
    /// with the structure, and would then refuse programs that were compiled before.
    const FIRST_SIZE: usize;
}

/// Upper bound of `struct_size` in bytes. No version has a larger structure, so a larger size was
/// never initialised.
const MOST_BYTES: usize = 4096;

/// Reads and checks the size of a structure from the program.
///
/// # Safety
/// `pointer` is NULL, or points to a structure that starts with its size.
unsafe fn size_of_struct<T: Versioned>(pointer: *const T, what: &str) -> Outcome<usize> {
    if pointer.is_null() {
        return Err(Status::null(what));
    }
    // SAFETY: not NULL, and the caller's structure starts with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(T::FIRST_SIZE..=MOST_BYTES).contains(&size) {
        let text = format!("{what}: struct_size is {size}, and not {} to {MOST_BYTES}", T::FIRST_SIZE);
        return Err(Status::new(CACHALOT_ERROR_STRUCT_SIZE, text));
    }
    Ok(size)
}

/// Reads a structure from the program, of any version. Fields missing in a shorter structure are 0;
/// fields unknown to the library must be 0.
///
/// # Errors
/// If `pointer` is NULL, the structure is too short, or an unknown field is set.
///
/// # Safety
/// `pointer` is NULL, or points to a structure as long as its first field says.
pub(crate) unsafe fn read_struct<T: Versioned>(pointer: *const T, what: &str) -> Outcome<T> {
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size_of_struct(pointer, what) }?;
    // SAFETY: the structure has `size` bytes, all initialised by the program.
    let bytes = unsafe { core::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let (known, beyond) = bytes.split_at(size.min(size_of::<T>()));
    if let Some(at) = beyond.iter().position(|&byte| byte != 0) {
        let text = format!("{what}: byte {} is set, and this version knows {}", known.len() + at, known.len());
        return Err(Status::new(CACHALOT_ERROR_STRUCT_SIZE, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both are at least `known.len()` bytes long, and do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast::<u8>(), known.len()) };
    // SAFETY: consists of zeros and of bytes from the program; every bit pattern is a valid value.
    Ok(unsafe { value.assume_init() })
}

/// A structure of the program, written only when the call succeeds.
pub(crate) struct OutStruct<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Versioned> OutStruct<T> {
    /// Wraps an output structure. `what` names the argument in error messages.
    ///
    /// # Errors
    /// If `pointer` is NULL or the structure is too short.
    ///
    /// # Safety
    /// `pointer` is NULL, or points to a structure as long as its first field says, valid for
    /// writes until the call returns.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        // SAFETY: guaranteed by the caller.
        let size = unsafe { size_of_struct(pointer.cast_const(), what) }?;
        Ok(Self { pointer, size })
    }

    /// Writes every field known to both sides. `struct_size` stays as the program set it.
    pub(crate) fn write(self, value: &T) {
        const SIZE: usize = size_of::<usize>();
        let known = self.size.min(size_of::<T>());
        let from = core::ptr::from_ref(value).cast::<u8>();
        let to = self.pointer.cast::<u8>();
        // SAFETY: stays inside `value`.
        let from = unsafe { from.add(SIZE) };
        // SAFETY: stays inside the program's structure, which is longer than its size field.
        let to = unsafe { to.add(SIZE) };
        // SAFETY: both are at least `known` bytes long, and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(from, to, known - SIZE) };
    }
}

/// Borrows an array from the program, or an empty one for NULL.
///
/// # Safety
/// `pointer` is NULL, or points to `length` entries that stay unchanged during the call.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, length: usize) -> &'a [T] {
    // SAFETY: guaranteed by the caller.
    if pointer.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(pointer, length) } }
}

/// Borrows a text from the program.
///
/// # Errors
/// If `pointer` is NULL. With the status `refusal` if the text is not UTF-8.
///
/// # Safety
/// `pointer` is NULL, or points to a NUL-terminated text that stays unchanged during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str, refusal: cachalot_status) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(Status::null(what));
    }
    // SAFETY: not NULL; the rest is guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::new(refusal, format_args!("{what} is not UTF-8")))
}

/// Copies a text with its NUL to the `capacity` bytes at `buffer`, and the length without the NUL
/// to `length`. Either may be NULL, but not both; the capacity of a NULL buffer is 0.
///
/// # Safety
/// `buffer` is NULL or has `capacity` writable bytes, and `length` is NULL or valid for a write.
pub(crate) unsafe fn hand_out(text: &CStr, buffer: *mut c_char, capacity: usize, length: *mut usize) -> Outcome {
    let text = text.to_bytes_with_nul();
    if buffer.is_null() && (capacity > 0 || length.is_null()) {
        return Err(Status::null("the buffer"));
    }
    if !buffer.is_null() {
        if text.len() > capacity {
            let text = format!("the text needs {} bytes, and there are {capacity}", text.len());
            return Err(Status::new(CACHALOT_ERROR_BUFFER_TOO_SMALL, text));
        }
        // SAFETY: the caller's buffer has room for the text and its NUL, and does not overlap with
        // it.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len()) };
    }
    if let Some(length) = NonNull::new(length) {
        // SAFETY: guaranteed by the caller.
        unsafe { length.write(text.len() - 1) };
    }
    Ok(())
}

/// A context pointer of the program, passed back to callbacks and never dereferenced.
#[derive(Clone, Copy)]
pub(crate) struct Userdata(pub *mut c_void);

// SAFETY: never dereferenced here; by the interface, callbacks run on any thread.
unsafe impl Send for Userdata {}
// SAFETY: never dereferenced here; by the interface, callbacks run on any thread.
unsafe impl Sync for Userdata {}
