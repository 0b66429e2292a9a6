//! Marks in graphs under capture. They tell whether marked work comes before everything that a
//! stream captures from now on.
//!
//! ```text
//! stream 1   a ── b ──────────── d ── e      the end of stream 1: e
//! stream 2        └── c ─────────┘           a mark of both streams at c: b and c, which come before e
//! ```
//!
//! The driver reports the *ends* of a stream, which are the nodes directly before the stream's next
//! work, and the direct predecessors of each node. A mark consists of the ends of some streams. For
//! each stream, all nodes before its ends are kept, so each node is visited once for each stream
//! and capture.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{CuGraphEdgeData, CuGraphNode};
use crate::handle::Handle;
use cachalot_core::{CaptureMark, DeviceResult, StreamId};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The nodes of a mark.
#[derive(Debug)]
struct MarkedNodes {
    /// The id of the capture.
    capture: u64,
    nodes: HashSet<CuGraphNode>,
}

/// The nodes before the ends of a stream.
#[derive(Debug, Default)]
struct Reached {
    /// The id of the capture.
    capture: u64,
    /// The ends of the stream at the latest visit.
    ends: Vec<CuGraphNode>,
    /// All nodes before the ends, and the ends.
    nodes: HashSet<CuGraphNode>,
}

/// The marks of a device.
#[derive(Debug, Default)]
struct Tables {
    /// The number of the latest mark.
    made: u64,
    marks: BTreeMap<u64, MarkedNodes>,
    /// The nodes before the ends of each stream. Empty if there are no marks.
    reached: BTreeMap<StreamId, Reached>,
}

/// The marks of a device, under a lock.
#[derive(Debug, Default)]
pub(crate) struct CaptureMarks(Mutex<Tables>);

impl CaptureMarks {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the nodes after which the next work of a stream will come; see
    /// [`StreamOrder::mark_capture`](cachalot_core::StreamOrder::mark_capture). `stream` is the
    /// handle of the stream, if it can capture.
    pub(crate) fn extend(
        &self,
        context: &Context,
        stream: Option<&Handle<'_>>,
        mark: Option<CaptureMark>,
    ) -> DeviceResult<Option<CaptureMark>> {
        // The lock is held during the driver's call, because the driver's list of ends is valid
        // only until the next call for the stream.
        let mut tables = self.lock();
        let ends = ends_of(context, stream);
        let of_mark = mark.and_then(|mark| tables.marks.get(&mark.0)).map(|marked| marked.capture);
        let Ok(Some((capture, ends))) = &ends else {
            mark.inspect(|&mark| tables.remove(mark));
            return ends.map(|_| None);
        };
        if mark.is_some() && of_mark != Some(*capture) {
            mark.inspect(|&mark| tables.remove(mark));
            return Ok(None);
        }
        let number = mark.map_or_else(
            || {
                tables.made += 1;
                tables.made
            },
            |mark| mark.0,
        );
        let marked =
            tables.marks.entry(number).or_insert_with(|| MarkedNodes { capture: *capture, nodes: HashSet::new() });
        marked.nodes.extend(ends);
        Ok(Some(CaptureMark(number)))
    }

    /// Returns whether later work of the stream with the number `number` comes after a mark; see
    /// [`StreamOrder::is_behind`](cachalot_core::StreamOrder::is_behind). `stream` as for
    /// [`extend`](Self::extend).
    pub(crate) fn is_behind(
        &self,
        context: &Context,
        number: StreamId,
        stream: Option<&Handle<'_>>,
        mark: CaptureMark,
    ) -> DeviceResult<bool> {
        let mut tables = self.lock();
        let Tables { marks, reached, .. } = &mut *tables;
        let Some(marked) = marks.get(&mark.0).filter(|marked| !marked.nodes.is_empty()) else { return Ok(false) };
        let Some((capture, ends)) = ends_of(context, stream)? else { return Ok(false) };
        if capture != marked.capture {
            return Ok(false);
        }
        let of_stream = reached.entry(number).or_default();
        if of_stream.capture != capture {
            *of_stream = Reached { capture, ..Reached::default() };
        }
        if let Err(error) = of_stream.extend(context, &ends) {
            reached.remove(&number);
            return Err(error);
        }
        Ok(marked.nodes.is_subset(&of_stream.nodes))
    }

    /// Removes a mark.
    pub(crate) fn remove(&self, mark: CaptureMark) {
        self.lock().remove(mark);
    }
}

impl Tables {
    fn remove(&mut self, mark: CaptureMark) {
        self.marks.remove(&mark.0);
        if self.marks.is_empty() {
            self.reached = BTreeMap::new();
        }
    }
}

impl Reached {
    /// Adds the nodes before `ends`, the present ends of the stream.
    fn extend(&mut self, context: &Context, ends: &[CuGraphNode]) -> DeviceResult<()> {
        if self.ends == ends {
            return Ok(());
        }
        loop {
            let mut missed: HashSet<CuGraphNode> = self.ends.iter().copied().collect();
            let mut open = ends.to_owned();
            while let Some(node) = open.pop() {
                missed.remove(&node);
                if self.nodes.insert(node) {
                    open.extend(nodes_before(context, node)?);
                }
            }
            ends.clone_into(&mut self.ends);
            if missed.is_empty() {
                return Ok(());
            }
            // The program has replaced the ends of the stream instead of adding to them, so this
            // starts anew.
            *self = Self { capture: self.capture, ..Self::default() };
        }
    }
}

/// Returns the id of a stream's capture, and the nodes directly before the stream's next work.
/// Returns `None` if the stream does not capture, or if an error has broken the capture.
fn ends_of(context: &Context, stream: Option<&Handle<'_>>) -> DeviceResult<Option<(u64, Vec<CuGraphNode>)>> {
    let Some(stream) = stream else { return Ok(None) };
    let _scope = context.enter()?;
    context.answer(stream.capture_ends(context.driver()))
}

/// Returns the nodes right before a node.
fn nodes_before(context: &Context, node: CuGraphNode) -> DeviceResult<Vec<CuGraphNode>> {
    let mut count = 0;
    dependencies(context, node, &mut [], &mut [], &mut count)?;
    let mut nodes = vec![CuGraphNode::NULL; count];
    if count > 0 {
        let mut properties = vec![CuGraphEdgeData::default(); count];
        dependencies(context, node, &mut nodes, &mut properties, &mut count)?;
        nodes.truncate(count);
    }
    Ok(nodes)
}

/// Writes the direct predecessors of a node, and their number. If there is too little room, writes
/// only the number.
fn dependencies(
    context: &Context,
    node: CuGraphNode,
    nodes: &mut [CuGraphNode],
    properties: &mut [CuGraphEdgeData],
    count: &mut usize,
) -> DeviceResult<()> {
    let asks_count = nodes.is_empty();
    let nodes = if asks_count { core::ptr::null_mut() } else { nodes.as_mut_ptr() };
    let properties = if asks_count { core::ptr::null_mut() } else { properties.as_mut_ptr() };
    context.call(|driver| {
        if driver.graph_node_get_dependencies_v2.is_some() {
            // SAFETY: both lists have room for `count` entries, or are null; `count` outlives the
            // call.
            return unsafe { driver.graph_node_get_dependencies_v2(node, nodes, properties, count) };
        }
        if driver.graph_node_get_dependencies.is_none() {
            return CuResult::NOT_SUPPORTED;
        }
        // SAFETY: as above.
        unsafe { driver.graph_node_get_dependencies(node, nodes, count) }
    })
}
