//! The history of a device: what each event changes, on which stream and in which pool.

use super::Sums;
use super::past::{self, PastMemory, Placement};
use cachalot_snapshot::{Snapshot, Stack};
use std::collections::{BTreeMap, HashMap};

/// The effect of an event, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Change of the memory reserved from the device.
    pub reserved: i64,
    /// Change of the memory of allocated blocks.
    pub allocated: i64,
    /// Change of the memory freed by the program and still in use on other streams.
    pub pending: i64,
}

/// A block from the allocation to the completed free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Life<'s> {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes. A block freed before the end has the requested size, rounded up to 512.
    pub bytes: u64,
    /// Stream and pool.
    pub place: Placement,
    /// Stack of the allocation.
    pub stack: Option<&'s Stack>,
    /// Number of the allocation's event. `None` for an allocation before the first event.
    pub start: Option<usize>,
    /// Number of the event of the free. `None` for a block that is allocated at the end, and for a
    /// block freed before the first event.
    pub freed: Option<usize>,
    /// Number of the event after which the memory is free. `None` for a block that is not free at
    /// the end.
    pub end: Option<usize>,
}

/// The memory of a device at the start, and the effect of each event.
#[derive(Debug, Clone, Default)]
pub struct History {
    places: Vec<Placement>,
    /// The memory before the first event, by number of the place.
    start: Vec<Sums>,
    /// The effect of each event and the number of the place.
    steps: Vec<(Change, u32)>,
}

/// The history under construction, from the end backwards.
struct Backward<'s> {
    memory: PastMemory,
    numbers: HashMap<Placement, u32>,
    places: Vec<Placement>,
    /// The blocks that are not free, by address.
    open: BTreeMap<u64, Life<'s>>,
}

impl History {
    /// Returns the history of a device, and calls `visit` with every block, in no order. The
    /// history of a device without events has no steps.
    pub fn of<'s>(snapshot: &'s Snapshot, device: i64, mut visit: impl FnMut(Life<'s>)) -> Self {
        let trace = usize::try_from(device).ok().and_then(|device| snapshot.device_traces.get(device));
        let trace = trace.map_or(&[][..], |trace| trace);
        let memory = past::at_end(snapshot, device);
        let mut back = Backward { memory, numbers: HashMap::new(), places: Vec::new(), open: BTreeMap::new() };
        back.open_last(snapshot, device);
        let undo = past::Undo::of(snapshot, trace);
        let mut steps = Vec::with_capacity(trace.len());
        for (number, event) in trace.iter().enumerate().rev() {
            let before = back.sums();
            // The segment is there after the event, or was there before.
            let address = event.addr.unwrap_or(0);
            let place = back.place_of(address);
            undo.undo(&mut back.memory, number, event);
            let after = back.sums();
            let place = place.or_else(|| back.place_of(address)).unwrap_or(Placement::of(event));
            let apart = |of: fn(&Sums) -> u64| of(&before).cast_signed().wrapping_sub(of(&after).cast_signed());
            let (reserved, allocated) = (apart(|sums| sums.reserved), apart(|sums| sums.allocated));
            let change = Change { reserved, allocated, pending: apart(|sums| sums.pending) };
            steps.push((change, back.number(place)));
            match &*event.action {
                "alloc" => {
                    if let Some(mut life) = back.open.remove(&address) {
                        life.start = Some(number);
                        life.stack = event.frames.as_ref().filter(|stack| !stack.is_empty()).or(life.stack);
                        visit(life);
                    }
                }
                "free_requested" => back.free(address, place, |life| life.freed = Some(number), number),
                "free_completed" => back.free(address, place, |life| life.end = Some(number), number),
                _ => {}
            }
        }
        steps.reverse();
        for life in std::mem::take(&mut back.open).into_values() {
            visit(life);
        }
        let start = back.start();
        Self { places: back.places, start, steps }
    }

    /// Returns every stream and pool.
    pub fn places(&self) -> &[Placement] {
        &self.places
    }

    /// Returns the memory before the first event of each of the [`places`](Self::places).
    pub fn start(&self) -> &[Sums] {
        &self.start
    }

    /// Returns the effect of each event in order, and the number of the event's place.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (Change, usize)> + '_ {
        self.steps.iter().map(|&(change, place)| (change, place as usize))
    }
}

impl Sums {
    /// Returns the sums after a change.
    #[must_use]
    pub fn after(self, change: Change) -> Self {
        Self {
            reserved: self.reserved.saturating_add_signed(change.reserved),
            allocated: self.allocated.saturating_add_signed(change.allocated),
            pending: self.pending.saturating_add_signed(change.pending),
        }
    }

    /// Returns the sums of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.saturating_add(other.reserved),
            allocated: self.allocated.saturating_add(other.allocated),
            pending: self.pending.saturating_add(other.pending),
        }
    }
}

impl<'s> Backward<'s> {
    /// Adds the blocks that are not free at the end.
    fn open_last(&mut self, snapshot: &'s Snapshot, device: i64) {
        let used: Vec<_> = self.memory.blocks().iter().map(|(&address, block)| (address, block.size)).collect();
        for (address, bytes) in used {
            let place = self.place_of(address).unwrap_or(Placement { stream: 0, pool: None });
            self.open.insert(address, Life { address, bytes, place, stack: None, start: None, freed: None, end: None });
        }
        let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
        for (address, block) in segments.flat_map(super::blocks) {
            if let Some(life) = self.open.get_mut(&address) {
                life.stack = block.stack();
            }
        }
    }

    fn sums(&self) -> Sums {
        Sums { reserved: self.memory.reserved(), allocated: self.memory.allocated(), pending: self.memory.pending() }
    }

    /// Returns the place of the segment around an address.
    fn place_of(&self, address: u64) -> Option<Placement> {
        self.memory.part_at(address).map(|(_, part)| part.of)
    }

    fn number(&mut self, place: Placement) -> u32 {
        let next = self.places.len() as u32;
        let number = *self.numbers.entry(place).or_insert(next);
        if number == next {
            self.places.push(place);
        }
        number
    }

    /// Notes a step of a free. The block of a completed free was not known before.
    fn free(&mut self, address: u64, place: Placement, set: impl FnOnce(&mut Life<'s>), number: usize) {
        let Some(bytes) = self.memory.blocks().get(&address).map(|block| block.size) else { return };
        let none = Life { address, bytes, place, stack: None, start: None, freed: None, end: Some(number) };
        set(self.open.entry(address).or_insert(none));
    }

    /// Returns the memory before the first event, by number of the place.
    fn start(&mut self) -> Vec<Sums> {
        let mut start = BTreeMap::<Placement, Sums>::new();
        for (&address, part) in self.memory.parts() {
            start.entry(part.of).or_default().reserved += part.end - address;
        }
        for (&address, block) in self.memory.blocks() {
            let sums = start.entry(self.place_of(address).unwrap_or(Placement { stream: 0, pool: None })).or_default();
            *(if block.pending { &mut sums.pending } else { &mut sums.allocated }) += block.size;
        }
        start.keys().for_each(|&place| {
            self.number(place);
        });
        self.places.iter().map(|place| start.get(place).copied().unwrap_or_default()).collect()
    }
}
