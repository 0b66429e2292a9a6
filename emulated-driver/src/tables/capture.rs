//! Captures under way, and captured graphs.

use crate::tables::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
pub(crate) const GLOBAL: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const RELAXED: i32 = 2;

/// A recorded piece of work with the predecessors. Every predecessor has a lower number.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The queue on which the capture started.
    pub(crate) origin: u64,
    /// The thread that started the capture.
    pub(crate) thread: u32,
    pub(crate) mode: i32,
    pub(crate) valid: bool,
    pub(crate) nodes: Vec<Node>,
    /// The frontier of each captured queue.
    pub(crate) frontiers: BTreeMap<u64, Vec<usize>>,
    /// The handles that the program was shown of each frontier, and as many edges, which are all
    /// zero.
    pub(crate) shown: BTreeMap<u64, Shown>,
}

/// Handles of nodes, and the edges to them.
pub(crate) type Shown = (Box<[u64]>, Box<[[u8; 8]]>);

/// A captured graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The context that was current at the instantiation.
    pub(crate) context: u64,
    /// Whether the context has ended.
    pub(crate) is_over: bool,
    pub(crate) works: Arc<[Work]>,
}

/// Returns whether every node of every queue comes before the origin's frontier.
pub(crate) fn is_joined(capture: &Capture) -> bool {
    let mut before: BTreeSet<usize> = BTreeSet::new();
    let mut open: Vec<usize> = capture.frontiers.get(&capture.origin).cloned().unwrap_or_default();
    while let Some(number) = open.pop() {
        if before.insert(number) {
            open.extend(&capture.nodes[number].after);
        }
    }
    capture.frontiers.values().flatten().all(|number| before.contains(number))
}
