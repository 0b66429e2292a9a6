//! Captures: what they record, and which calls they permit.

use super::driver::State;
use super::threads;
use crate::process::thread;
use crate::tables::capture::{Capture, GLOBAL, Node, RELAXED};
use crate::tables::event::Point;
use crate::tables::stream::Kind;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use std::collections::BTreeSet;

/// Returns the capture of a queue, or `None` without a capture.
///
/// # Errors
/// `STREAM_CAPTURE_INVALIDATED` if the capture is broken. `STREAM_CAPTURE_IMPLICIT`, which also
/// breaks captures, if the queue is a legacy queue and a blocking stream of the context captures.
pub(crate) fn of_queue(state: &mut State, number: u64) -> Answer<Option<u64>> {
    let queue = state.streams.queue(number)?;
    if queue.kind == Kind::Legacy {
        let disturbed = implicit(state, number);
        if disturbed.is_empty() {
            return Ok(None);
        }
        invalidate(state, &disturbed);
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    let Some(id) = queue.capture else { return Ok(None) };
    match state.captures.get(&id) {
        Some(capture) if !capture.valid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some(_) => Ok(Some(id)),
        None => Ok(None),
    }
}

/// Returns the predecessors of a queue's next node in a capture.
pub(crate) fn frontier(state: &State, id: u64, queue: u64) -> Vec<usize> {
    state.captures.get(&id).and_then(|capture| capture.frontiers.get(&queue)).cloned().unwrap_or_default()
}

/// `cuStreamWaitEvent`: orders a queue's later work after a point.
pub(crate) fn wait(state: &mut State, queue: u64, point: &Point) -> Answer<()> {
    let capturing = of_queue(state, queue)?;
    match (capturing, point) {
        (_, Point::Never) => Ok(()),
        (None, Point::At(marks)) => threads::push(state, queue, Work::Nothing, marks.clone()),
        (Some(id), Point::At(_)) => {
            invalidate(state, &[id]);
            Err(Code::STREAM_CAPTURE_ISOLATION)
        }
        (capturing, Point::Captured(id, nodes)) => join(state, queue, capturing, *id, nodes),
    }
}

/// Orders a queue's later work after nodes of a capture. The queue enters the capture if
/// necessary.
fn join(state: &mut State, queue: u64, capturing: Option<u64>, id: u64, nodes: &[usize]) -> Answer<()> {
    if let Some(own) = capturing.filter(|&own| own != id) {
        invalidate(state, &[own, id]);
        return Err(Code::STREAM_CAPTURE_MERGE);
    }
    let legacy = state.streams.queue(queue)?.kind == Kind::Legacy;
    let Some(capture) = state.captures.get_mut(&id).filter(|capture| capture.valid) else {
        return state.answers.outcome("query_stale_event");
    };
    if legacy {
        capture.valid = false;
        return state.answers.outcome("legacy_wait_captured");
    }
    let frontier = capture.frontiers.entry(queue).or_default();
    let merged: BTreeSet<usize> = frontier.iter().chain(nodes).copied().collect();
    *frontier = merged.into_iter().collect();
    state.streams.queue_mut(queue)?.capture = Some(id);
    Ok(())
}

/// Refuses a potentially unsafe call if a capture forbids the call, and breaks the forbidding
/// captures.
pub(crate) fn check_unsafe(state: &mut State) -> Answer<()> {
    let (thread, mode) = (thread::number(), thread::capture_mode());
    if mode == RELAXED || state.captures.is_empty() {
        return Ok(());
    }
    let forbids = |capture: &Capture| {
        if capture.thread == thread { capture.mode != RELAXED } else { capture.mode == GLOBAL && mode == GLOBAL }
    };
    let broken: Vec<u64> = state.captures.iter().filter(|(_, capture)| forbids(capture)).map(|(&id, _)| id).collect();
    if broken.is_empty() {
        return Ok(());
    }
    invalidate(state, &broken);
    Err(Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses to wait for a capturing queue, and breaks the capture.
pub(crate) fn check_wait(state: &mut State, queue: u64) -> Answer<()> {
    match of_queue(state, queue)? {
        None => Ok(()),
        Some(id) => {
            invalidate(state, &[id]);
            state.answers.outcome("wait_capturing")
        }
    }
}

/// Refuses to wait for a context with a capturing stream, and breaks the capture, in every mode.
/// Captures in other contexts go on.
pub(crate) fn check_context_wait(state: &mut State, context: u64) -> Answer<()> {
    let its = state.streams.queues.values().filter(|queue| queue.context == context);
    let broken: Vec<u64> = its.filter_map(|queue| queue.capture).collect();
    if broken.is_empty() {
        return Ok(());
    }
    invalidate(state, &broken);
    state.answers.outcome("wait_capturing")
}

/// Refuses to record an event for a context with a capturing stream, or to let the context wait,
/// and breaks the capture, in every mode.
pub(crate) fn check_context_event(state: &mut State, context: u64) -> Answer<()> {
    let its = state.streams.queues.values().filter(|queue| queue.context == context);
    let broken: Vec<u64> = its.filter_map(|queue| queue.capture).collect();
    invalidate(state, &broken);
    if broken.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
}

/// Refuses to query an event recorded in a capture, and breaks the capture, in every mode.
pub(crate) fn check_event(state: &mut State, id: u64) -> Answer<()> {
    if !state.captures.get(&id).is_some_and(|capture| capture.valid) {
        return state.answers.outcome("query_stale_event");
    }
    invalidate(state, &[id]);
    state.answers.outcome("query_captured_event")
}

/// Adds a node at a queue's frontier.
pub(crate) fn record(state: &mut State, id: u64, queue: u64, work: Work) {
    if let Some(capture) = state.captures.get_mut(&id) {
        let number = capture.nodes.len();
        let after = capture.frontiers.insert(queue, vec![number]).unwrap_or_default();
        capture.nodes.push(Node { work, after });
    }
}

/// Breaks captures.
fn invalidate(state: &mut State, ids: &[u64]) {
    for id in ids {
        if let Some(capture) = state.captures.get_mut(id) {
            capture.valid = false;
        }
    }
}

/// Returns the captures of the context's blocking streams, on which work of a legacy queue would
/// depend.
pub(crate) fn implicit(state: &State, legacy: u64) -> Vec<u64> {
    let Ok(queue) = state.streams.queue(legacy) else { return Vec::new() };
    let context = queue.context;
    let others = state.streams.queues.values();
    let others = others.filter(|other| other.context == context && other.kind == Kind::Blocking);
    others.filter_map(|other| other.capture).collect()
}
