//! Which work precedes which, by vector clocks: an account of streams and events, kept
//! independently of the simulated device.

use cachalot_tests::claims::Piece;

/// Number of streams. Number 0 is the default stream.
pub const STREAMS: usize = 3;

/// For each stream, the number of places known to be past.
pub type Clock = [u64; STREAMS];

/// A place of a stream: the number of the stream, and the place, counted from 1.
pub type Place = (usize, u64);

/// An item of a stream's queue.
#[derive(Clone, Debug)]
pub struct Item {
    /// The place in the queue.
    pub place: u64,
    /// The places of every stream that precede the item.
    pub clock: Clock,
    /// The memory that the item writes; empty for an event.
    pub pieces: Vec<Piece>,
}

/// A stream.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Places taken.
    pub queued: u64,
    /// Places complete.
    pub done: u64,
    /// The places of every stream that precede the next item.
    pub clock: Clock,
    /// The incomplete items.
    pub items: Vec<Item>,
}

/// The streams of a device.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// The streams, by number.
    pub lines: [Line; STREAMS],
}

fn overlap(one: &Piece, other: &Piece) -> bool {
    one.0 == other.0 && one.1.start < other.1.end && other.1.start < one.1.end
}

fn covers(one: &Piece, other: &Piece) -> bool {
    one.0 == other.0 && one.1.start <= other.1.start && other.1.end <= one.1.end
}

fn join(into: &mut Clock, clock: &Clock) {
    for (into, clock) in into.iter_mut().zip(clock) {
        *into = (*into).max(*clock);
    }
}

impl Order {
    /// Queues an event, and returns the event's place.
    pub fn record(&mut self, stream: usize) -> Place {
        self.queue(stream, Vec::new())
    }

    fn queue(&mut self, stream: usize, pieces: Vec<Piece>) -> Place {
        let line = &mut self.lines[stream];
        line.queued += 1;
        line.clock[stream] = line.queued;
        // A later write in the same stream stands for every earlier write that it covers.
        let covered = |item: &Item| {
            !item.pieces.is_empty() && item.pieces.iter().all(|old| pieces.iter().any(|new| covers(new, old)))
        };
        line.items.retain(|item| !covered(item));
        line.items.push(Item { place: line.queued, clock: line.clock, pieces });
        (stream, line.queued)
    }

    /// Queues work that writes to memory. Returns whether all earlier work on the memory is
    /// complete, or precedes the new work.
    pub fn launch(&mut self, stream: usize, pieces: Vec<Piece>) -> bool {
        let clock = self.lines[stream].clock;
        let ordered = self.lines.iter().enumerate().all(|(number, line)| {
            let mut uses = line
                .items
                .iter()
                .filter(|item| item.pieces.iter().any(|old| pieces.iter().any(|new| overlap(old, new))));
            number == stream || uses.all(|item| item.place <= clock[number])
        });
        self.queue(stream, pieces);
        ordered
    }

    /// Lets all later work of a stream wait for a place.
    pub fn wait(&mut self, stream: usize, place: Place) {
        let clock = self.clock_at(place);
        join(&mut self.lines[stream].clock, &clock);
    }

    /// Returns whether all work up to a place is complete.
    #[must_use]
    pub fn is_complete(&self, (stream, place): Place) -> bool {
        self.lines[stream].done >= place
    }

    /// Completes all work up to a place, and all awaited work.
    pub fn complete(&mut self, place: Place) {
        let clock = self.clock_at(place);
        self.reach(&clock);
    }

    /// Completes all work of a stream, and all awaited work.
    pub fn synchronize(&mut self, stream: usize) {
        let clock = self.lines[stream].clock;
        self.reach(&clock);
    }

    fn reach(&mut self, clock: &Clock) {
        for (line, &reached) in self.lines.iter_mut().zip(clock) {
            line.done = line.done.max(reached);
            let done = line.done;
            line.items.retain(|item| item.place > done);
        }
    }

    /// Returns the places that precede the end of a place.
    fn clock_at(&self, (stream, place): Place) -> Clock {
        let line = &self.lines[stream];
        let before = line.items.iter().rev().find(|item| item.place <= place);
        let mut clock = before.map_or([0; STREAMS], |item| item.clock);
        clock[stream] = clock[stream].max(place);
        clock
    }

    /// Returns the last place of a stream.
    #[must_use]
    pub fn end(&self, stream: usize) -> Place {
        (stream, self.lines[stream].queued)
    }

    /// Returns the memory that incomplete work writes to.
    pub fn in_use(&self) -> impl Iterator<Item = &Piece> {
        self.lines.iter().flat_map(|line| &line.items).flat_map(|item| &item.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: u64) -> Vec<Piece> {
        vec![(1, from..from + 10)]
    }

    #[test]
    fn work_on_another_stream_is_ordered_by_a_wait_or_by_its_end() {
        let mut order = Order::default();
        assert!(order.launch(1, piece(0)));
        assert!(!order.clone().launch(2, piece(5)));
        let event = order.record(1);
        let mut waits = order.clone();
        waits.wait(2, event);
        assert!(waits.launch(2, piece(5)));
        order.complete(event);
        assert!(order.launch(2, piece(5)));
    }

    #[test]
    fn what_a_stream_waits_for_is_complete_with_it() {
        let mut order = Order::default();
        order.launch(1, piece(0));
        let event = order.record(1);
        order.wait(2, event);
        let later = order.record(2);
        assert!(!order.is_complete(event));
        order.complete(later);
        assert!(order.is_complete(event));
    }

    #[test]
    fn a_write_stands_for_the_earlier_writes_that_it_covers() {
        let mut order = Order::default();
        order.launch(1, piece(0));
        order.launch(1, piece(0));
        assert_eq!(order.lines[1].items.len(), 1);
        assert_eq!(order.lines[1].items[0].place, 2);
    }
}
