//! The caller of a booking: the first object on the stack that asks for memory itself.

use super::objects::{Lookup, Object, Objects};
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Most frames read in search of a caller. A bound against stacks without an end: a development
/// build of the library in front has a hundred frames.
const MOST_SEARCHED: usize = 1024;

/// Most frames of a call stack.
const MOST_FRAMES: usize = 48;

/// The frame of a call, opaque to us.
#[repr(C)]
struct Frame {
    _opaque: [u8; 0],
}

// The unwinder that every Rust program is linked with.
unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut Frame, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut Frame, is_before: *mut c_int) -> usize;
}

/// Ends the walk of the unwinder. 0 goes on.
const END: c_int = 5;

/// Return addresses, innermost first, each moved into the instruction of the call.
#[derive(Default)]
struct Walk<'a> {
    lookup: Option<&'a Lookup>,
    /// The first object that asks for memory itself.
    caller: Option<Arc<Object>>,
    /// The program or library with the code of the ledger. `None` again if the search was given up.
    own: Option<Arc<Object>>,
    /// The frames so far, if asked for. Frames below the caller go once the caller is found.
    frames: Option<Vec<usize>>,
    passed: usize,
}

impl Walk<'_> {
    /// Reads a frame. Returns whether the walk goes on.
    fn step(&mut self, address: usize) -> bool {
        self.passed += 1;
        let object = self.lookup.and_then(|lookup| lookup.object(address));
        if self.caller.is_none() {
            match object {
                Some(object) if object.is_transparent => self.own = self.own.take().or_else(|| Some(object.clone())),
                Some(object) => {
                    self.caller = Some(object.clone());
                    self.frames.iter_mut().for_each(Vec::clear);
                }
                // Code without an object was made at run time, and belongs to the caller beyond.
                None => {}
            }
        }
        if self.caller.is_none() && self.passed == MOST_SEARCHED {
            self.own = None;
            return false;
        }
        let Some(frames) = &mut self.frames else { return self.caller.is_none() };
        frames.push(address);
        self.caller.is_none() || frames.len() < MOST_FRAMES
    }
}

extern "C" fn each(frame: *mut Frame, data: *mut c_void) -> c_int {
    let mut is_before = 0;
    // SAFETY: the unwinder passes a frame that is valid during the call.
    let address = unsafe { _Unwind_GetIPInfo(frame, &raw mut is_before) };
    // SAFETY: `find` passes its own variable, which nothing else uses meanwhile.
    let walk = unsafe { &mut *data.cast::<Walk<'_>>() };
    // A return address may be the first of another function: the call does not return.
    let address = if is_before == 0 { address.wrapping_sub(1) } else { address };
    if address != usize::MAX && walk.step(address) { 0 } else { END }
}

/// The asking object, and on demand the call stack.
pub(super) struct Caller {
    /// `None`: the stack could not be read as far as an object.
    pub(super) object: Option<Arc<Object>>,
    /// Return addresses from the object outward, or from the ledger if no object was found. Empty
    /// unless asked for.
    pub(super) frames: Vec<usize>,
}

/// Finds the caller. Takes some hundred nanoseconds for each frame up to the caller.
///
/// A program with the ledger linked statically is found, too: if no object is left, the object of
/// the ledger is the caller.
pub(super) fn find(objects: &Objects, with_stack: bool) -> Caller {
    let lookup = objects.now();
    let mut walk = Walk { lookup: Some(&lookup), frames: with_stack.then(Vec::new), ..Walk::default() };
    // SAFETY: `each` is called before this call returns, with `walk`.
    unsafe { _Unwind_Backtrace(each, (&raw mut walk).cast()) };
    let Walk { caller, own, frames, .. } = walk;
    let mut frames = frames.unwrap_or_default();
    frames.truncate(MOST_FRAMES);
    Caller { object: caller.or(own), frames }
}

/// Describes an address of code: the function if the object names the function, otherwise the place
/// in the object's file.
pub(super) fn describe(objects: &Objects, address: usize) -> String {
    let lookup = objects.now();
    let Some(object) = lookup.object(address) else { return format!("{address:#x}") };
    let file = object.name.rsplit('/').next().unwrap_or_default();
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` outlives the call. The address is only compared.
    let found = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) };
    // SAFETY: all zeros is a value, and the call fills in what it finds.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_sname.is_null() {
        return format!("{file}+{:#x}", address.wrapping_sub(object.base));
    }
    // SAFETY: the loader's name ends with NUL, and lives as long as its object.
    let name = unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned();
    format!("{name}+{:#x} ({file})", address.wrapping_sub(info.dli_saddr as usize))
}
