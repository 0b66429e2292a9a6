//! The model's pending frees: events of other streams.

use super::{Answer, Model};
use cachalot_core::{DeviceMemory, Event, StreamId};
use std::collections::VecDeque;

/// Events of one stream, oldest first, each with the address of the waiting block.
pub(super) struct Queue {
    /// Stream of the events. An empty queue may be reused for another stream.
    stream: StreamId,
    pub waits: VecDeque<(Event, u64)>,
}

impl Model {
    /// Returns whether a capture is in progress on any stream.
    pub(super) fn is_capturing(&self) -> bool {
        self.routes.iter().any(|route| route.capture)
    }

    fn push(&mut self, stream: StreamId, event: Event, addr: u64) {
        let own = self.queues.iter().position(|queue| queue.stream == stream && !queue.waits.is_empty());
        let queue = own.or_else(|| self.queues.iter().position(|queue| queue.waits.is_empty())).unwrap_or_else(|| {
            self.queues.push(Queue { stream, waits: VecDeque::new() });
            self.queues.len() - 1
        });
        self.queues[queue].stream = stream;
        self.queues[queue].waits.push_back((event, addr));
    }

    /// Returns whether a graph is being captured on a stream that uses the block, so that no event
    /// can be recorded.
    pub(super) fn is_behind_a_capture(&self, addr: u64) -> bool {
        let mut uses = self.memory.block(addr).uses.iter().filter(|of| !of.captured);
        uses.any(|of| self.device.is_capturing(of.stream) == Ok(true))
    }

    /// Records an event on every stream that uses the block, the latest use first: all or none.
    pub(super) fn record_events(&mut self, addr: u64) -> Answer<()> {
        let uses: Vec<_> = self.memory.block(addr).uses.iter().rev().map(|of| (of.stream, of.captured)).collect();
        for (stream, captured) in uses {
            if captured {
                continue;
            }
            let event = self.device.create_event()?;
            if let Err(error) = self.device.record(event, stream) {
                for queue in &mut self.queues {
                    queue.waits.retain(|&(_, of)| of != addr);
                }
                self.memory.block_mut(addr).events = 0;
                return Err(error.into());
            }
            self.memory.block_mut(addr).events += 1;
            self.push(stream, event, addr);
        }
        self.memory.block_mut(addr).uses.clear();
        Ok(())
    }

    fn record_deferred(&mut self) -> Answer<()> {
        let mut at = 0;
        while at < self.deferred.len() && !self.is_capturing() {
            if self.is_behind_a_capture(self.deferred[at]) {
                at += 1;
                continue;
            }
            let addr = self.deferred.remove(at);
            if let Err(error) = self.record_events(addr) {
                self.deferred.push(addr);
                return Err(error);
            }
            self.complete_if_unused(addr);
        }
        Ok(())
    }

    /// Polls the oldest event of every stream, and the next while events are complete.
    fn ask(&mut self, is_complete: impl Fn(&Self, Event) -> Answer<bool>) -> Answer<()> {
        let mut result = Ok(());
        for queue in 0..self.queues.len() {
            while let Some(&(event, addr)) = self.queues[queue].waits.front() {
                match is_complete(self, event) {
                    Ok(true) => {
                        self.queues[queue].waits.pop_front();
                        self.memory.block_mut(addr).events -= 1;
                        self.complete_if_unused(addr);
                    }
                    Ok(false) => break,
                    Err(error) => {
                        result = result.and(Err(error));
                        break;
                    }
                }
            }
        }
        result
    }

    /// Frees the blocks whose events are complete.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn process_events(&mut self) -> Answer<()> {
        let recorded = self.record_deferred();
        recorded.and(self.ask(|model, event| Ok(model.device.is_complete(event)?)))
    }

    /// Waits for every event.
    pub(super) fn wait_for_events(&mut self) -> Answer<()> {
        self.statistics.count("num_sync_all_streams");
        let recorded = self.record_deferred();
        let waited = self.ask(|model, event| {
            model.device.wait(event)?;
            Ok(true)
        });
        recorded.and(waited)
    }
}
