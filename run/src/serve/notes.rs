//! Notes about a block: the number, the flag, and the published handle.
//!
//! Most programs never ask for notes. A free then loads a single word.

use crate::real::Real;
use crate::serve::published::Handles;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::CuPointerAttribute;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of blocks start here. The driver counts from 1, and no process makes so
/// many allocations.
const FIRST_NUMBER: u64 = 1 << 62;

/// The notes of a process.
#[derive(Debug)]
pub(super) struct Notes {
    /// The number of blocks with notes.
    count: AtomicUsize,
    /// The number for the next block.
    next: AtomicU64,
    /// The notes, by the first address of the block.
    blocks: Mutex<HashMap<u64, Note>>,
}

/// The notes of a block.
#[derive(Clone, Debug)]
struct Note {
    /// The block's number, unique in the process.
    number: u64,
    /// The segment whose `SYNC_MEMOPS` is set for the block.
    sync_memops: Option<u64>,
    /// Whether a handle of the block is published.
    published: bool,
}

impl Default for Notes {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), next: AtomicU64::new(FIRST_NUMBER), blocks: Mutex::default() }
    }
}

impl Notes {
    /// Returns the number of the block at `base`: constant for the block's life, and different for
    /// the next block at the address.
    pub(super) fn number(&self, base: u64) -> u64 {
        let mut blocks = self.lock();
        self.note(&mut blocks, base).number
    }

    /// Returns whether `SYNC_MEMOPS` is set for the block at `base`.
    pub(super) fn syncs(&self, base: u64) -> bool {
        self.lock().get(&base).is_some_and(|note| note.sync_memops.is_some())
    }

    /// Sets or clears `SYNC_MEMOPS` for the block at `base`, which is in the driver's allocation at
    /// `segment`. The driver has a single flag for a whole allocation, set while any block of the
    /// allocation asks for the flag. Copies of neighbours then wait, too.
    pub(super) fn set_syncs(&self, real: &Real, base: u64, segment: u64, on: bool) -> CuResult {
        let mut blocks = self.lock();
        let others = blocks.iter().any(|(&other, note)| other != base && note.sync_memops == Some(segment));
        let code = if others { CuResult::SUCCESS } else { set_flag(real, segment, on) };
        if code.is_success() {
            self.note(&mut blocks, base).sync_memops = on.then_some(segment);
        }
        code
    }

    /// Notes the published handle of the block at `base`. Returns false for a handle noted before.
    pub(super) fn publish(&self, base: u64) -> bool {
        let mut blocks = self.lock();
        !std::mem::replace(&mut self.note(&mut blocks, base).published, true)
    }

    /// Forgets the block at `base`, which is about to be freed.
    #[inline]
    pub(super) fn block_freed(&self, real: &Real, handles: &Handles, base: u64) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.forget(real, handles, base);
        }
    }

    /// Forgets a block with notes.
    #[cold]
    fn forget(&self, real: &Real, handles: &Handles, base: u64) {
        let mut blocks = self.lock();
        let Some(note) = blocks.remove(&base) else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        let last = note.sync_memops.filter(|segment| blocks.values().all(|other| other.sync_memops != Some(*segment)));
        drop(blocks);
        if let Some(segment) = last {
            // The next block there starts without the flag, as fresh memory does.
            let _ = set_flag(real, segment, false);
            // Without the lock meanwhile, which other frees need: a neighbour may have asked for
            // the flag.
            if self.lock().values().any(|other| other.sync_memops == Some(segment)) {
                let _ = set_flag(real, segment, true);
            }
        }
        if note.published {
            handles.withdraw(base);
        }
    }

    /// Returns the notes of a block, or new notes.
    fn note<'a>(&self, blocks: &'a mut HashMap<u64, Note>, base: u64) -> &'a mut Note {
        blocks.entry(base).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            Note { number: self.next.fetch_add(1, Ordering::Relaxed), sync_memops: None, published: false }
        })
    }

    /// Locks the notes.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Note>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the driver's flag of a whole allocation.
fn set_flag(real: &Real, segment: u64, on: bool) -> CuResult {
    let value = u32::from(on);
    // SAFETY: the value is the `unsigned int` that the attribute takes, and outlives the call.
    unsafe { real.pointer_set_attribute((&raw const value).cast::<c_void>(), CuPointerAttribute::SYNC_MEMOPS, segment) }
}
