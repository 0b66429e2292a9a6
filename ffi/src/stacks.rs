//! The stacks that the program describes: where blocks come from, as numbers that the core can carry.
//!
//! A stack is kept once, whatever number of events it has, and for as long as the allocator exists: a program allocates at
//! some thousands of places. What goes beyond the bounds is without a stack.

use crate::abi::{CACHALOT_ACTION_ALLOC, CACHALOT_ACTION_FREE_REQUESTED, cachalot_stack_callback};
use crate::callbacks::Callbacks;
use crate::marshal::Userdata;
use cachalot_core::CallSite;
use cachalot_snapshot::{Frame, Stack};
use core::cell::RefCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::sync::{Mutex, PoisonError, RwLock};

/// The most frames of a stack; those further out are left off. Python's own limit of recursion is 1000.
const MOST_FRAMES: u32 = 1024;
/// The most stacks of an allocator.
const MOST_STACKS: usize = 1 << 18;
/// The most bytes of names that they have together.
const MOST_BYTES: usize = 256 << 20;

/// A stack that is being described: its frames one after the other, each as line, name, NUL, file, NUL.
#[derive(Default)]
pub(crate) struct Described {
    bytes: Vec<u8>,
    frames: u32,
}

impl Described {
    /// Adds the next frame, further out than those before. The texts have no NUL.
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

    /// The frames, innermost first.
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

/// The stacks of one allocator, and who describes them.
#[derive(Default)]
pub(crate) struct Stacks {
    /// Whether anybody does: all that is looked at while nobody does.
    on: AtomicBool,
    describe: Mutex<Option<(Function, Userdata)>>,
    known: RwLock<Known>,
}

type Function = unsafe extern "C" fn(*mut c_void, *mut crate::abi::cachalot_stack, crate::abi::cachalot_action);

#[derive(Default)]
struct Known {
    /// Description → stack. Number `n` is the entry `n - 1`; 0 is no stack.
    stacks: IndexMap<Box<[u8]>, Stack, FxBuildHasher>,
    bytes: usize,
}

thread_local! {
    /// Where this thread's stacks are described, so that describing one allocates nothing.
    static DESCRIBED: RefCell<Described> = RefCell::default();
}

impl Stacks {
    /// Sets who describes stacks.
    pub(crate) fn set(&self, callback: cachalot_stack_callback, userdata: Userdata) {
        *self.describe.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
        self.on.store(callback.is_some(), Ordering::Release);
    }

    /// The number of the calling thread's stack; 0 if there is none, or no room for it.
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
            // SAFETY: the program gave both, to be called so from any thread; what is described outlives the call, and only the
            // callback uses it meanwhile; no lock is held.
            unsafe { describe(userdata.0, core::ptr::from_mut(described).cast(), action) };
            if described.frames == 0 { 0 } else { self.intern(described) }
        });
        // A thread that is ending has no stack any more.
        described.unwrap_or(0)
    }

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

    /// The stack of a number.
    pub(crate) fn get(&self, number: u32) -> Stack {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let entry = (number as usize).checked_sub(1).and_then(|at| known.stacks.get_index(at));
        entry.map_or_else(Stack::default, |(_, stack)| stack.clone())
    }
}
