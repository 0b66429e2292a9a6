//! The remaining work of streams that are retired or may be gone, by the numbers and handles of
//! [`streams`](crate::streams).

use crate::driver::types::CuContext;
use crate::shared_event::SharedEvent;
use cachalot_core::StreamId;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};

/// The number of bits in a handle. User space ends at 2^47 on x86-64 and at 2^48 on 64-bit Arm,
/// unless a program requests more.
pub(crate) const HANDLE_BITS: u32 = 48;
/// The mask of the handle within a number.
pub(crate) const HANDLE_MASK: u64 = (1 << HANDLE_BITS) - 1;
/// The value in place of the generation in the numbers of threads' own default streams.
pub(crate) const PER_THREAD: u64 = 0xffff;

/// A record of a retired stream without a recorded end. Its work may still run in a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnrecordedEnd {
    /// The stream's context, or null if the driver did not report it.
    pub(crate) context: CuContext,
    /// A number that distinguishes this entry from later ones for the same handle and context.
    stamp: u64,
}

/// The remaining work of retired streams, and the contexts of present streams.
#[derive(Debug)]
pub(crate) struct Retired {
    /// The retired streams with a recorded end: the number, and the event after the stream's work,
    /// which is not known to be complete.
    pub(crate) ended: VecDeque<(StreamId, SharedEvent)>,
    /// The handles of streams that were retired without a recorded end. A handle has one entry for
    /// each context, for any number of streams.
    pub(crate) unrecorded: BTreeMap<u64, Vec<UnrecordedEnd>>,
    /// The context of the present stream of each handle, if the driver reported it.
    pub(crate) contexts: BTreeMap<u64, CuContext>,
    /// The stamp of the last unrecorded end.
    stamp: u64,
}

impl Retired {
    /// Creates an empty record. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { ended: VecDeque::new(), unrecorded: BTreeMap::new(), contexts: BTreeMap::new(), stamp: 0 }
    }

    /// Records that the present stream of a handle has ended, without an event after its work.
    /// [`advance`](Self::advance) follows.
    pub(crate) fn end_unrecorded(&mut self, handle: u64) {
        let context = self.contexts.get(&handle).copied().unwrap_or(CuContext::NULL);
        self.stamp += 1;
        let unrecorded = self.unrecorded.entry(handle).or_default();
        unrecorded.retain(|end| end.context != context);
        unrecorded.push(UnrecordedEnd { context, stamp: self.stamp });
    }

    /// Gives a handle the next number after `present`, and returns the old one. The next stream may
    /// be one of another context.
    pub(crate) fn advance(&mut self, present: &AtomicU64) -> StreamId {
        let old = present.load(Ordering::Relaxed);
        self.contexts.remove(&(old & HANDLE_MASK));
        let mut next = old;
        loop {
            // A number is reused after 65,535 streams with this handle, but never while an old
            // stream with the number is unfinished.
            let generation = (next >> HANDLE_BITS) + 1;
            next = (next & HANDLE_MASK) | (if generation == PER_THREAD { 0 } else { generation }) << HANDLE_BITS;
            if !self.ended.iter().any(|(number, _)| number.0 == next) {
                break;
            }
        }
        present.store(next, Ordering::Release);
        StreamId(old)
    }
}
