//! Handles: numbers in the shape of pointers, checked against a table at each call.
//!
//! ```text
//! handle:  63        48 47       46        45            10 9       0
//!         |   0xca5e   | vacant | poisoned |  generation   |  slot  |
//! ```
//!
//! A slot's word equals a handle iff the handle's allocator is live and the process is no forked
//! child, so one comparison detects a destroyed, poisoned or invented handle, and a child: the
//! words lie in pages that read as zeros in a child. If the kernel refuses such pages, the words of
//! live allocators are others, and only [`instance`] knows them, which asks whether the process is
//! a child. A handle is no address and is never followed. Each reuse of a slot increments the
//! generation. A slot that has used up the 36 bits of generations stays empty.

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

/// The words of the slots: the [word](live_word) of the live allocator, or its handle with
/// [`POISONED`] or [`VACANT`]. 0 iff the slot was never used, or in a forked child. Alone in their
/// pages, whatever the page size of the kernel.
#[repr(align(65536))]
struct Words([AtomicU64; SLOTS]);

static WORDS: Words = Words([const { AtomicU64::new(0) }; SLOTS]);

/// The allocators of the slots; null while the word is vacant. In a forked child they are still
/// found, so that a memory checker knows them.
static INSTANCES: [AtomicPtr<Instance>; SLOTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS];

/// The difference between a handle and the word of its slot: 0 if a forked child reads the table as
/// zeros, and otherwise 1. The word then has the number of another slot, so no handle equals it.
static DOUBT: AtomicU64 = AtomicU64::new(1);

/// Returns the word of a slot whose live allocator has this handle.
fn live_word(handle: u64) -> u64 {
    // Relaxed suffices: who has a handle comes after the creation of its allocator.
    handle ^ DOUBT.load(Ordering::Relaxed)
}

/// Returns the number behind a handle from C.
fn number(handle: *const cachalot_allocator) -> u64 {
    handle.addr() as u64
}

/// Returns the word of the slot that a handle names. The handle need not be live.
fn slot(handle: u64) -> &'static AtomicU64 {
    &WORDS.0[handle as usize % SLOTS]
}

/// Returns the allocator of the slot that a handle names.
fn allocator(handle: u64) -> &'static AtomicPtr<Instance> {
    &INSTANCES[handle as usize % SLOTS]
}

/// Returns the allocator of a handle. Takes no lock.
///
/// The reference is valid until the allocator is destroyed. The interface forbids destruction
/// during a call.
pub(crate) fn instance(handle: *const cachalot_allocator) -> Outcome<&'static Instance> {
    let handle = number(handle);
    match find(handle, live_word(handle)) {
        // Last: the first question says which process is the parent, and a NULL handle must not
        // ask.
        Some(instance) if !fork::in_child() => Ok(instance),
        _ => Err(refuse(handle)),
    }
}

/// Returns the allocator of a handle like [`instance`], if one comparison tells that it is live and
/// the process no forked child. Otherwise `instance` tells. Makes no call.
#[inline(always)]
pub(crate) fn undoubted(handle: *const cachalot_allocator) -> Option<&'static Instance> {
    let handle = number(handle);
    find(handle, handle)
}

/// Returns the allocator of a handle if the word of its slot is `word`.
#[inline(always)]
fn find(handle: u64, word: u64) -> Option<&'static Instance> {
    // Acquire: `insert` stores the allocator before the word. NULL equals the word of a slot that
    // was never used.
    if handle == 0 || slot(handle).load(Ordering::Acquire) != word {
        return None;
    }
    let instance = allocator(handle).load(Ordering::Relaxed);
    // SAFETY: the word is that of a live allocator, so the pointer comes from the box that `insert`
    // leaked. It says that the option below needs no comparison with null.
    unsafe { core::hint::assert_unchecked(!instance.is_null()) };
    // SAFETY: as above. The interface forbids destruction during the call.
    Some(unsafe { &*instance })
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
    if slot(handle).load(Ordering::Acquire) == handle | POISONED {
        return Status::new(CACHALOT_ERROR_POISONED, "the allocator is poisoned: an earlier call ended in a fault");
    }
    Status::new(CACHALOT_ERROR_INVALID_HANDLE, format_args!("{handle:#x} is no allocator, or was destroyed"))
}

/// Whether the process has ever asked for an allocator. Until then no process is recorded as a
/// parent of forks.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Records that the process creates allocators, and makes forked children read the table of handles
/// as zeros, if the kernel can. Returns false in a forked child of a process with allocators.
pub(crate) fn begin() -> bool {
    BEGUN.store(true, Ordering::Relaxed);
    if fork::in_child() {
        return false;
    }
    // SAFETY: the words fill their pages, and a word of 0 is one of a slot that was never used.
    if unsafe { fork::wipe_in_children((&raw const WORDS).cast_mut().cast(), size_of::<Words>()) } {
        DOUBT.store(0, Ordering::Relaxed);
    }
    true
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
    for (index, slot) in WORDS.0.iter().enumerate() {
        let word = slot.load(Ordering::Relaxed);
        if is_vacant(word) && replace(slot, word, TAKEN) {
            INSTANCES[index].store(Box::into_raw(instance), Ordering::Relaxed);
            let handle = if word == 0 { MARK | index as u64 } else { word & !VACANT };
            slot.store(live_word(handle), Ordering::Release);
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
    if !poisoned && !replace(slot, live_word(handle), TAKEN) {
        return Err(refuse(handle));
    }
    let instance = allocator(handle).swap(core::ptr::null_mut(), Ordering::Relaxed);
    let next = (handle & !POISONED) + GENERATION;
    slot.store(if is_vacant(next | VACANT) { next | VACANT } else { RETIRED }, Ordering::Release);
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
fn replace(slot: &AtomicU64, from: u64, to: u64) -> bool {
    slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Poisons an allocator: every later call with the handle fails.
pub(crate) fn poison(handle: *const cachalot_allocator) {
    let handle = number(handle);
    replace(slot(handle), live_word(handle), handle | POISONED);
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
        slot(early).store(live_word(last), Ordering::Release);
        let allocator = core::ptr::without_provenance_mut(last as usize);
        assert_eq!((cachalot_check_invariants(allocator), cachalot_destroy(allocator)), (CACHALOT_OK, CACHALOT_OK));
        assert_eq!(slot(early).load(Ordering::Acquire), RETIRED);
        assert_eq!(cachalot_destroy(allocator), CACHALOT_ERROR_INVALID_HANDLE);
    }
}
