//! Call stacks described by the program, interned to numbers that the core can store.
//!
//! Each distinct stack is stored once, for the lifetime of the allocator: a program allocates at
//! some thousands of places. Beyond the bounds below, blocks have no stack.

use crate::c::abi::{CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED, cachalot_stack_callback};
use crate::c::callbacks::Callbacks;
use crate::c::marshal::Userdata;
use cachalot_core::CallSite;
use cachalot_snapshot::{Frame, Stack};
use core::cell::RefCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::sync::{Mutex, PoisonError, RwLock};

/// Maximum number of frames in a stack; outer frames beyond are dropped. Python's default recursion
/// limit is 1000.
const MOST_FRAMES: u32 = 1024;
/// Maximum number of distinct stacks per allocator.
const MOST_STACKS: usize = 1 << 18;
/// Maximum number of bytes in all descriptions together.
const MOST_BYTES: usize = 256 << 20;

/// A stack while the program describes it: a sequence of frames, each encoded as line, name, NUL,
/// file, NUL.
#[derive(Default)]
pub(crate) struct Described {
    bytes: Vec<u8>,
    frames: u32,
}

impl Described {
    /// Appends the next outer frame. `name` and `file` contain no NUL.
    pub(crate) fn push(&mut self, name: &[u8], file: &[u8], line: i32) {
        if self.frames == MOST_FRAMES {
            return;
        }
        self.frames += 1;
        self.bytes.extend_from_slice(&line.to_le_bytes());
        for text in [name, file] {
            self.bytes.extend_from_slice(text);
            self.bytes.push(0);
        }
    }

    /// Decodes the frames, innermost first.
    fn frames(&self) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(self.frames as usize);
        let mut rest = &self.bytes[..];
        while let Some((line, texts)) = rest.split_first_chunk() {
            let mut texts = texts.splitn(3, |&byte| byte == 0);
            let mut text = || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
            let (name, filename) = (text(), text());
            rest = texts.next().unwrap_or_default();
            frames.push(Frame { name, filename, line: i64::from(i32::from_le_bytes(*line)), ..Frame::default() });
        }
        frames
    }
}

/// Returns a frame as a function with its file and line, in a line of text.
pub(crate) fn describe_frame(frame: &Frame) -> String {
    format!("{} ({}:{})", frame.name, frame.filename, frame.line)
}

/// The stacks of an allocator and the callback that describes them.
#[derive(Default)]
pub(crate) struct Stacks {
    /// Whether a callback is set. Without a callback, a request reads only this flag.
    on: AtomicBool,
    describe: Mutex<Option<(Function, Userdata)>>,
    known: RwLock<Known>,
}

type Function = unsafe extern "C" fn(*mut c_void, *mut crate::c::abi::cachalot_stack, crate::c::abi::cachalot_action);

#[derive(Default)]
struct Known {
    /// Stacks by description. Number `n` is entry `n - 1`, and number 0 means no stack.
    stacks: IndexMap<Box<[u8]>, Stack, FxBuildHasher>,
    bytes: usize,
}

thread_local! {
    /// Buffer of the calling thread, reused so that describing a known stack allocates nothing.
    static DESCRIBED: RefCell<Described> = RefCell::default();
}

impl Stacks {
    /// Sets the callback that describes stacks.
    pub(crate) fn set(&self, callback: cachalot_stack_callback, userdata: Userdata) {
        *self.describe.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
        self.on.store(callback.is_some(), Ordering::Release);
    }

    /// Returns the number of the calling thread's stack, or 0 without a callback, a stack, or room
    /// for a new stack.
    #[inline]
    pub(crate) fn number(&self, site: CallSite, callbacks: &Callbacks) -> u32 {
        if self.on.load(Ordering::Acquire) { self.ask(site, callbacks) } else { 0 }
    }

    #[cold]
    fn ask(&self, site: CallSite, callbacks: &Callbacks) -> u32 {
        let set = *self.describe.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((describe, userdata)) = set else { return 0 };
        let Some(_inside) = callbacks.enter_once() else { return 0 };
        let action = match site {
            CallSite::Alloc => CACHALOT_ACTION_ALLOC,
            CallSite::Free => CACHALOT_ACTION_FREE_REQUESTED,
        };
        let described = DESCRIBED.try_with(|described| {
            let described = &mut *described.borrow_mut();
            described.bytes.clear();
            described.frames = 0;
            // SAFETY: the program passed both, for calls from any thread. The buffer outlives the
            // call, and only the callback uses the buffer in the meantime. No lock is held.
            unsafe { describe(userdata.0, core::ptr::from_mut(described).cast(), action) };
            if described.frames == 0 { 0 } else { self.intern(described) }
        });
        // A thread that is exiting may have destroyed the buffer.
        described.unwrap_or(0)
    }

    /// Returns the number of a description, or 0 if the table is full. Adds an unknown description
    /// to the table.
    fn intern(&self, described: &Described) -> u32 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.stacks.get_index_of(&described.bytes[..]) {
            return at as u32 + 1;
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.stacks.get_index_of(&described.bytes[..]) {
            return at as u32 + 1;
        }
        if known.stacks.len() == MOST_STACKS || known.bytes + described.bytes.len() > MOST_BYTES {
            return 0;
        }
        known.bytes += described.bytes.len();
        let (at, _) = known.stacks.insert_full(described.bytes.clone().into(), Stack::from(described.frames()));
        at as u32 + 1
    }

    /// Returns the stack of a number, which is empty for an unknown number.
    pub(crate) fn get(&self, number: u32) -> Stack {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let entry = (number as usize).checked_sub(1).and_then(|at| known.stacks.get_index(at));
        entry.map_or_else(Stack::default, |(_, stack)| stack.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a description of one frame, as long as every other of a line.
    fn described(line: i32) -> Described {
        let mut described = Described::default();
        described.push(b"forward", b"model.py", line);
        described
    }

    #[test]
    fn descriptions_fill_the_room_to_the_byte() {
        let stacks = Stacks::default();
        let bytes = described(0).bytes.len();
        stacks.known.write().unwrap().bytes = MOST_BYTES - 2 * bytes;
        let numbers = [1, 2, 3, 2].map(|line| stacks.intern(&described(line)));
        assert_eq!(numbers, [1, 2, 0, 2], "a known one needs no room");
        let frames =
            numbers.map(|number| stacks.get(number).frames().iter().map(|frame| frame.line).collect::<Vec<_>>());
        assert_eq!(frames, [vec![1], vec![2], vec![], vec![2]]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "filling the table takes many minutes there")]
    fn the_table_has_a_greatest_number_of_stacks() {
        let stacks = Stacks::default();
        let last = (0..MOST_STACKS as i32).map(|line| stacks.intern(&described(line))).last();
        assert_eq!((last, stacks.intern(&described(-1))), (Some(MOST_STACKS as u32), 0));
    }

    #[test]
    fn a_frame_is_a_function_with_its_place() {
        let frame = described(81).frames().remove(0);
        assert_eq!(describe_frame(&frame), "forward (model.py:81)");
    }
}
