//! Handles: numbers in the shape of pointers, checked against a table at each call.
//!
//! ```text
//! handle:  63        48 47       46        45            10 9       0
//!         |   0xca5e   | vacant | poisoned |  generation   |  slot  |
//! ```
//!
//! A slot's word equals a handle iff the handle's allocator is live, so one comparison detects a
//! destroyed, poisoned or invented handle. A handle is no address and is never followed. Each reuse
//! of a slot increments the generation. A slot that has used up the 36 bits of generations stays
//! empty.

use crate::c::abi::cachalot_allocator;
use crate::c::instance::Instance;
use crate::c::status::{
    CACHALOT_ERROR_FORKED, CACHALOT_ERROR_INVALID_HANDLE, CACHALOT_ERROR_POISONED, CACHALOT_ERROR_TABLE_FULL, Outcome,
    Status,
};
use cachalot_cuda::fork;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Greatest number of allocators at a time.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
/// Top bits of every handle. No address on a 64-bit machine has these bits.
const MARK: u64 = 0xca5e << 48;
/// Bit of a slot's word: the slot is empty. The generation in the word is for the next allocator.
const VACANT: u64 = 1 << 47;
/// Bit of a slot's word: the allocator is poisoned.
const POISONED: u64 = 1 << 46;
/// The increment of the generation.
const GENERATION: u64 = 1 << SLOT_BITS;
/// The bits of the generation.
const GENERATIONS: u64 = POISONED - GENERATION;
/// Word of a slot while a thread inserts or removes the allocator. No handle equals `TAKEN`.
const TAKEN: u64 = MARK | VACANT | POISONED;
/// Word of a slot with no generation left.
const RETIRED: u64 = u64::MAX;

/// Room for one allocator.
struct Slot {
    /// The handle of the live allocator, or the handle with [`POISONED`] or [`VACANT`]. 0 iff the
    /// slot was never used.
    word: AtomicU64,
    /// The allocator, null while `word` is vacant.
    instance: AtomicPtr<Instance>,
}

static TABLE: [Slot; SLOTS] =
    [const { Slot { word: AtomicU64::new(0), instance: AtomicPtr::new(core::ptr::null_mut()) } }; SLOTS];

/// Returns the number behind a handle from C.
fn number(handle: *const cachalot_allocator) -> u64 {
    handle.addr() as u64
}

/// Returns the slot that a handle names. The handle need not be live.
fn slot(handle: u64) -> &'static Slot {
    &TABLE[handle as usize % SLOTS]
}

/// Returns the allocator of a handle. Takes no lock.
///
/// The reference is valid until the allocator is destroyed. The interface forbids destruction
/// during a call.
#[inline(always)]
pub(crate) fn instance(handle: *const cachalot_allocator) -> Outcome<&'static Instance> {
    match live(handle) {
        // Last: the first question says which process is the parent, and a NULL handle must not
        // ask.
        Some(instance) if !fork::in_child() => Ok(instance),
        _ => Err(refuse(number(handle))),
    }
}

/// Returns the allocator of a handle like [`instance`] in a process that is no forked child beyond
/// doubt. Otherwise `instance` tells. Makes no call.
#[inline(always)]
pub(crate) fn undoubted(handle: *const cachalot_allocator) -> Option<&'static Instance> {
    live(handle).filter(|_| fork::is_parent())
}

/// Returns the allocator of a handle, in a forked child as well.
#[inline(always)]
fn live(handle: *const cachalot_allocator) -> Option<&'static Instance> {
    let handle = number(handle);
    let slot = slot(handle);
    // Acquire: `insert` stores the instance before the word.
    if slot.word.load(Ordering::Acquire) != handle {
        return None;
    }
    // SAFETY: the pointer is null or comes from the box that `insert` leaked. The interface
    // forbids destruction during the call.
    unsafe { slot.instance.load(Ordering::Relaxed).as_ref() }
}

/// Returns the reason for refusing a handle.
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

/// Whether the process has ever asked for an allocator. Until then no process is recorded as a
/// parent of forks.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Records that the process creates allocators. Returns false in a forked child of a process with
/// allocators.
pub(crate) fn begin() -> bool {
    BEGUN.store(true, Ordering::Relaxed);
    !fork::in_child()
}

/// Returns whether the process is a forked child of a process with allocators.
pub(crate) fn in_child() -> bool {
    BEGUN.load(Ordering::Relaxed) && fork::in_child()
}

/// Refuses a call in a forked child.
#[cold]
pub(crate) fn forked() -> Status {
    Status::new(CACHALOT_ERROR_FORKED, "called in a forked child of the process that uses the driver")
}

/// Inserts an allocator into a vacant slot and returns the handle.
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

/// Removes an allocator from the table and invalidates the handle. Of several callers exactly one
/// receives the allocator.
///
/// A poisoned allocator is leaked: the handle becomes invalid, and the memory stays with the
/// process.
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
    // SAFETY: `insert` leaked the box, and the exchange above gave the pointer to this caller
    // alone.
    Ok(unsafe { Box::from_raw(instance) })
}

/// Returns whether a slot with the word `word` may receive an allocator.
fn is_vacant(word: u64) -> bool {
    word == 0 || word & !(GENERATIONS | (SLOTS as u64 - 1)) == MARK | VACANT
}

/// Replaces a slot's word if the word is `from`. Returns whether the word was replaced.
fn replace(slot: &Slot, from: u64, to: u64) -> bool {
    slot.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Poisons an allocator: every later call with the handle fails.
pub(crate) fn poison(handle: *const cachalot_allocator) {
    let handle = number(handle);
    replace(slot(handle), handle, handle | POISONED);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c::capi::{cachalot_check_invariants, cachalot_destroy};
    use crate::c::status::CACHALOT_OK;
    use crate::c::tests::create;

    #[test]
    fn a_number_with_the_bit_of_poison_is_no_handle() {
        let allocator = create();
        let invented = core::ptr::without_provenance_mut((number(allocator) | POISONED) as usize);
        assert_eq!(cachalot_check_invariants(invented), CACHALOT_ERROR_INVALID_HANDLE);
        assert_eq!(cachalot_destroy(invented), CACHALOT_ERROR_INVALID_HANDLE);
        assert_eq!((cachalot_check_invariants(allocator), cachalot_destroy(allocator)), (CACHALOT_OK, CACHALOT_OK));
    }

    #[test]
    fn a_slot_is_retired_after_its_last_generation() {
        let early = number(create());
        let last = early | GENERATIONS;
        slot(early).word.store(last, Ordering::Release);
        let allocator = core::ptr::without_provenance_mut(last as usize);
        assert_eq!((cachalot_check_invariants(allocator), cachalot_destroy(allocator)), (CACHALOT_OK, CACHALOT_OK));
        assert_eq!(slot(early).word.load(Ordering::Acquire), RETIRED);
        assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_INVALID_HANDLE);
    }
}
