//! The model's pending frees: events of streams that use freed blocks.

use super::blocks::Owner;
use super::{Answer, Model, Request};
use cachalot_core::{Event, StreamId, StreamOrder};
use std::collections::VecDeque;

/// Number of blocks without an event at which a free records an event.
const GATHER: usize = 16;

/// The addresses of the blocks that wait for a stream, oldest first. An event also covers the
/// earlier blocks without an event.
pub(super) struct Queue {
    /// Stream of the events. An empty queue may be reused for another stream of the group.
    stream: StreamId,
    /// The group of the stream.
    group: u64,
    pub waits: VecDeque<(Option<Event>, u64)>,
    /// The owner of all blocks in the queue since the queue was empty. `None` for several owners.
    owner: Option<Owner>,
    /// Whether the last event for a request was complete at once. The first block then gets no
    /// event.
    quick: bool,
    /// The stream was idle at the last question, or was never asked.
    hopeful: bool,
}

/// The waits of an owner's blocks.
pub(super) struct Waits {
    owner: Owner,
    /// The sum of the blocks' numbers of events.
    count: usize,
    /// The streams of all waits since `count` was 0.
    streams: Vec<StreamId>,
}

impl Queue {
    /// Returns the number of blocks without a covering event.
    fn open(&self) -> usize {
        self.waits.iter().rev().take_while(|(event, _)| event.is_none()).count()
    }

    /// Returns the oldest event, and the number of blocks covered by the event.
    fn first(&self) -> Option<(Event, usize)> {
        let covered = self.waits.iter().position(|(event, _)| event.is_some())?;
        Some((self.waits[covered].0?, covered + 1))
    }
}

impl Model {
    /// Returns whether a capture is in progress on any stream.
    pub(super) fn is_capturing(&self) -> bool {
        self.routes.iter().any(|route| route.capture)
    }

    /// Queues a block, and returns the queue.
    fn push(&mut self, stream: StreamId, event: Option<Event>, addr: u64) -> usize {
        // Groups one after the other, and the queues of a group as they were made. The group is in
        // the upper bits of a product with the golden ratio.
        let group = (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) % self.groups;
        let find = |wanted: &dyn Fn(&Queue) -> bool| self.queues.iter().position(wanted);
        let queue = find(&|queue| queue.stream == stream && !queue.waits.is_empty())
            .or_else(|| find(&|queue| queue.stream == stream))
            .or_else(|| find(&|queue| queue.group == group && queue.waits.is_empty()))
            .unwrap_or_else(|| {
                let end = self.queues.partition_point(|queue| queue.group <= group);
                self.queues.insert(
                    end,
                    Queue { stream, group, waits: VecDeque::new(), owner: None, quick: false, hopeful: true },
                );
                end
            });
        let owner = self.owner_of(addr);
        let entry = &mut self.queues[queue];
        entry.owner = Some(owner).filter(|_| entry.waits.is_empty() || entry.owner == Some(owner));
        entry.quick &= entry.stream == stream;
        entry.hopeful |= entry.stream != stream;
        entry.stream = stream;
        entry.waits.push_back((event, addr));
        queue
    }

    pub(super) fn owner_of(&self, addr: u64) -> Owner {
        let (segment, _) = self.memory.at(addr);
        self.memory.segments[segment].owner
    }

    /// Counts the waits of a block for some streams, before events are recorded.
    fn begin_waits(&mut self, addr: u64, streams: &[StreamId]) {
        let owner = self.owner_of(addr);
        let known = self.waits.iter().position(|waits| waits.owner == owner).unwrap_or_else(|| {
            self.waits.push(Waits { owner, count: 0, streams: Vec::new() });
            self.waits.len() - 1
        });
        self.waits[known].count += streams.len();
        self.waits[known].streams.extend(streams);
        self.memory.block_mut(addr).events += streams.len() as u32;
    }

    /// Ends waits of a block.
    fn end_waits(&mut self, addr: u64, ended: usize) {
        let owner = self.owner_of(addr);
        self.memory.block_mut(addr).events -= ended as u32;
        for waits in self.waits.iter_mut().filter(|waits| waits.owner == owner) {
            waits.count -= ended;
            if waits.count == 0 {
                waits.streams.clear();
            }
        }
    }

    /// Returns whether blocks of an owner may wait in a queue.
    fn may_hold(&self, queue: usize, owner: Owner) -> bool {
        let Queue { stream, owner: of, .. } = &self.queues[queue];
        let waits = |waits: &Waits| waits.owner == owner && waits.streams.contains(stream);
        of.is_none_or(|of| of == owner) && self.waits.iter().any(waits)
    }

    /// Returns the streams whose events a block needs, the latest use first.
    pub(super) fn needed(&self, addr: u64) -> Vec<StreamId> {
        self.memory.block(addr).uses.iter().rev().filter(|of| !of.captured).map(|of| of.stream).collect()
    }

    /// Returns whether a capturing stream uses the block, so no event can be recorded.
    pub(super) fn is_behind_a_capture(&self, addr: u64) -> bool {
        let mut uses = self.memory.block(addr).uses.iter().filter(|of| !of.captured);
        uses.any(|of| self.device.is_capturing(of.stream) == Ok(true))
    }

    /// Queues a block behind some streams, and takes the block out again: the queues stay.
    pub(super) fn touch_queues(&mut self, addr: u64, streams: &[StreamId]) {
        streams.iter().for_each(|&stream| {
            self.push(stream, None, addr);
        });
        self.cancel(addr);
    }

    /// Takes a block out of all queues.
    fn cancel(&mut self, addr: u64) {
        for queue in &mut self.queues {
            queue.waits.retain(|&(_, of)| of != addr);
        }
    }

    /// Records an event on every stream of the block's uses, the latest use first: all events or
    /// none.
    pub(super) fn record_events(&mut self, addr: u64) -> Answer<()> {
        let streams = self.needed(addr);
        self.begin_waits(addr, &streams);
        for &stream in &streams {
            let event = self.device.create_order_event()?;
            if let Err(error) = self.device.record(event, stream) {
                self.cancel(addr);
                self.end_waits(addr, streams.len());
                return Err(error.into());
            }
            self.push(stream, Some(event), addr);
        }
        self.memory.block_mut(addr).uses.clear();
        Ok(())
    }

    /// Returns whether frees share events.
    pub(super) fn gathers(&self) -> bool {
        !self.config.parity()
    }

    /// Queues a block behind the next event of each stream of the block's uses. Returns a queue
    /// with a due event.
    pub(super) fn gather(&mut self, addr: u64) -> Option<usize> {
        let streams = self.needed(addr);
        self.begin_waits(addr, &streams);
        let mut due = None;
        for stream in streams {
            let queue = self.push(stream, None, addr);
            let entry = &self.queues[queue];
            if (entry.first().is_none() && !entry.quick) || entry.open() >= GATHER {
                // By stream: another queue may come before.
                due = Some(stream);
            }
        }
        let due = due.and_then(|stream| self.queues.iter().position(|queue| queue.stream == stream));
        self.memory.block_mut(addr).uses.clear();
        due
    }

    /// Frees the blocks with complete events in a queue, and records an event for the rest.
    pub(super) fn advance(&mut self, queue: usize) {
        while self.poll(queue, &|model, event| Ok(model.device.is_complete(event)?)).is_ok_and(|ended| ended > 0) {}
        if self.ask_idle(queue, GATHER).is_ok_and(|ended| ended == 0) {
            let _later = self.record_queue(queue);
        }
    }

    /// Asks whether a stream is idle, and if so ends all waits for the stream. Asks only if the
    /// last question did not find the stream busy, and at least `least` blocks have no event.
    /// Returns the number of ended waits.
    fn ask_idle(&mut self, queue: usize, least: usize) -> Answer<usize> {
        let Queue { stream, hopeful, .. } = self.queues[queue];
        let entry = &self.queues[queue];
        if !hopeful || entry.open() < least || entry.first().is_some() || self.is_capturing() {
            return Ok(0);
        }
        let idle = self.device.is_idle(stream)?;
        Ok(self.note_idle(queue, idle))
    }

    /// Notes the answer to the question whether a stream is idle. Returns how many waits have
    /// ended.
    fn note_idle(&mut self, queue: usize, idle: Option<bool>) -> usize {
        let entry = &mut self.queues[queue];
        entry.hopeful = idle == Some(true);
        entry.quick = idle.unwrap_or(entry.quick);
        let ended: Vec<_> = if entry.hopeful { entry.waits.drain(..).collect() } else { Vec::new() };
        for &(_, addr) in &ended {
            self.end_waits(addr, 1);
            self.complete_if_unused(addr);
        }
        ended.len()
    }

    /// Records an event for the blocks without a covering event in a queue. Returns whether the
    /// queue had no event before.
    fn record_queue(&mut self, queue: usize) -> Answer<bool> {
        let stream = self.queues[queue].stream;
        if self.queues[queue].open() == 0 || self.is_capturing() || self.device.is_capturing(stream) == Ok(true) {
            return Ok(false);
        }
        let is_first = self.queues[queue].first().is_none();
        let event = self.device.create_order_event()?;
        self.device.record(event, stream)?;
        if let Some(last) = self.queues[queue].waits.back_mut() {
            last.0 = Some(event);
        }
        Ok(is_first)
    }

    /// Ends the waits for idle streams with an event that was not polled since, before an event is
    /// recorded for the blocks without one. Returns the number of ended waits.
    fn end_behind_idle(&mut self) -> Answer<usize> {
        let mut ended = 0;
        for queue in 0..self.queues.len() {
            let entry = &self.queues[queue];
            if entry.open() == 0 || entry.first().is_none() || self.is_capturing() {
                continue;
            }
            if self.device.is_idle(entry.stream)? == Some(true) {
                loop {
                    match self.poll(queue, &|model, event| Ok(model.device.is_complete(event)?))? {
                        0 => break,
                        more => ended += more,
                    }
                }
                let rest: Vec<_> = self.queues[queue].waits.drain(..).collect();
                for &(_, addr) in &rest {
                    self.end_waits(addr, 1);
                    self.complete_if_unused(addr);
                }
                ended += rest.len();
            }
        }
        Ok(ended)
    }

    /// Records events for blocks without one, if the program asks about events.
    fn record_open(&mut self) -> Answer<usize> {
        let asked = self.end_behind_idle();
        let recorded = self.record_gathered();
        asked.and(recorded)
    }

    /// Records an event for all blocks without an event, and polls the first event of a queue at
    /// once. Returns the number of ended waits.
    pub(super) fn record_gathered(&mut self) -> Answer<usize> {
        self.record_of(0..self.queues.len())
    }

    /// Records as [`record_gathered`](Self::record_gathered) does, in some queues.
    fn record_of(&mut self, queues: impl Iterator<Item = usize>) -> Answer<usize> {
        let mut ended = 0;
        for queue in queues {
            let entry = &self.queues[queue];
            let is_alone = entry.open() > 0 && entry.first().is_none() && !self.is_capturing();
            let idle = if is_alone { self.device.is_idle(entry.stream)? } else { None };
            if idle == Some(true) {
                ended += self.note_idle(queue, idle);
            } else if self.record_queue(queue)? {
                let at_once = match idle {
                    Some(_busy) => 0,
                    None => self.poll(queue, &|model, event| Ok(model.device.is_complete(event)?))?,
                };
                self.queues[queue].quick = at_once > 0;
                ended += at_once;
            }
        }
        Ok(ended)
    }

    /// Serves a request from blocks with complete work, after no free block could serve the
    /// request.
    pub(super) fn search_gathered(&mut self, request: &Request) -> Answer<Option<u64>> {
        if !self.gathers() || request.capturing || !self.is_pending() {
            return Ok(None);
        }
        self.record_deferred()?;
        let own: Vec<_> = (0..self.queues.len()).filter(|&queue| self.may_hold(queue, request.owner)).collect();
        let mut ended = 0;
        for &queue in &own {
            loop {
                match self.poll(queue, &|model, event| Ok(model.device.is_complete(event)?))? {
                    0 => break,
                    more => ended += more,
                }
            }
        }
        for &queue in &own {
            ended += self.ask_idle(queue, 1)?;
        }
        if ended > 0
            && let Some(addr) = self.search(request)
        {
            return Ok(Some(addr));
        }
        let ended = self.record_of(own.into_iter())?;
        Ok(if ended > 0 { self.search(request) } else { None })
    }

    /// Waits for an event of each stream in turn, until the request can be served.
    pub(super) fn search_in_turn(&mut self, request: &Request) -> Answer<Option<u64>> {
        if !self.gathers() || !self.is_pending() {
            return Ok(None);
        }
        self.record_gathered()?;
        while self.queues.iter().any(|queue| queue.first().is_some()) {
            for queue in 0..self.queues.len() {
                let ended = self.poll(queue, &|model, event| {
                    model.device.wait(event)?;
                    Ok(true)
                })?;
                if ended > 0
                    && let Some(addr) = self.search(request)
                {
                    return Ok(Some(addr));
                }
            }
        }
        Ok(None)
    }

    fn record_deferred(&mut self) -> Answer<()> {
        let mut at = 0;
        while at < self.deferred.len() && !self.is_capturing() {
            if self.is_behind_a_capture(self.deferred[at]) {
                self.fail_behind_a_capture(self.deferred[at]);
                at += 1;
                continue;
            }
            let addr = self.deferred.remove(at);
            if let Err(error) = self.record_events(addr) {
                self.deferred.push(addr);
                return Err(error);
            }
            self.forget_captured_free(addr);
            self.complete_if_unused(addr);
        }
        Ok(())
    }

    /// Polls the oldest event of a queue. Returns how many waits have ended.
    fn poll(&mut self, queue: usize, is_complete: &impl Fn(&Self, Event) -> Answer<bool>) -> Answer<usize> {
        let Some((event, covered)) = self.queues[queue].first() else { return Ok(0) };
        if !is_complete(self, event)? {
            return Ok(0);
        }
        let ended: Vec<_> = self.queues[queue].waits.drain(..covered).collect();
        for (_, addr) in ended {
            self.end_waits(addr, 1);
            self.complete_if_unused(addr);
        }
        Ok(covered)
    }

    /// Polls the oldest event of every stream, and the next while events are complete. Returns how
    /// many waits have ended.
    fn ask(&mut self, is_complete: impl Fn(&Self, Event) -> Answer<bool>) -> Answer<usize> {
        let (mut result, mut ended) = (Ok(()), 0);
        for queue in 0..self.queues.len() {
            loop {
                match self.poll(queue, &is_complete) {
                    Ok(0) => break,
                    Ok(more) => ended += more,
                    Err(error) => {
                        result = result.and(Err(error));
                        break;
                    }
                }
            }
        }
        result.map(|()| ended)
    }

    /// Frees the blocks whose events are complete.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn process_events(&mut self) -> Answer<()> {
        let recorded = self.record_deferred().and_then(|()| self.record_open());
        let asked = self.ask(|model, event| Ok(model.device.is_complete(event)?));
        recorded.and(asked).map(|_ended| ())
    }

    /// Waits for every event.
    pub(super) fn wait_for_events(&mut self) -> Answer<()> {
        self.statistics.count("num_sync_all_streams");
        let recorded = self.record_deferred().and_then(|()| self.record_gathered());
        let waited = self.ask(|model, event| {
            model.device.wait(event)?;
            Ok(true)
        });
        recorded.and(waited).map(|_ended| ())
    }
}
