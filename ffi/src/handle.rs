//! Handles: numbers in the shape of pointers, checked against a table at each call.
//!
//! ```text
//! handle:  63        48 47       46        45            10 9       0
//!         |   0xca5e   | vacant | poisoned |  generation   |  slot  |
//! ```
//!
//! A slot's word is equal to a handle iff that handle is of a live allocator, so one comparison tells a live one from one
//! that was destroyed, was poisoned, or never was any. Handles are no addresses, so a wrong one is never followed. The
//! generation goes up when a slot is used again; a slot whose 36 bits of generations are used up stays empty.

use crate::abi::cachalot_allocator;
use crate::instance::Instance;
use crate::status::{
    CACHALOT_ERROR_FORKED, CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_POISONED, CACHALOT_ERROR_TABLE_FULL, Outcome,
    Status,
};
use cachalot_cuda::fork;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// How many allocators there can be at a time.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
/// What every handle begins with: no address of a 64-bit machine does.
const MARK: u64 = 0xca5e << 48;
/// In a slot's word: it has no allocator, and its next one gets this generation.
const VACANT: u64 = 1 << 47;
/// In a slot's word: its allocator is poisoned.
const POISONED: u64 = 1 << 46;
/// One more generation.
const GENERATION: u64 = 1 << SLOT_BITS;
/// The bits of the generation.
const GENERATIONS: u64 = POISONED - GENERATION;
/// The word of a slot while its allocator is put in or taken out. No handle has it.
const TAKEN: u64 = MARK | VACANT | POISONED;
/// The word of a slot whose generations are used up.
const RETIRED: u64 = u64::MAX;

/// One place for an allocator.
struct Slot {
    /// The handle of the live allocator; or that with [`POISONED`] or [`VACANT`]; 0 iff the slot was never used.
    word: AtomicU64,
    /// The allocator, while `word` is not vacant.
    instance: AtomicPtr<Instance>,
}

static TABLE: [Slot; SLOTS] =
    [const { Slot { word: AtomicU64::new(0), instance: AtomicPtr::new(core::ptr::null_mut()) } }; SLOTS];

/// The number that a pointer from C is.
fn number(handle: *const cachalot_allocator) -> u64 {
    handle.addr() as u64
}

/// The slot that a handle names, whether or not it is a live one.
fn slot(handle: u64) -> &'static Slot {
    &TABLE[handle as usize % SLOTS]
}

/// The allocator of a handle. Takes no lock.
///
/// The reference is good until the allocator is destroyed, which the interface forbids while a call is running.
#[inline(always)]
pub(crate) fn instance(handle: *const cachalot_allocator) -> Outcome<&'static Instance> {
    let handle = number(handle);
    let slot = slot(handle);
    // Acquire: the instance that was stored before the word is seen too.
    if slot.word.load(Ordering::Acquire) == handle
        // SAFETY: the pointer is null, or to an instance that `insert` leaked and that nobody destroys during the call.
        && let Some(instance) = unsafe { slot.instance.load(Ordering::Relaxed).as_ref() }
        && !fork::in_child()
    {
        return Ok(instance);
    }
    Err(refuse(handle))
}

/// Why a handle is refused.
#[cold]
fn refuse(handle: u64) -> Status {
    if in_child() {
        return forked();
    }
    if handle == 0 {
        return Status::null("the allocator");
    }
    if slot(handle).word.load(Ordering::Acquire) == handle | POISONED {
        return Status::new(CACHALOT_ERROR_POISONED, "the allocator is poisoned: an earlier call ended in a fault");
    }
    Status::new(CACHALOT_ERROR_INVALID_HANDLE, format_args!("{handle:#x} is no allocator, or was destroyed"))
}

/// Whether an allocator was ever asked for. Before that nobody is anybody's child, and none is to be noted as a parent.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Notes that this process makes allocators. False if it is a child of one that did.
pub(crate) fn begin() -> bool {
    BEGUN.store(true, Ordering::Relaxed);
    !fork::in_child()
}

/// Whether this is a forked child of a process that made allocators.
pub(crate) fn in_child() -> bool {
    BEGUN.load(Ordering::Relaxed) && fork::in_child()
}

/// The answer in a forked child.
#[cold]
pub(crate) fn forked() -> Status {
    Status::new(CACHALOT_ERROR_FORKED, "called in a forked child of the process that uses the driver")
}

/// Puts an allocator into a vacant slot and answers its handle.
pub(crate) fn insert(instance: Box<Instance>) -> Outcome<*mut cachalot_allocator> {
    for (index, slot) in TABLE.iter().enumerate() {
        let word = slot.word.load(Ordering::Relaxed);
        if is_vacant(word) && replace(slot, word, TAKEN) {
            slot.instance.store(Box::into_raw(instance), Ordering::Relaxed);
            let handle = if word == 0 { MARK | index as u64 } else { word & !VACANT };
            slot.word.store(handle, Ordering::Release);
            return Ok(core::ptr::without_provenance_mut(handle as usize));
        }
    }
    Err(Status::new(CACHALOT_ERROR_TABLE_FULL, format_args!("there are {SLOTS} allocators already")))
}

/// Takes an allocator out of its slot: the handle is invalid from then on. Of several callers, one gets the allocator.
///
/// One that is poisoned is given up: its handle becomes invalid too, and what it held stays with the process.
pub(crate) fn remove(handle: *const cachalot_allocator) -> Outcome<Box<Instance>> {
    let handle = number(handle);
    let slot = slot(handle);
    let poisoned = replace(slot, handle | POISONED, TAKEN);
    if !poisoned && !replace(slot, handle, TAKEN) {
        return Err(refuse(handle));
    }
    let instance = slot.instance.swap(core::ptr::null_mut(), Ordering::Relaxed);
    let next = (handle & !POISONED) + GENERATION;
    slot.word.store(if is_vacant(next | VACANT) { next | VACANT } else { RETIRED }, Ordering::Release);
    if poisoned {
        return Err(Status::new(CACHALOT_ERROR_POISONED, "the poisoned allocator was given up with what it held"));
    }
    // SAFETY: `insert` leaked it, and the exchange above gave it to this caller alone.
    Ok(unsafe { Box::from_raw(instance) })
}

/// Whether a slot with this word can have an allocator.
fn is_vacant(word: u64) -> bool {
    word == 0 || word & !(GENERATIONS | (SLOTS as u64 - 1)) == MARK | VACANT
}

/// Replaces a slot's word if it is `from`.
fn replace(slot: &Slot, from: u64, to: u64) -> bool {
    slot.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// From here on the allocator of this handle answers that it is poisoned.
pub(crate) fn poison(handle: *const cachalot_allocator) {
    let handle = number(handle);
    replace(slot(handle), handle, handle | POISONED);
}
