//! Checks what C passes in before it is used, and writes results only when a call has succeeded.

use crate::abi::cachalot_status;
use crate::status::{CACHALOT_ERROR_STRUCT_SIZE, Outcome, Status};
use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A variable of the program that is written if and when the call has succeeded.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Errors
    /// If the pointer is NULL.
    ///
    /// # Safety
    /// A pointer that is not NULL can be written through until the call returns.
    #[inline(always)]
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        NonNull::new(pointer).map(Self).ok_or_else(|| Status::null(what))
    }

    /// Writes the variable.
    #[inline(always)]
    pub(crate) fn write(self, value: T) {
        // SAFETY: `new`'s caller vouches for the pointer. The program's variable may be uninitialised: nothing is dropped.
        unsafe { self.0.write(value) };
    }
}

/// A structure that begins with its size and consists of plain numbers and pointers, so that all zeros are a value.
///
/// # Safety
/// The type is `repr(C)`, its first field is `struct_size: usize`, every pattern of bits is a value of it, and it has no
/// padding.
pub(crate) unsafe trait Versioned: Copy {
    /// The size of the structure in the first version that had it.
    const FIRST_SIZE: usize;
}

/// No version's structure is longer, in bytes: a size that was never set is refused, and not believed.
const MOST_BYTES: usize = 4096;

/// The size that a structure of the program's begins with.
///
/// # Safety
/// A pointer that is not NULL is to a structure that begins with its size.
unsafe fn size_of_struct<T: Versioned>(pointer: *const T, what: &str) -> Outcome<usize> {
    if pointer.is_null() {
        return Err(Status::null(what));
    }
    // SAFETY: not NULL, and the caller's structure begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(T::FIRST_SIZE..=MOST_BYTES).contains(&size) {
        let text = format!("{what}: struct_size is {size}, and not {} to {MOST_BYTES}", T::FIRST_SIZE);
        return Err(Status::new(CACHALOT_ERROR_STRUCT_SIZE, text));
    }
    Ok(size)
}

/// Reads a structure of the program's: what a shorter one lacks is 0; what a longer one has beyond must be.
///
/// # Errors
/// If it is NULL, too short, or says more than is understood.
///
/// # Safety
/// A pointer that is not NULL is to a structure as long as its first field says.
pub(crate) unsafe fn read_struct<T: Versioned>(pointer: *const T, what: &str) -> Outcome<T> {
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_struct(pointer, what) }?;
    // SAFETY: the structure is so long, and its bytes are set: the program initialised it.
    let bytes = unsafe { core::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let (known, beyond) = bytes.split_at(size.min(size_of::<T>()));
    if let Some(at) = beyond.iter().position(|&byte| byte != 0) {
        let text = format!("{what}: byte {} is set, and this version knows {}", known.len() + at, known.len());
        return Err(Status::new(CACHALOT_ERROR_STRUCT_SIZE, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both are at least so long, and do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast::<u8>(), known.len()) };
    // SAFETY: zeros and what the program set: every pattern of bits is a value.
    Ok(unsafe { value.assume_init() })
}

/// A structure of the program's that is written if and when the call has succeeded.
pub(crate) struct OutStruct<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Versioned> OutStruct<T> {
    /// # Errors
    /// If it is NULL or too short.
    ///
    /// # Safety
    /// A pointer that is not NULL is to a structure as long as its first field says, which can be written until the call
    /// returns.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let size = unsafe { size_of_struct(pointer.cast_const(), what) }?;
        Ok(Self { pointer, size })
    }

    /// Writes every field that both sides know but the size, which is the program's.
    pub(crate) fn write(self, value: &T) {
        const SIZE: usize = size_of::<usize>();
        let known = self.size.min(size_of::<T>());
        let from = core::ptr::from_ref(value).cast::<u8>();
        let to = self.pointer.cast::<u8>();
        // SAFETY: inside the library's own value.
        let from = unsafe { from.add(SIZE) };
        // SAFETY: inside the program's structure, which is longer than its size field.
        let to = unsafe { to.add(SIZE) };
        // SAFETY: both are at least `known` bytes long, and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(from, to, known - SIZE) };
    }
}

/// An array of the program's; empty if it is NULL.
///
/// # Safety
/// A pointer that is not NULL is to so many entries that nobody changes during the call.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, length: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if pointer.is_null() { &[] } else { unsafe { core::slice::from_raw_parts(pointer, length) } }
}

/// A text of the program's.
///
/// # Errors
/// If it is NULL; with the status `refusal` if it is not UTF-8.
///
/// # Safety
/// A pointer that is not NULL is to a text ended by NUL that nobody changes during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str, refusal: cachalot_status) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(Status::null(what));
    }
    // SAFETY: not NULL, and the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::new(refusal, format_args!("{what} is not UTF-8")))
}

/// A value of the program's that is handed back to its callbacks, and never looked at.
#[derive(Clone, Copy)]
pub(crate) struct Userdata(pub *mut c_void);

// SAFETY: never dereferenced here; the interface says that callbacks run on any thread.
unsafe impl Send for Userdata {}
// SAFETY: as above.
unsafe impl Sync for Userdata {}
