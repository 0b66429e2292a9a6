//! The data of a page about a device, as compressed columns of numbers in base64.
//!
//! ```text
//! gzip( length of the header, 4 bytes │ header, JSON │ column │ column │ … )
//! ```
//!
//! Each column is a list of numbers in LEB128: 7 bits a byte, the lowest first. Signed differences
//! are zigzag-encoded: 0, -1, 1, -2, … as 0, 1, 2, 3, …. The header has the name and the number of
//! entries of each column, in order.

use super::answer::Answer;
use super::history::{History, Kind, Pages, UNKNOWN};
use super::moments::{Life, Shown};
use super::stacks::{BEFORE, NO_STACK, Stacks};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cachalot_replay::memory::{Action, SMALL_PAGE};
use cachalot_snapshot::{Frame, Origin};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ptr;

/// Most stacks of a page. Those with the least memory over time share a number.
const MOST_STACKS: usize = 40_000;

/// Most frames of a stack, and most bytes of a text.
const MOST_FRAMES: usize = 64;
const MOST_TEXT: usize = 300;

/// Most marks on the axis of time.
const MOST_MARKS: usize = 1000;

/// The text of all stacks beyond [`MOST_STACKS`].
const FURTHER: &str = "other stacks";

/// Everything but the columns.
#[derive(Serialize)]
struct Header<'a> {
    label: &'a str,
    device: i64,
    config: &'a str,
    /// Number of events shown, and of those before them and in the whole history.
    events: usize,
    first_event: usize,
    all_events: usize,
    /// Whether the page shows a range of the history.
    is_range: bool,
    step: u32,
    has_times: bool,
    /// Peak moments of reserved memory and of memory in use.
    peaks: [u32; 2],
    answer: &'a Answer,
    /// Stream, pool and kind of each heap. The pool is absent if unknown, and the kind is empty.
    heaps: Vec<ShownHeap>,
    /// The sizes of small and of large pages in expandable segments.
    pages: [u64; 2],
    /// Whether the file has several devices.
    is_one_of_several: bool,
    failures: Vec<Failure>,
    marks: Vec<Mark<'a>>,
    texts: Vec<String>,
    /// Notes by number of the stack.
    notes: BTreeMap<u32, &'a str>,
    columns: Vec<(&'static str, usize)>,
}

/// A failed request.
#[derive(Serialize)]
struct Failure {
    moment: usize,
    bytes: u64,
    stream: String,
    /// Free bytes of the device, if known.
    device_free: Option<u64>,
    stack: u32,
}

/// A mark on the axis of time.
#[derive(Serialize)]
struct Mark<'a> {
    moment: usize,
    text: &'a str,
}

/// Columns under construction.
#[derive(Default)]
struct Columns {
    columns: Vec<(&'static str, usize)>,
    bytes: Vec<u8>,
}

impl Columns {
    fn add(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut count = 0;
        for mut value in values {
            count += 1;
            while value >= 0x80 {
                self.bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
        }
        self.columns.push((name, count));
    }

    /// Adds the differences between neighbours.
    fn add_differences(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut last = 0_u64;
        self.add(
            name,
            values.map(|value| {
                let change = value.wrapping_sub(last).cast_signed();
                last = value;
                ((change << 1) ^ (change >> 63)).cast_unsigned()
            }),
        );
    }
}

/// The stacks of a page, the ones with the most memory over time first.
struct PageStacks<'a> {
    /// The numbers on the page by number of the stack.
    numbers: FxHashMap<u32, u32>,
    stacks: &'a Stacks,
    /// The stacks by number on the page.
    shown: Vec<u32>,
}

impl<'a> PageStacks<'a> {
    fn new(stacks: &'a Stacks, shown: &Shown, failures: &[u32]) -> Self {
        let mut weights: FxHashMap<u32, f64> = FxHashMap::default();
        for life in shown.blocks.iter().chain(&shown.parts) {
            *weights.entry(life.stack).or_default() += life.bytes as f64 * f64::from(life.death - life.birth);
        }
        for &stack in failures {
            weights.entry(stack).or_default();
        }
        let mut order: Vec<(u32, f64)> = weights.into_iter().collect();
        order.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        order.truncate(MOST_STACKS);
        let shown: Vec<u32> = order.iter().map(|(stack, _)| *stack).collect();
        let numbers = shown.iter().zip(0..).map(|(&stack, number)| (stack, number)).collect();
        Self { numbers, stacks, shown }
    }

    /// Returns the number on the page. All other stacks have the number after the last.
    fn number(&self, stack: u32) -> u32 {
        self.numbers.get(&stack).copied().unwrap_or(self.shown.len() as u32)
    }

    fn notes(&self) -> BTreeMap<u32, &'a str> {
        let note = |(number, &stack): (u32, &u32)| Some((number, cut(self.stacks.get(stack).note.as_deref()?)));
        let mut notes: BTreeMap<u32, &str> = (0..).zip(&self.shown).filter_map(note).collect();
        notes.insert(self.shown.len() as u32, FURTHER);
        notes
    }

    /// Adds the columns of stacks and frames. Returns the texts.
    fn add_to(&self, columns: &mut Columns) -> Vec<String> {
        let (mut frames, mut frame_numbers) = (Vec::<&Frame>::new(), FxHashMap::<*const Frame, u64>::default());
        let (mut lengths, mut of_stacks) = (Vec::new(), Vec::new());
        // Of each frame of a stack, whether the page shows it at once; of each stack, its line.
        let (mut hidden, mut own) = (Vec::new(), Vec::new());
        let mut number_of = |frame: &'a Frame| {
            *frame_numbers.entry(&raw const *frame).or_insert_with(|| {
                frames.push(frame);
                frames.len() as u64 - 1
            })
        };
        for &stack in &self.shown {
            let stack = &self.stacks.get(stack).stack;
            let shown = stack.shown();
            let is_long = stack.frames().len() > MOST_FRAMES;
            // A long stack of C++ would leave no room for the program's lines at its other end.
            let kept = stack.frames().iter().filter(|frame| !is_long || frame.origin() != Origin::Plumbing);
            let start = of_stacks.len();
            for frame in kept.take(MOST_FRAMES) {
                of_stacks.push(number_of(frame));
                hidden.push(u64::from(!shown.iter().any(|&one| ptr::eq(one, &raw const **frame))));
            }
            lengths.push((of_stacks.len() - start) as u64);
            own.push(shown.first().map_or(0, |&frame| 1 + number_of(frame)));
        }
        let (mut texts, mut text_numbers) = (Vec::new(), FxHashMap::<Cow<'_, str>, u64>::default());
        let mut text = |text: Cow<'a, str>| {
            *text_numbers.entry(text).or_insert_with_key(|text| {
                texts.push(cut(text).to_owned());
                texts.len() as u64 - 1
            })
        };
        let names: Vec<u64> = frames.iter().map(|frame| text(frame.short_name())).collect();
        let files: Vec<u64> = frames.iter().map(|frame| text(frame.short_file().unwrap_or_default().into())).collect();
        columns.add("stack_length", lengths.into_iter());
        columns.add("stack_own", own.into_iter());
        columns.add("stack_frame", of_stacks.into_iter());
        columns.add("stack_hidden", hidden.into_iter());
        columns.add("frame_name", names.into_iter());
        columns.add("frame_file", files.into_iter());
        columns.add("frame_line", frames.iter().map(|frame| frame.known_line().unwrap_or(0).unsigned_abs()));
        texts
    }
}

/// Cuts a long text.
fn cut(text: &str) -> &str {
    let mut ends = (0..=MOST_TEXT.min(text.len())).rev();
    &text[..ends.find(|&end| text.is_char_boundary(end)).unwrap_or(0)]
}

/// Formats a stream: in decimal for a small number, otherwise a handle in hexadecimal.
fn stream(history: &History, number: u16) -> String {
    let stream = history.names.streams.get(usize::from(number)).copied().unwrap_or(0);
    if stream.unsigned_abs() < 1 << 16 { stream.to_string() } else { format!("{stream:#x}") }
}

/// Encodes what a page shows of a history.
pub(super) fn encode(history: &History, shown: &Shown, answer: &Answer, is_one_of_several: bool) -> io::Result<String> {
    let moment_of = |state: u32| {
        let after = shown.moments.partition_point(|moment| moment.state < state);
        after.min(shown.moments.len().saturating_sub(1))
    };
    let failed = history.events.iter().zip(1..).filter(|(event, _)| event.action == Action::OutOfMemory);
    let failed: Vec<_> = failed.take(super::moments::MOST_FAILURES).collect();
    let failed_stacks: Vec<u32> = failed.iter().map(|(event, _)| event.of.stack).collect();
    let table = PageStacks::new(&history.stacks, shown, &failed_stacks);
    let mut columns = Columns::default();
    let texts = table.add_to(&mut columns);
    let heaps = heaps(shown);
    add_moments(&mut columns, history, shown);
    let mut add = |names: [&'static str; 7], lives: &[Life]| {
        columns.add_differences(names[0], lives.iter().map(|life| u64::from(life.birth)));
        columns.add(names[1], lives.iter().map(|life| u64::from(life.death - life.birth)));
        columns.add(names[2], lives.iter().map(|life| u64::from(life.death - life.freed)));
        columns.add_differences(names[3], lives.iter().map(|life| life.address));
        columns.add(names[4], lives.iter().map(|life| life.bytes));
        columns.add(names[5], lives.iter().map(|life| table.number(life.stack).into()));
        let heap = |life: &Life| heaps.iter().position(|heap| *heap == heap_of(life)).unwrap_or(0) as u64;
        columns.add(names[6], lives.iter().map(|life| heap(life) * 2 + u64::from(life.expandable)));
    };
    add(
        ["block_birth", "block_life", "block_pending", "block_address", "block_bytes", "block_stack", "block_heap"],
        &shown.blocks,
    );
    add(
        ["part_birth", "part_life", "part_pending", "part_address", "part_bytes", "part_stack", "part_heap"],
        &shown.parts,
    );
    let header = Header {
        label: &history.label,
        device: history.device,
        config: &history.config,
        events: history.events.len(),
        first_event: history.part.as_ref().map_or(0, |part| part.first),
        all_events: history.part.as_ref().map_or(history.events.len(), |part| part.events),
        is_range: history.part.is_some(),
        step: shown.step,
        has_times: history.has_times,
        peaks: shown.peaks,
        answer,
        heaps: heaps.iter().map(|&heap| shown_heap(history, heap)).collect(),
        pages: [SMALL_PAGE, Pages::of(&history.config).large],
        is_one_of_several,
        failures: failed
            .iter()
            .map(|&(event, state)| Failure {
                moment: moment_of(state),
                bytes: event.size,
                stream: stream(history, event.of.stream),
                device_free: (event.addr != u64::MAX).then_some(event.addr),
                stack: table.number(event.of.stack),
            })
            .collect(),
        marks: marks(history, moment_of),
        texts,
        notes: table.notes(),
        columns: columns.columns,
    };
    let header = serde_json::to_vec(&header)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&(header.len() as u32).to_le_bytes())?;
    packed.write_all(&header)?;
    packed.write_all(&columns.bytes)?;
    Ok(STANDARD.encode(packed.finish()?))
}

/// Stream, pool and kind for the page.
type ShownHeap = (String, Option<(u64, u64)>, &'static str);

/// Stream, pool and kind.
type Heap = (u16, u16, Kind);

fn heap_of(life: &Life) -> Heap {
    (life.stream, life.pool, life.kind)
}

/// Returns a heap for the page.
fn shown_heap(history: &History, (of, pool, kind): Heap) -> ShownHeap {
    let kind = match kind {
        Kind::Unknown => "",
        Kind::Small => "small",
        Kind::Large => "large",
    };
    (stream(history, of), history.names.pools.get(usize::from(pool)).copied(), kind)
}

/// Returns the heap of every block and part, in order. An unknown pool is the last.
fn heaps(shown: &Shown) -> Vec<Heap> {
    let mut heaps: Vec<Heap> = shown.blocks.iter().chain(&shown.parts).map(heap_of).collect();
    heaps.sort_unstable_by_key(|&(stream, pool, kind)| (stream, pool == UNKNOWN, pool, kind));
    heaps.dedup();
    heaps
}

fn add_moments(columns: &mut Columns, history: &History, shown: &Shown) {
    let moments = &shown.moments;
    columns.add_differences("moment_state", moments.iter().map(|moment| moment.state.into()));
    let time = |state: u32| history.events.get(state.saturating_sub(1) as usize).map_or(0, |event| event.of.time);
    let times = if history.has_times { &moments[..] } else { &[] };
    let first = time(0);
    columns.add_differences(
        "moment_time",
        times.iter().map(|moment| time(moment.state).wrapping_sub(first).cast_unsigned()),
    );
    columns.add_differences("moment_reserved", moments.iter().map(|moment| moment.sums.reserved));
    columns.add_differences("moment_most_reserved", moments.iter().map(|moment| moment.most_reserved));
    columns.add_differences("moment_holes", moments.iter().map(|moment| moment.sums.holes));
}

/// Returns the marks of the program and of profilers.
fn marks(history: &History, moment_of: impl Fn(u32) -> usize) -> Vec<Mark<'_>> {
    let own = history.events.iter().zip(1..).filter(|(event, _)| event.action == Action::Mark);
    let text = |stack: u32| match stack {
        NO_STACK | BEFORE => "",
        _ => history.stacks.get(stack).note.as_deref().unwrap_or_default(),
    };
    let own = own.map(|(event, state)| Mark { moment: moment_of(state), text: cut(text(event.of.stack)) });
    let starts = history.annotations.iter().filter(|annotation| annotation.stage == "START");
    let of_profiler = starts.map(|annotation| {
        let state = history.events.partition_point(|event| event.of.time < annotation.time_us);
        Mark { moment: moment_of(state as u32), text: cut(&annotation.name) }
    });
    let mut marks: Vec<Mark<'_>> = own.chain(of_profiler).take(MOST_MARKS).collect();
    marks.sort_by_key(|mark| (mark.moment, Reverse(mark.text.len())));
    marks
}
