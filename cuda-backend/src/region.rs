//! A region of host memory for contents. Threads touch it in the background, it is pinned piece by
//! piece when contents arrive, and it is kept as a whole.
//!
//! ```text
//! | pinned: contents …… | touched …… | being touched …… |
//!          copies ◀── pinning ◀── threads ──▶
//! ```
//!
//! New memory must be touched, pinned and copied to, which takes time. The three steps overlap for
//! successive pieces of 64 MiB. The region is also pinned piece by piece because the driver blocks
//! the calls of all threads while it pins memory, which is 1.6 ms for a piece.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::host_claims::Claim;
use crate::host_memory::{self, Failure};
use crate::pinned;
use cachalot_core::DeviceResult;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The number of bytes that a single driver call pins. A copy is within a piece. It is small in
/// tests, so that contents are longer.
const PIECE: u64 = if cfg!(test) { 4 << 20 } else { 64 << 20 };

/// The progress of the threads.
#[derive(Debug, Default)]
struct Progress {
    /// The number of bytes at the start that are touched.
    touched: u64,
    /// Whether nothing more will be touched, because the system does not have the memory or the
    /// region is given back.
    ended: bool,
}

/// The address of a region, for its thread.
#[derive(Clone, Copy, Debug)]
struct Base(NonNull<c_void>);

// SAFETY: an address; the thread touches memory that nothing else uses before it was touched.
unsafe impl Send for Base {}
// SAFETY: a shared reference gives only the address.
unsafe impl Sync for Base {}

impl Base {
    /// Returns the address of a byte.
    fn at(self, offset: u64) -> NonNull<c_void> {
        self.0.map_addr(|base| base.saturating_add(offset as usize))
    }
}

/// Memory of the host for contents.
#[derive(Debug)]
pub(crate) struct Region {
    base: Base,
    /// The length in bytes.
    pub(crate) bytes: u64,
    /// The number of bytes at the start that are pinned: whole pieces, or all bytes. Only the
    /// thread that saves pins more.
    pinned: AtomicU64,
    /// Whether a piece may be registered although its registration failed. If so, the memory
    /// remains mapped and unused.
    is_in_doubt: AtomicBool,
    progress: Arc<(Mutex<Progress>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Region {
    /// Maps memory, and starts a thread that touches it.
    ///
    /// # Errors
    /// [`OutOfMemory`](cachalot_core::ErrorKind::OutOfMemory) if the system has too little memory
    /// left, because it would end a program that touches more.
    pub(crate) fn new(bytes: u64, node: Option<u32>) -> DeviceResult<Self> {
        let claim = host_memory::claim(bytes).ok_or(CuResult::OUT_OF_MEMORY.error())?;
        let base = Base(host_memory::map_untouched(bytes, node).map_err(|failure| match failure {
            Failure::OutOfMemory => CuResult::OUT_OF_MEMORY.error(),
            Failure::Refused => CuResult::OPERATING_SYSTEM.error(),
        })?);
        let progress = Arc::<(Mutex<Progress>, Condvar)>::default();
        let shared = Arc::clone(&progress);
        let spawned =
            Builder::new().name("cachalot park".into()).spawn(move || touch_all(base, bytes, &claim, &shared));
        let Ok(thread) = spawned else {
            host_memory::unmap(base.0, bytes);
            return Err(CuResult::OPERATING_SYSTEM.error());
        };
        Ok(Self {
            base,
            bytes,
            pinned: AtomicU64::new(0),
            is_in_doubt: AtomicBool::new(false),
            progress,
            thread: Some(thread),
        })
    }

    /// Returns whether the region can take no more contents, because the system does not have the
    /// memory, or because a piece may be registered after a failure.
    pub(crate) fn is_useless(&self) -> bool {
        if self.is_in_doubt.load(Ordering::Acquire) {
            return true;
        }
        let progress = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.ended && progress.touched < self.bytes
    }

    /// Ends the touching without any memory, as if the system had refused it.
    #[cfg(test)]
    pub(crate) fn lose_memory(&self) {
        *self.progress.0.lock().unwrap_or_else(PoisonError::into_inner) = Progress { touched: 0, ended: true };
    }

    /// Returns the address of a byte.
    pub(crate) fn at(&self, offset: u64) -> NonNull<c_void> {
        self.base.at(offset)
    }

    /// Calls `copy` with the host address, offset and length of each part of the `bytes` bytes from
    /// `offset` on, until a call fails. Each part is in a single piece, and is pinned before `copy`
    /// is called. Only one thread at a time may pass parts that are not pinned yet.
    ///
    /// # Errors
    /// The first error of `copy` or of the driver, or `OutOfMemory` if the system does not have the
    /// memory.
    pub(crate) fn each_part(
        &self,
        context: &Context,
        offset: u64,
        bytes: u64,
        mut copy: impl FnMut(*mut c_void, u64, u64) -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let mut done = 0;
        while done < bytes {
            let at = offset + done;
            let part = (bytes - done).min(PIECE - at % PIECE);
            self.pin_to(context, at + part)?;
            copy(self.base.at(at).as_ptr(), done, part)?;
            done += part;
        }
        Ok(())
    }

    /// Pins all pieces up to `end`.
    fn pin_to(&self, context: &Context, end: u64) -> DeviceResult<()> {
        let mut at = self.pinned.load(Ordering::Acquire);
        while at < end {
            let piece = PIECE.min(self.bytes - at);
            self.wait_for(at + piece)?;
            pinned::register(context, self.base.at(at), piece).map_err(|refused| {
                self.is_in_doubt.fetch_or(refused.is_in_doubt, Ordering::AcqRel);
                refused.error
            })?;
            at += piece;
            self.pinned.store(at, Ordering::Release);
        }
        Ok(())
    }

    /// Waits until the first `bytes` bytes are touched.
    fn wait_for(&self, bytes: u64) -> DeviceResult<()> {
        let (progress, moved) = &*self.progress;
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        while progress.touched < bytes && !progress.ended {
            progress = moved.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        if progress.touched < bytes { Err(CuResult::OUT_OF_MEMORY.error()) } else { Ok(()) }
    }

    /// Gives the memory back. All copies have ended.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory that is still registered remains mapped
    /// and unused forever, because for new memory at the address the driver would copy the old
    /// pages.
    pub(crate) fn give_back(mut self, context: &Context) -> DeviceResult<()> {
        let (progress, moved) = &*self.progress;
        progress.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        moved.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and ends after its present piece.
            let _ = thread.join();
        }
        let mut result = Ok(());
        let mut at = 0;
        while at < self.pinned.load(Ordering::Acquire) {
            result = result.and(pinned::unregister(context, self.base.at(at)));
            at += PIECE;
        }
        if self.is_in_doubt.load(Ordering::Acquire) {
            result = result.and(Err(CuResult::UNKNOWN.error()));
        }
        // In a lost context there is no work and no registration left.
        if (result.is_ok() || context.health().is_err()) && !host_memory::unmap(self.base.0, self.bytes) {
            result = result.and(Err(CuResult::OPERATING_SYSTEM.error()));
        }
        result
    }
}

/// Touches a region piece by piece. `claim` is the claim to the region's memory.
fn touch_all(base: Base, bytes: u64, claim: &Claim, shared: &(Mutex<Progress>, Condvar)) {
    let mut at = 0;
    let mut there = true;
    while there && at < bytes {
        let piece = PIECE.min(bytes - at);
        there = host_memory::touch(base.at(at), piece, claim);
        at += piece;
        let (progress, moved) = shared;
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        if there {
            progress.touched = at;
        }
        progress.ended |= !there;
        there &= !progress.ended;
        moved.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_thread_of_a_region_ends_once_all_is_touched() {
        for bytes in [4096, PIECE, 2 * PIECE + 4096] {
            let region = Region::new(bytes, None).expect("memory");
            assert_eq!((region.wait_for(bytes), region.is_useless()), (Ok(()), false));
            let begun = Instant::now();
            while region.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
                assert!(begun.elapsed() < Duration::from_secs(60), "the thread goes on");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(host_memory::unmap(region.base.0, bytes));
        }
    }

    #[test]
    fn a_region_without_memory_ends_the_waits_and_a_given_back_one_is_touched_no_more() {
        let bytes = 2 * PIECE;
        let base = Base(host_memory::map_untouched(bytes, None).expect("addresses"));
        let claim = host_memory::claim(0).expect("nothing");
        let touched = |ended| {
            let shared = (Mutex::new(Progress { touched: 0, ended }), Condvar::new());
            touch_all(base, bytes, &claim, &shared);
            let progress = shared.0.into_inner().expect("no panic");
            (progress.touched, progress.ended)
        };
        assert_eq!((touched(true), touched(false)), ((PIECE, true), (bytes, false)));
        assert!(host_memory::unmap(base.0, bytes));
        assert_eq!((touched(true), touched(false)), ((0, true), (0, true)));
    }
}
