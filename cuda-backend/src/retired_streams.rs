//! The remaining work of streams that are retired or may be gone, by the numbers and handles of
//! [`streams`](crate::streams).

use crate::driver::types::CuContext;
use crate::shared_event::SharedEvent;
use cachalot_core::StreamId;
use core::ops::{RangeBounds, RangeInclusive};
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
    /// The streams with an announced use of blocks, by handle and by the context of the event.
    pub(crate) uses: BTreeMap<(u64, CuContext), Announced>,
    /// The streams with announced work that is known to be complete, by handle. Without this
    /// record, the events of streams that come and go would never be given up.
    pub(crate) done: BTreeMap<u64, StreamId>,
    /// The announced work that was checked last.
    pub(crate) looked_at: (u64, CuContext),
}

/// An event after the announced work of a stream. It is recorded again only for later work of the
/// same stream.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) number: StreamId,
    /// `None` after a failed recording, because the event's place in the order of work is then
    /// unknown.
    pub(crate) event: Option<SharedEvent>,
    /// How often the event was recorded again.
    pub(crate) again: u64,
}

/// The event after the announced work of a stream at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) event: SharedEvent,
    /// How often the event was recorded again.
    pub(crate) again: u64,
}

impl Retired {
    /// Returns the event of `context` after the announced work of a stream.
    pub(crate) fn known_use(&self, number: StreamId, context: CuContext) -> Option<Known> {
        let its = self.uses.get(&(number.0 & HANDLE_MASK, context)).filter(|its| its.number == number)?;
        Some(Known { event: its.event.clone()?, again: its.again })
    }

    /// Creates an empty record. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self {
            ended: VecDeque::new(),
            unrecorded: BTreeMap::new(),
            contexts: BTreeMap::new(),
            stamp: 0,
            uses: BTreeMap::new(),
            done: BTreeMap::new(),
            looked_at: (0, CuContext::NULL),
        }
    }

    /// Records that the present stream of a handle has ended, without an event after its work.
    pub(crate) fn end_unrecorded(&mut self, handle: u64) {
        let context = self.contexts.remove(&handle).unwrap_or(CuContext::NULL);
        self.stamp += 1;
        let unrecorded = self.unrecorded.entry(handle).or_default();
        unrecorded.retain(|end| end.context != context);
        unrecorded.push(UnrecordedEnd { context, stamp: self.stamp });
    }

    /// Removes the announced work in `range` for which `goes` returns true, and returns its events.
    pub(crate) fn take_uses(
        &mut self,
        range: impl RangeBounds<(u64, CuContext)>,
        goes: impl Fn(CuContext, &Announced) -> bool,
    ) -> Vec<SharedEvent> {
        let going = self.uses.range(range).filter(|(key, its)| goes(key.1, its));
        let keys: Vec<_> = going.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.uses.remove(key)?.event).collect()
    }

    /// Gives a handle the next number after `present`, and returns the old one.
    pub(crate) fn advance(&self, present: &AtomicU64) -> StreamId {
        let old = present.load(Ordering::Relaxed);
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

/// Returns the keys of the announced work of a handle's streams.
pub(crate) fn of_handle(handle: u64) -> RangeInclusive<(u64, CuContext)> {
    (handle, CuContext::NULL)..=(handle, CuContext(usize::MAX))
}
