//! Stream capture: records work instead of running the work, checks which calls a capture permits,
//! and builds the graph.
//!
//! A capture begins on one stream, the origin. Another stream joins by waiting for an event
//! recorded in the capture, and must be joined back before the end. Each stream has a frontier: the
//! predecessors of the stream's next node. A mistake invalidates the capture: every call on the
//! capture answers `STREAM_CAPTURE_INVALIDATED` until the origin ends the capture.

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::context;
use crate::driver::State;
use crate::event::Point;
use crate::stream::{self, Kind};
use crate::thread;
use crate::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
pub(crate) const GLOBAL: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const RELAXED: i32 = 2;

/// `CU_STREAM_CAPTURE_STATUS_*`.
const STATUS_NONE: i32 = 0;
const STATUS_ACTIVE: i32 = 1;
const STATUS_INVALIDATED: i32 = 2;

/// A recorded piece of work with the predecessors. Every predecessor has a lower number.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    work: Work,
    after: Vec<usize>,
}

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The queue on which the capture began.
    origin: u64,
    /// The thread that began the capture.
    thread: u32,
    mode: i32,
    valid: bool,
    nodes: Vec<Node>,
    /// The frontier of each captured queue.
    frontiers: BTreeMap<u64, Vec<usize>>,
    /// The handles that the program was shown of each frontier.
    shown: BTreeMap<u64, Box<[u64]>>,
}

/// The handles of nodes: above those of other objects, 2^24 nodes for each capture.
const NODES: u64 = 0x6000_0000_0000;

/// Returns the handle of a node of a capture under way.
fn handle_of(id: u64, node: usize) -> u64 {
    NODES + ((id << 24) + node as u64) * 8
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

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

/// Queues work, or records the work if the stream captures.
pub(crate) fn submit(call: &mut Call, stream: u64, work: Work) -> Answer<()> {
    let queue = stream::find(&mut call.state, stream, call.context)?;
    let context = call.state.streams.queue(queue)?.context;
    context::check(&call.state, context)?;
    match of_queue(&mut call.state, queue)? {
        None => stream::push(&mut call.state, queue, work, Vec::new()),
        Some(id) => {
            record(&mut call.state, id, queue, work);
            Ok(())
        }
    }
}

/// Returns the predecessors of a queue's next node in a capture.
pub(crate) fn frontier(state: &State, id: u64, queue: u64) -> Vec<usize> {
    state.captures.get(&id).and_then(|capture| capture.frontiers.get(&queue)).cloned().unwrap_or_default()
}

/// `cuStreamWaitEvent`: orders a queue's further work after a point.
pub(crate) fn wait(state: &mut State, queue: u64, point: &Point) -> Answer<()> {
    let capturing = of_queue(state, queue)?;
    match (capturing, point) {
        (_, Point::Never) => Ok(()),
        (None, &Point::At(mark)) => stream::push(state, queue, Work::Nothing, vec![mark]),
        (Some(id), Point::At(_)) => {
            invalidate(state, &[id]);
            Err(Code::STREAM_CAPTURE_ISOLATION)
        }
        (capturing, Point::Captured(id, nodes)) => join(state, queue, capturing, *id, nodes),
    }
}

/// Orders a queue's further work after nodes of a capture. The queue enters the capture if
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
pub(crate) fn check_context_wait(state: &mut State, context: u64) -> Answer<()> {
    let its = state.streams.queues.values().filter(|queue| queue.context == context);
    let broken: Vec<u64> = its.filter_map(|queue| queue.capture).collect();
    if broken.is_empty() {
        return check_unsafe(state);
    }
    invalidate(state, &broken);
    state.answers.outcome("wait_capturing")
}

/// Refuses to query an event recorded in a capture, and breaks the capture, in every mode.
pub(crate) fn check_event(state: &mut State, id: u64) -> Answer<()> {
    if !state.captures.get(&id).is_some_and(|capture| capture.valid) {
        return state.answers.outcome("query_stale_event");
    }
    invalidate(state, &[id]);
    state.answers.outcome("query_captured_event")
}

/// `cuStreamBeginCapture_v2`.
pub(crate) fn begin(call: &mut Call, stream: u64, mode: i32) -> Answer<()> {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    let queue = stream::find(&mut call.state, stream, call.context)?;
    let state = &mut *call.state;
    let its = state.streams.queue(queue)?;
    context::check(state, its.context)?;
    if its.kind == Kind::Legacy {
        state.answers.outcome("begin_legacy")?;
    }
    if its.capture.is_some() {
        state.answers.outcome("begin_twice")?;
    }
    state.captures_made += 1;
    let id = state.captures_made;
    let frontiers = BTreeMap::from([(queue, Vec::new())]);
    let thread = thread::number();
    let capture =
        Capture { origin: queue, thread, mode, valid: true, nodes: Vec::new(), frontiers, shown: BTreeMap::new() };
    state.captures.insert(id, capture);
    state.streams.queue_mut(queue)?.capture = Some(id);
    call.out = Some(id);
    Ok(())
}

/// `cuStreamEndCapture`.
pub(crate) fn end(call: &mut Call, stream: u64) -> Answer<u64> {
    let queue = stream::find(&mut call.state, stream, call.context)?;
    let state = &mut *call.state;
    let Some(id) = state.streams.queue(queue)?.capture else {
        state.answers.outcome("end_idle")?;
        return Err(Code::ILLEGAL_STATE);
    };
    let capture = state.captures.get_mut(&id).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != queue {
        capture.valid = false;
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread::number() {
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = is_joined(capture);
    let valid = capture.valid;
    let Some(capture) = state.captures.remove(&id) else { return Err(Code::ILLEGAL_STATE) };
    for &member in capture.frontiers.keys() {
        if let Ok(queue) = state.streams.queue_mut(member) {
            queue.capture = None;
        }
    }
    if !valid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    if !joined {
        return Err(Code::STREAM_CAPTURE_UNJOINED);
    }
    let graph = state.graphs.add(Graph { nodes: capture.nodes });
    call.made("graph", graph);
    Ok(graph)
}

/// `cuStreamIsCapturing` and the first half of `cuStreamGetCaptureInfo`: returns status and id, and
/// breaks no capture.
pub(crate) fn status(call: &mut Call, stream: u64) -> Answer<(i32, u64)> {
    let number = stream::find(&mut call.state, stream, call.context)?;
    let queue = call.state.streams.queue(number)?;
    context::check(&call.state, queue.context)?;
    if queue.kind == Kind::Legacy && !implicit(&call.state, number).is_empty() {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    let capture = queue.capture.and_then(|id| call.state.captures.get(&id).map(|capture| (id, capture)));
    let answer = match capture {
        None => (STATUS_NONE, 0),
        Some((id, capture)) if capture.valid => (STATUS_ACTIVE, id),
        Some((id, _)) => (STATUS_INVALIDATED, id),
    };
    call.out = Some(answer.0 as u64);
    Ok(answer)
}

/// The second half of `cuStreamGetCaptureInfo`: returns the address and the number of the nodes behind which the
/// next work of a capturing stream will come. Valid until the next such call for the stream.
pub(crate) fn shown_frontier(call: &mut Call, stream: u64) -> Answer<(*const u64, usize)> {
    let number = stream::find(&mut call.state, stream, call.context)?;
    let id = call.state.streams.queue(number)?.capture;
    let Some((id, capture)) = id.and_then(|id| Some((id, call.state.captures.get_mut(&id)?))) else {
        return Ok((std::ptr::null(), 0));
    };
    let frontier = capture.frontiers.get(&number).into_iter().flatten();
    let handles: Box<[u64]> = frontier.map(|&node| handle_of(id, node)).collect();
    let shown = capture.shown.entry(number).or_default();
    *shown = handles;
    Ok((shown.as_ptr(), shown.len()))
}

/// `cuGraphNodeGetDependencies`: returns the handles of the nodes right before a node of a capture under way.
pub(crate) fn predecessors(call: &Call, node: u64) -> Answer<Vec<u64>> {
    let place = node.checked_sub(NODES).filter(|place| place % 8 == 0).ok_or(Code::INVALID_VALUE)? / 8;
    let (id, number) = (place >> 24, (place & 0xff_ffff) as usize);
    let capture = call.state.captures.get(&id).ok_or(Code::INVALID_VALUE)?;
    let node = capture.nodes.get(number).ok_or(Code::INVALID_VALUE)?;
    Ok(node.after.iter().map(|&before| handle_of(id, before)).collect())
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_mode(mode: i32) -> Answer<i32> {
    if (GLOBAL..=RELAXED).contains(&mode) { Ok(thread::exchange_capture_mode(mode)) } else { Err(Code::INVALID_VALUE) }
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) fn instantiate(call: &mut Call, graph: u64) -> Answer<u64> {
    // Predecessors have lower numbers, so the order of recording is an order of execution.
    let nodes = &call.state.graphs.get(graph).map_err(|_| Code::INVALID_VALUE)?.nodes;
    let works: Arc<[Work]> = nodes.iter().map(|node| node.work.clone()).collect();
    let handle = call.state.executables.add(works);
    call.made("executable graph", handle);
    Ok(handle)
}

/// `cuGraphLaunch`.
pub(crate) fn launch(call: &mut Call, executable: u64, stream: u64) -> Answer<()> {
    let works = call.state.executables.get(executable).map_err(|_| Code::INVALID_VALUE)?;
    let works = Arc::clone(works);
    submit(call, stream, Work::Graph(works))
}

/// `cuGraphDestroy`.
pub(crate) fn destroy_graph(call: &mut Call, graph: u64) -> Answer<()> {
    call.state.graphs.remove(graph).map(drop).map_err(|_| Code::INVALID_VALUE)
}

/// `cuGraphExecDestroy`. Launches under way go on.
pub(crate) fn destroy_executable(call: &mut Call, executable: u64) -> Answer<()> {
    call.state.executables.remove(executable).map(drop).map_err(|_| Code::INVALID_VALUE)
}

/// Adds a node at a queue's frontier.
fn record(state: &mut State, id: u64, queue: u64, work: Work) {
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
fn implicit(state: &State, legacy: u64) -> Vec<u64> {
    let Ok(queue) = state.streams.queue(legacy) else { return Vec::new() };
    let context = queue.context;
    let others = state.streams.queues.values();
    let others = others.filter(|other| other.context == context && other.kind == Kind::Blocking);
    others.filter_map(|other| other.capture).collect()
}

/// Returns whether every node of every queue comes before the origin's frontier.
fn is_joined(capture: &Capture) -> bool {
    let mut before: BTreeSet<usize> = BTreeSet::new();
    let mut open: Vec<usize> = capture.frontiers.get(&capture.origin).cloned().unwrap_or_default();
    while let Some(number) = open.pop() {
        if before.insert(number) {
            open.extend(&capture.nodes[number].after);
        }
    }
    capture.frontiers.values().flatten().all(|number| before.contains(number))
}
