//! The key of a state: equal for states that differ in names only.
//!
//! A key has everything that a later answer can depend on, as far as the outside can see the state:
//! the layout, the blocks of the program, the queues of the streams, the memory of the device, and
//! the device's answers to the core's questions about work. Blocks are in the order of addresses.
//! Streams, physical handles and segments are numbered by their order. The search can check the key
//! itself: two programs with one key have to answer every further letter equally.

use crate::device::{Books, FIRST_ADDRESS};
use crate::order::{Order, Place};
use crate::world::{DEVICE, Live, World, stream};
use cachalot_core::{BlockState, ParkTarget, PoolKind, SnapshotSegment};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

/// The words of a state.
#[derive(Default)]
struct Words(Vec<u64>);

impl Words {
    fn add(&mut self, words: impl IntoIterator<Item = u64>) {
        self.0.extend(words);
    }

    /// Adds words behind their number, so that two lists never run into each other.
    fn list(&mut self, words: impl IntoIterator<Item = u64>) {
        let at = self.0.len();
        self.0.push(0);
        self.0.extend(words);
        self.0[at] = (self.0.len() - at) as u64;
    }
}

/// Returns the key of a state.
#[must_use]
pub fn of(world: &World, snapshot: &[SnapshotSegment]) -> u128 {
    hashed(&words(world, snapshot))
}

/// Returns a number for the part of a state that a program can see: the blocks, and the memory of
/// the device.
#[must_use]
pub fn visible(world: &World, snapshot: &[SnapshotSegment]) -> u128 {
    let mut words = Words::default();
    add_segments(&mut words, snapshot);
    add_held(&mut words, world);
    words.add([world.device().inner.used(), world.live.len() as u64]);
    hashed(&words.0)
}

fn hashed(words: &[u64]) -> u128 {
    let hash = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(seed);
        words.iter().for_each(|&word| hasher.write_u64(word));
        u128::from(hasher.finish())
    };
    hash(1) << 64 | hash(2)
}

/// Returns the words of a state.
#[must_use]
pub fn words(world: &World, snapshot: &[SnapshotSegment]) -> Vec<u64> {
    let mut words = Words::default();
    let books = world.device().books();
    let order = &books.order;
    add_program(&mut words, world, order);
    add_questions(&mut words, world, &books);
    add_segments(&mut words, snapshot);
    add_device(&mut words, &books);
    drop(books);
    add_pages(&mut words, world);
    words.0
}

/// Adds the layout of the memory.
fn add_segments(words: &mut Words, snapshot: &[SnapshotSegment]) {
    for segment in snapshot {
        let kind = u64::from(segment.kind == PoolKind::Large);
        let pool = u64::from(segment.pool != cachalot_core::PoolId::DEFAULT);
        words.add([segment.address.0 - FIRST_ADDRESS, segment.total_size, segment.parked, segment.stream.0]);
        words.add([kind << 2 | pool << 1 | u64::from(segment.is_expandable)]);
        words.list(segment.blocks.iter().flat_map(|block| {
            let (state, requested) = match block.state {
                BlockState::ActiveAllocated => (0, block.requested_size),
                BlockState::ActivePendingFree => (1, 0),
                BlockState::Inactive => (2, 0),
            };
            [block.size << 2 | state, requested]
        }));
    }
}

/// Returns the position of a place among the incomplete items of the place's stream; 0 for a
/// complete place.
fn rank(order: &Order, (stream, place): Place) -> u64 {
    let line = &order.lines[stream];
    let before = line.items.iter().filter(|item| item.place <= place).count() as u64;
    if line.done >= place { 0 } else { before + 1 }
}

fn add_program(words: &mut Words, world: &World, order: &Order) {
    words.add([u64::from(world.streams), u64::from(world.is_direct), world.capture.map_or(0, |on| u64::from(on) + 1)]);
    words.add(world.committed.map(|on| on.map_or(0, |on| u64::from(on) + 1)));
    words.add(world.departed.map(|place| place.map_or(u64::MAX, |place| (place.0 as u64) << 32 | rank(order, place))));
    words.list(
        world
            .asked
            .iter()
            .map(|&(on, captures, is_large)| u64::from(on) << 2 | u64::from(captures) << 1 | u64::from(is_large)),
    );
    words.list(world.live.iter().flat_map(|live| announced(live, order)));
    words.list(world.waiting.iter().flat_map(|waiting| {
        let [flags, used] = announced(&waiting.block, order);
        let fence = rank(order, waiting.fence) << 1 | u64::from(waiting.is_deferred);
        [waiting.block.ptr.0 - FIRST_ADDRESS, flags, used, fence]
    }));
}

/// Adds for each stream which of the freed blocks the recorded events cover, and the answers by
/// which the core decides about further questions. The core learns of complete work by questions
/// alone, so two states of equal work may go on differently.
fn add_questions(words: &mut Words, world: &World, books: &Books) {
    for (number, answers) in books.questions.iter().enumerate() {
        let blocks = world.waiting.iter().filter(|waiting| waiting.fence.0 == number).map(|waiting| (waiting.turn, 0));
        let events = books.recorded.iter().filter_map(|&(event, turn)| {
            let place = books.events.get(&event).copied().flatten().filter(|place| place.0 == number)?;
            Some((turn, 1 + rank(&books.order, place)))
        });
        let mut turns: Vec<(u64, u64)> = blocks.chain(events).collect();
        turns.sort_unstable();
        words.list(turns.into_iter().map(|(_, word)| word));
        let is_hopeful = answers.is_idle.is_none_or(|idle| idle == Some(true));
        words.add([u64::from(answers.was_complete_at_once == Some(true)) << 1 | u64::from(is_hopeful)]);
    }
}

/// Returns the announcements of a block.
fn announced(live: &Live, order: &Order) -> [u64; 2] {
    let flags = [live.stream == 1, live.is_captured, live.is_recorded, live.is_used_last];
    let flags = flags.into_iter().fold(0, |flags, flag| flags << 1 | u64::from(flag));
    let announced_in = live.announced_in.map_or(0, |on| u64::from(on) + 1);
    [flags << 2 | announced_in, live.used.map_or(u64::MAX, |place| rank(order, place))]
}

/// Adds the queues of the streams, and the memory of the device.
fn add_device(words: &mut Words, books: &Books) {
    let births: BTreeMap<u64, u64> = books.handles.keys().copied().zip(1..).collect();
    let handle = |handle: u64| births.get(&handle).copied().unwrap_or(u64::MAX - handle);
    let order = &books.order;
    for (number, line) in order.lines.iter().enumerate() {
        let ranks = |clock: &crate::order::Clock| {
            let others = clock.iter().enumerate().filter(|(other, _)| *other != number);
            others.map(|(other, &place)| rank(order, (other, place))).fold(0, |sum, rank| sum << 16 | rank)
        };
        words.list(line.items.iter().flat_map(|item| {
            let event = books.events.values().any(|place| *place == Some((number, item.place)));
            let head = [item.pieces.len() as u64 * 2 + u64::from(event), ranks(&item.clock)];
            let pieces = item.pieces.iter().flat_map(|(of, bytes)| {
                let of = if *of == 0 { 0 } else { handle(*of) };
                [of, bytes.start, bytes.end]
            });
            head.into_iter().chain(pieces).collect::<Vec<_>>()
        }));
        words.add([ranks(&line.clock), u64::from(line.done < line.queued)]);
    }
    words.list(books.births.iter().map(|base| base - FIRST_ADDRESS));
    words.list(books.taken.iter().flat_map(|(&start, &length)| [start - FIRST_ADDRESS, length]));
    words.list(books.handles.values().copied());
    words.list(books.mappings.iter().flat_map(|(&at, &(bytes, of))| [at - FIRST_ADDRESS, bytes, handle(of)]));
    let plan = books.plan.map_or(0, |plan| 1 + u64::from(plan.after) * 2 + u64::from(plan.is_out_of_memory));
    let fired = u64::from(books.has_fired) | u64::from(books.is_in_doubt) << 1;
    words.add([books.events.len() as u64, plan, fired]);
}

/// Adds the use of the pages, and what the stitched policy decides by.
fn add_pages(words: &mut Words, world: &World) {
    add_held(words, world);
    if world.setting.config.starts_with("policy:stitched") {
        let peaks = world.core.stats(DEVICE).map(|stats| stats.totals()).map(|stats| {
            [stats.allocated_bytes(), stats.active_bytes(), stats.requested_bytes()].map(|counter| counter.peak as u64)
        });
        words.add(peaks.unwrap_or_default().into_iter().chain([world.most_waiting]));
        words.list(world.loose.iter().map(|ptr| ptr.0 - FIRST_ADDRESS));
        words.list(world.rests.iter().map(|&on| u64::from(on)));
    }
}

/// Adds the use of the pages, and the parked memory.
fn add_held(words: &mut Words, world: &World) {
    let pages = world.core.pages(DEVICE).map(|pages| pages.stats()).unwrap_or_default();
    let leaked = world.core.stats(DEVICE).map(|stats| stats.leaked_bytes()).unwrap_or_default();
    words.add([pages.mapped, pages.spare, pages.stale, pages.parked, pages.pinned, leaked]);
    if world.setting.alphabet.parking {
        for on in 0..2 {
            let report = world.core.parking(DEVICE).and_then(|parking| parking.report(ParkTarget::Stream(stream(on))));
            words.add(report.map_or([0; 3], |report| [report.state as u64, report.parked, report.kept]));
        }
    }
}
