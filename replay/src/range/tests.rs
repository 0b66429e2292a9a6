//! Ranges of made histories, beside sums that go forward from event to event.

use super::{HistoryRange, Moment, Span, cut, resolve, rewind};
use crate::inspect::{By, Lists, Since, inspect};
use cachalot_snapshot::{Annotation, Block, Event, Frame, Segment, Snapshot, Stack};
use std::borrow::Cow;
use std::collections::BTreeMap;

const UNIT: u64 = 512;
const SEGMENT: u64 = 64 * UNIT;

/// What a model holds: segments by address, and blocks by address with their size and whether they
/// are pending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    segments: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, (u64, bool)>,
}

impl Model {
    /// Returns the bytes reserved, allocated and pending.
    fn sums(&self) -> (u64, u64, u64) {
        let of = |is: bool| self.blocks.values().filter(|(_, pending)| *pending == is).map(|(size, _)| size).sum();
        (self.segments.values().sum(), of(false), of(true))
    }
}

fn event(action: &'static str, addr: u64, size: u64, time: i64) -> Event {
    let frame = Frame { name: format!("line{}", addr / UNIT % 7), filename: "a.py".to_owned(), ..Frame::default() };
    Event {
        action: Cow::Borrowed(action),
        addr: Some(addr),
        size: size.cast_signed(),
        time_us: Some(time),
        frames: Some(Stack::from(vec![frame])),
        ..Event::default()
    }
}

/// A program of random calls: its events, and the model before each and at the end.
fn program(seed: u64, count: usize) -> (Vec<Event>, Vec<Model>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut events, mut model) = (Vec::new(), Model::default());
    let mut models = vec![model.clone()];
    while events.len() < count {
        let time = 1000 + events.len() as i64 * 10;
        let number = random.u64(0..6);
        let (start, slot) = ((1 << 40) + number * 2 * SEGMENT, random.u64(0..8) * 8 * UNIT);
        let (address, is_there) = (start + slot, model.segments.contains_key(&start));
        let is_used = model.blocks.range(start..start + SEGMENT).next().is_some();
        let (action, at, size) = match (is_there, model.blocks.get(&address).copied()) {
            (false, _) => {
                model.segments.insert(start, SEGMENT);
                ("segment_alloc", start, SEGMENT)
            }
            (true, None) if !is_used && random.u8(0..4) == 0 => {
                model.segments.remove(&start);
                ("segment_free", start, SEGMENT)
            }
            (true, None) => {
                let size = UNIT * random.u64(1..=8);
                model.blocks.insert(address, (size, false));
                // The history has the requested size.
                ("alloc", address, size - random.u64(0..UNIT))
            }
            (true, Some((size, false))) => {
                model.blocks.insert(address, (size, true));
                ("free_requested", address, size)
            }
            (true, Some((size, true))) => {
                model.blocks.remove(&address);
                ("free_completed", address, size)
            }
        };
        events.push(event(action, at, size, time));
        models.push(model.clone());
    }
    (events, models)
}

/// The snapshot at the end of a program.
fn snapshot(events: Vec<Event>, model: &Model) -> Snapshot {
    let state = |name: &'static str| Cow::Borrowed(name);
    let block = |address: u64, size: u64, state: Cow<'static, str>| Block {
        address: Some(address),
        size,
        requested_size: Some(size),
        state,
        ..Block::default()
    };
    let segment = |(&start, &total_size): (&u64, &u64)| {
        let (mut blocks, mut at) = (Vec::new(), start);
        for (&address, &(size, pending)) in model.blocks.range(start..start + total_size) {
            if at < address {
                blocks.push(block(at, address - at, state("inactive")));
            }
            blocks.push(block(address, size, state(if pending { "active_pending_free" } else { "active_allocated" })));
            at = address + size;
        }
        if at < start + total_size {
            blocks.push(block(at, start + total_size - at, state("inactive")));
        }
        Segment { address: start, total_size, segment_type: Some(state("large")), blocks, ..Segment::default() }
    };
    Snapshot {
        segments: model.segments.iter().map(segment).collect(),
        device_traces: vec![events],
        ..Snapshot::default()
    }
}

/// Returns what a snapshot holds, as a model.
fn model_of(snapshot: &Snapshot) -> Model {
    let mut model = Model::default();
    for segment in &snapshot.segments {
        model.segments.insert(segment.address, segment.total_size);
        assert_eq!(segment.blocks.iter().map(|block| block.size).sum::<u64>(), segment.total_size, "the blocks tile");
        for block in segment.blocks.iter().filter(|block| block.state != "inactive") {
            let pending = block.state == "active_pending_free";
            model.blocks.insert(block.address.expect("an address"), (block.size, pending));
        }
    }
    model
}

fn range(from_event: usize, to_event: usize, events: usize) -> HistoryRange {
    HistoryRange { devices: vec![Span { device: 0, from_event, to_event, events, from_us: None, to_us: None }] }
}

#[test]
fn the_end_of_a_range_is_what_a_sum_forward_finds() {
    for seed in 0..40 {
        let (events, models) = program(seed, 120);
        let whole = snapshot(events, &models[120]);
        for to in [0, 1, 17, 60, 119, 120] {
            let mut earlier = whole.clone();
            rewind(&mut earlier, &range(0, to, 120)).expect("a range");
            assert_eq!(model_of(&earlier), models[to], "seed {seed}, {to} events");
            assert_eq!(earlier.device_traces[0].len(), to);
            // From there back again.
            rewind(&mut earlier, &range(0, to / 2, to)).expect("a range");
            assert_eq!(model_of(&earlier), models[to / 2], "seed {seed}, {to} events and half of them");
        }
    }
}

#[test]
fn the_peaks_of_a_range_are_the_most_of_its_states() {
    for seed in 0..20 {
        let (events, models) = program(seed, 150);
        let whole = snapshot(events, &models[150]);
        for (from, to) in [(0, 150), (10, 40), (75, 76), (100, 150)] {
            let mut earlier = whole.clone();
            rewind(&mut earlier, &range(from, to, 150)).expect("a range");
            let report = inspect(&earlier, &Since([(0, from)].into()), Lists { most: usize::MAX, by: By::Stack });
            let states = || models[from..=to].iter().map(Model::sums);
            let most = |of: fn((u64, u64, u64)) -> u64| states().map(of).max();
            let reserved = report.peaks.iter().map(|peak| peak.reserved).max();
            let in_use = report.peaks.iter().map(|peak| peak.allocated + peak.pending).max();
            let place = format!("seed {seed}, {from} to {to}");
            assert_eq!(reserved, most(|(reserved, ..)| reserved), "{place}");
            assert_eq!(in_use, most(|(_, allocated, pending)| allocated + pending), "{place}");
            assert!(report.peaks.iter().all(|peak| (from..=to).contains(&(peak.event as usize))), "{place}");
            assert_eq!(report.totals.iter().map(|totals| totals.events).sum::<u64>(), (to - from) as u64, "{place}");
            // A block that is there at the start and was not freed since is from before the range.
            let is_old = |address: &u64| {
                from > 0
                    && (from..=to).all(|state| models[state].blocks.contains_key(address))
                    && !earlier.device_traces[0][from..]
                        .iter()
                        .any(|event| event.action == "alloc" && event.addr == Some(*address))
            };
            let old: u64 =
                models[to].blocks.iter().filter(|(address, _)| is_old(address)).map(|(_, block)| block.0).sum();
            assert_eq!(report.largest.iter().map(|group| group.earlier).sum::<u64>(), old, "{place}");
        }
    }
}

#[test]
fn a_range_alone_keeps_the_stacks_of_blocks_from_before() {
    let (events, models) = program(3, 150);
    let mut whole = snapshot(events, &models[150]);
    let of = range(60, 120, 150);
    rewind(&mut whole, &of).expect("a range");
    let before = cut(&mut whole, &of);
    assert_eq!(whole.device_traces[0].len(), 60);
    let held: Vec<(i64, u64)> = models[60].blocks.keys().map(|&address| (0, address)).collect();
    let mut known: Vec<(i64, u64)> = before.keys().copied().collect();
    known.sort_unstable();
    assert_eq!(known, held);
    let without = whole.segments.iter().flat_map(|segment| &segment.blocks).filter(|block| block.state != "inactive");
    assert!(without.clone().count() > 0 && without.clone().all(|block| block.stack().is_some()));
}

fn mark(stage: &str, name: &str, time_us: i64) -> Annotation {
    Annotation { name: name.to_owned(), stage: stage.to_owned(), time_us, ..Annotation::default() }
}

/// A history of 100 events, 10 µs apart from 1000 on, with marks.
fn marked() -> Snapshot {
    let (events, models) = program(5, 100);
    let marks = vec![
        mark("END", "Optimizer.step#AdamW.step", 900),
        mark("START", "load", 990),
        mark("START", "forward", 1105),
        mark("END", "load", 1110),
        mark("END", "forward", 1200),
        mark("START", "Optimizer.step#AdamW.step", 1250),
        mark("END", "Optimizer.step#AdamW.step", 1300),
        mark("START", "forward", 1305),
        mark("START", "ProfilerStep#7", 1400),
        mark("END", "ProfilerStep#7", 1450),
        mark("END", "Optimizer.step#AdamW.step", 1600),
        mark("END", "forward", 1700),
        mark("START", "open", 1800),
    ];
    Snapshot { external_annotations: Some(marks), ..snapshot(events, &models[100]) }
}

fn found(snapshot: &Snapshot, from: &str, to: &str) -> Result<(usize, usize), String> {
    let parsed = |text: &str| (!text.is_empty()).then(|| Moment::parse(text).expect(text));
    let range = resolve(snapshot, parsed(from).as_ref(), parsed(to).as_ref())?;
    let [span] = range.devices[..] else { panic!("{range:?}") };
    Ok((span.from_event, span.to_event))
}

#[test]
fn every_kind_of_moment_is_found() {
    let marked = marked();
    for (from, to, expected) in [
        ("", "", (0, 100)),
        ("12", "1,00", (12, 100)),
        // Events at the time itself are in the range, at both of its ends.
        ("100us", "0.2ms", (10, 21)),
        ("annotation:forward", "annotation:forward", (11, 21)),
        ("annotation:forward#2", "annotation:forward#2", (31, 71)),
        ("annotation:load", "annotation:load", (0, 12)),
        ("annotation:open", "annotation:open", (80, 100)),
        ("annotation:ProfilerStep#7", "step:7", (40, 46)),
    ] {
        assert_eq!(found(&marked, from, to), Ok(expected), "{from} to {to}");
    }
    let mut without = marked;
    without.external_annotations.as_mut().expect("marks").retain(|mark| !mark.name.starts_with("Profiler"));
    // The first call of the optimizer ended before the history.
    assert_eq!(found(&without, "step:0", "step:0"), Ok((0, 31)));
    assert_eq!(found(&without, "step:1", "step:1"), Ok((31, 61)));
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let marked = marked();
    for (from, to, what) in [
        ("101", "", "--from: there is no event 101: the history has 100 events"),
        ("50", "50", "no event is in the range: it begins after 50 events and ends after 50 events"),
        ("", "2ms", "--to: 2ms is after the end: the history is 990us long"),
        (
            "annotation:backward",
            "",
            "--from: no annotation is named `backward`: the file has `Optimizer.step#AdamW.step` (3 times), `load`, \
             `forward` (2 times), `ProfilerStep#7`, `open`",
        ),
        ("annotation:forward#3", "", "--from: `forward` occurs 2 times"),
        (
            "annotation:Optimizer.step#AdamW.step",
            "",
            "--from: `Optimizer.step#AdamW.step` ended before the first event of the history",
        ),
        (
            "step:8",
            "",
            "--from: there is no step 8: the file has steps 7 to 7, by annotations such as `ProfilerStep#7`",
        ),
    ] {
        assert_eq!(found(&marked, from, to), Err(what.to_owned()), "{from} to {to}");
    }
    let bare = Snapshot { external_annotations: None, ..marked.clone() };
    let error = found(&bare, "step:1", "").expect_err("no steps");
    assert!(error.starts_with("--from: nothing marks steps: ") && error.ends_with("the file has no annotations"));
    let mut timeless = marked.clone();
    timeless.device_traces[0].iter_mut().for_each(|event| event.time_us = None);
    assert_eq!(found(&timeless, "1s", ""), Err("--from: the events have no times: name a number of events".to_owned()));
    let mut two = marked;
    two.device_traces.push(two.device_traces[0].clone());
    let error = found(&two, "3", "").expect_err("two devices");
    assert!(error.contains("2 devices have events: name a time, an annotation or a step"), "{error}");
    assert!(resolve(&Snapshot::default(), None, None).expect_err("no events").contains("no events were recorded"));
}

#[test]
fn moments_are_read_and_written_alike() {
    for text in ["1200", "3.5s", "120ms", "7us", "annotation:a b#2", "step:3", "1.000001s"] {
        assert_eq!(Moment::parse(text).map(|moment| moment.to_string()), Ok(text.to_owned()));
    }
    assert_eq!(Moment::parse("2min"), Ok(Moment::Time(120_000_000)));
    assert_eq!(Moment::parse("1,200"), Ok(Moment::Event(1200)));
    for text in ["", "-1", "1.5", "s", "3 apples", "annotation:", "step:", "step:x", "1e9s", "infs", "99999999999999h"]
    {
        let error = Moment::parse(text).expect_err(text);
        assert!(error.contains("annotation:NAME") && error.contains("3.5s"), "{error}");
    }
}
