//! The graph that streams of a simulated device capture: pieces of work, and their order.

use super::CaptureMark;
use crate::units::StreamId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The captured work, including that of past captures.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// For each piece of work, the pieces directly before it.
    before: Vec<BTreeSet<usize>>,
    /// For each capturing stream, the pieces directly before its next piece.
    ends: BTreeMap<StreamId, BTreeSet<usize>>,
    /// The pieces that each mark covers.
    marks: BTreeMap<u64, BTreeSet<usize>>,
    /// The number of the latest mark.
    marks_made: u64,
}

impl Graph {
    /// Starts or ends the capture of a stream.
    pub(super) fn set_capturing(&mut self, stream: StreamId, capturing: bool) {
        if capturing {
            self.ends.entry(stream).or_default();
        } else {
            self.ends.remove(&stream);
        }
    }

    /// Adds a piece of work of a stream.
    pub(super) fn work(&mut self, stream: StreamId) {
        let piece = self.before.len();
        let end = self.ends.entry(stream).or_default();
        self.before.push(core::mem::replace(end, BTreeSet::from([piece])));
    }

    /// Makes later work of a stream come after the current work of `awaited`.
    pub(super) fn wait(&mut self, stream: StreamId, awaited: StreamId) {
        let awaited = self.ends.entry(awaited).or_default().clone();
        self.ends.entry(stream).or_default().extend(awaited);
    }

    /// Marks the end of a stream; see
    /// [`StreamOrder::mark_capture`](crate::device::StreamOrder::mark_capture).
    pub(super) fn mark(&mut self, stream: StreamId, mark: Option<CaptureMark>) -> Option<CaptureMark> {
        let Some(end) = self.ends.get(&stream) else {
            if let Some(mark) = mark {
                self.remove_mark(mark);
            }
            return None;
        };
        let mark = mark.unwrap_or_else(|| {
            self.marks_made += 1;
            CaptureMark(self.marks_made)
        });
        self.marks.entry(mark.0).or_default().extend(end);
        Some(mark)
    }

    /// Returns whether later work of a stream comes after all pieces of a mark.
    pub(super) fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> bool {
        let (Some(end), Some(marked)) = (self.ends.get(&stream), self.marks.get(&mark.0)) else { return false };
        let mut reached = BTreeSet::new();
        let mut open: Vec<usize> = end.iter().copied().collect();
        while let Some(piece) = open.pop() {
            if reached.insert(piece) {
                open.extend(&self.before[piece]);
            }
        }
        !marked.is_empty() && marked.is_subset(&reached)
    }

    /// Removes a mark.
    pub(super) fn remove_mark(&mut self, mark: CaptureMark) {
        self.marks.remove(&mark.0);
    }

    /// Returns the number of marks.
    pub(super) fn marks(&self) -> usize {
        self.marks.len()
    }
}
