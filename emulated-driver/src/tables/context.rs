//! Contexts: the primary context of each device, and created contexts.

use crate::backing::pages::Extent;
use crate::tables::stream::Mark;
use crate::values::code::Code;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of contexts so far.
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The id, which no other context of the process ever has.
    pub(crate) id: u64,
    pub(crate) device: usize,
    /// Number of retains of a primary context. For a created context 1, and the number of
    /// attachments.
    pub(crate) retains: u64,
    /// The first unrecoverable error of the context's work. Every later call answers the error.
    pub(crate) sticky: Option<Code>,
    /// The queues of the legacy stream (key `None`) and of the threads' own default streams.
    pub(crate) own_queues: BTreeMap<Option<u32>, u64>,
    /// Contexts whose memory the device may access.
    pub(crate) peers: BTreeSet<u64>,
    /// The points that all later work of the context comes after.
    pub(crate) after: Vec<Mark>,
    /// The queue with the times of events recorded on the whole context.
    pub(crate) event_queue: Option<u64>,
    /// The primary context whose memory a green context uses.
    pub(crate) green_of: Option<u64>,
    /// The device memory of the context itself.
    pub(crate) own_memory: Vec<Extent>,
}

impl Context {
    /// Creates a context without work.
    pub(crate) fn new(device: usize, own_memory: Vec<Extent>) -> Self {
        let (own_queues, peers) = (BTreeMap::new(), BTreeSet::new());
        let (after, event_queue, green_of) = (Vec::new(), None, None);
        let id = 1 + CONTEXTS.fetch_add(1, Ordering::Relaxed);
        Self { id, device, retains: 1, sticky: None, own_queues, peers, after, event_queue, green_of, own_memory }
    }
}
