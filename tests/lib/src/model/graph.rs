//! The model's graph under capture: the order of captured work.

use super::Model;
use cachalot_core::{StreamId, StreamOrder};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of pieces of captured work.
pub(super) type Work = BTreeSet<u32>;

/// The work of the capturing streams.
#[derive(Default)]
pub(super) struct Graph {
    /// Number of pieces so far.
    pieces: u32,
    /// For each capturing stream, all work before the stream's next piece.
    before: BTreeMap<StreamId, Work>,
    /// For each deferred block whose uses were all on capturing streams at the free: the work
    /// before the free. By address.
    freed_after: BTreeMap<u64, Work>,
    /// For each deferred block whose events could not be recorded: the capturing stream. By
    /// address.
    behind: BTreeMap<u64, StreamId>,
}

impl Model {
    /// Begins or ends the capture of a stream.
    pub fn set_capturing(&mut self, stream: StreamId, capturing: bool) {
        self.device.set_capturing(stream, capturing);
        if capturing {
            self.graph.before.entry(stream).or_default();
        } else {
            self.graph.before.remove(&stream);
        }
    }

    /// Returns whether a stream captures.
    pub fn captures(&self, stream: StreamId) -> bool {
        self.graph.before.contains_key(&stream)
    }

    /// Captures a piece of work on a capturing stream.
    pub fn capture_work(&mut self, stream: StreamId) {
        self.graph.pieces += 1;
        self.graph.before.entry(stream).or_default().insert(self.graph.pieces);
    }

    /// Lets a stream take part in the capture of `awaited`, behind all captured work of `awaited`.
    pub fn capture_wait(&mut self, stream: StreamId, awaited: StreamId) {
        let awaited = self.graph.before[&awaited].clone();
        self.set_capturing(stream, true);
        self.graph.before.entry(stream).or_default().extend(awaited);
    }

    /// Notes the captured work of a block's streams, if all of the streams capture and the setting
    /// is on. Returns whether the work was noted.
    pub(super) fn note_captured_free(&mut self, addr: u64) -> bool {
        if !self.is_capturing() || !self.config.graph_capture_record_stream_reuse() {
            return false;
        }
        let uses = self.memory.block(addr).uses.iter().map(|of| of.stream);
        let streams: Vec<_> = uses.chain([self.owner_of(addr).stream]).collect();
        if streams.iter().any(|&stream| self.device.is_capturing(stream) != Ok(true)) {
            return false;
        }
        let work = streams.iter().flat_map(|stream| &self.graph.before[stream]).copied().collect();
        self.graph.freed_after.insert(addr, work);
        true
    }

    /// Frees the deferred blocks of a capturing stream, if all work before the free comes before
    /// the stream's next work.
    pub(super) fn free_captured(&mut self, stream: StreamId) {
        if !self.config.graph_capture_record_stream_reuse() {
            return;
        }
        let before = self.graph.before[&stream].clone();
        for addr in self.deferred.clone() {
            let work = self.graph.freed_after.get(&addr);
            let is_behind = work.is_some_and(|work| !work.is_empty() && work.is_subset(&before));
            if is_behind && self.owner_of(addr).stream == stream {
                self.deferred.retain(|&other| other != addr);
                self.forget_captured_free(addr);
                self.memory.block_mut(addr).uses.clear();
                self.complete_if_unused(addr);
            }
        }
    }

    /// Forgets the capture of a deferred block whose events are recorded.
    pub(super) fn forget_captured_free(&mut self, addr: u64) {
        self.graph.freed_after.remove(&addr);
        self.graph.behind.remove(&addr);
    }

    /// Fails to record the events of a block used by a capturing stream. The queues made for
    /// earlier streams of the block stay. While the stream captures, the model does not try again.
    pub(super) fn fail_behind_a_capture(&mut self, addr: u64) {
        let captures = |stream: StreamId| self.device.is_capturing(stream) == Ok(true);
        if self.graph.behind.get(&addr).is_some_and(|&stream| captures(stream)) {
            return;
        }
        let streams = self.needed(addr);
        let known = streams.iter().position(|&stream| captures(stream)).expect("the caller has found one");
        self.touch_queues(addr, &streams[..known]);
        self.graph.behind.insert(addr, streams[known]);
    }
}
