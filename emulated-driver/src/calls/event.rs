//! Events: created, recorded, waited for, compared.

use crate::call::Call;
use crate::state::driver::State;
use crate::state::{captures, contexts, pools, threads};
use crate::tables::event::{Event, NO_CONTEXT, Point};
use crate::tables::stream::{Kind, Mark};
use crate::tables::work::{Stamp, Work};
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::sync::Arc;

/// All valid flags: blocking synchronization, no timing, interprocess.
const FLAGS: u32 = 7;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;

/// How many interprocess events a context has at most.
const INTERPROCESS_EVENTS: usize = 4096;

/// `cuEventCreate`.
pub(crate) fn cuEventCreate(call: &mut Call, event: Out<u64>, flags: u32) -> Answer<()> {
    call.answer(event, |call| create(call, flags))
}

/// Creates an event in the current context.
fn create(call: &mut Call, flags: u32) -> Answer<u64> {
    // An interprocess event must be without timing.
    if flags & !FLAGS != 0 || flags & (INTERPROCESS | WITHOUT_TIMING) == INTERPROCESS {
        return Err(Code::INVALID_VALUE);
    }
    let (context, is_shared) = (call.context, flags & INTERPROCESS != 0);
    let shared_of_context = |(_, event): &(u64, &Event)| event.is_shared && event.context == context;
    if is_shared && call.state.events.iter().filter(shared_of_context).count() >= INTERPROCESS_EVENTS {
        return Err(Code::OUT_OF_MEMORY);
    }
    let stamp = (flags & WITHOUT_TIMING == 0).then(Stamp::default);
    let event = Event { context, point: Point::Never, is_shared, stamp };
    let handle = call.state.events.add(event);
    call.made("event", handle);
    Ok(handle)
}

/// `cuEventDestroy_v2`. Work that waits for the event's last point continues to wait for the point.
pub(crate) fn cuEventDestroy_v2(call: &mut Call, handle: u64) -> Answer<()> {
    let context = find(&call.state, handle)?.context;
    contexts::check(&call.state, context)?;
    call.state.events.remove(handle).map(drop)
}

/// `cuEventRecord`.
pub(crate) fn cuEventRecord(call: &mut Call, handle: u64, stream: u64) -> Answer<()> {
    let queue = call.queue(stream)?;
    let event = find(&call.state, handle)?;
    if event.context == NO_CONTEXT {
        return Err(Code::CONTEXT_IS_DESTROYED);
    }
    let its = call.state.streams.queue(queue)?;
    if event.context != its.context {
        return Err(Code::INVALID_HANDLE);
    }
    contexts::check(&call.state, its.context)?;
    let (timed, is_shared) = (event.stamp.is_some(), event.is_shared);
    let stamp = timed.then(Stamp::default);
    let point = if let Some(id) = captures::of_queue(&mut call.state, queue)? {
        if is_shared {
            // The capture goes on.
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        Point::Captured(id, captures::frontier(&call.state, id, queue))
    } else {
        let work = stamp.as_ref().map_or(Work::Nothing, |stamp| Work::Stamp(Arc::clone(stamp)));
        threads::push(&mut call.state, queue, work, Vec::new())?;
        Point::At(vec![call.state.streams.end_of(queue)])
    };
    let event = call.state.events.get_mut(handle)?;
    (event.point, event.stamp) = (point, stamp);
    Ok(())
}

/// `cuEventQuery`.
pub(crate) fn cuEventQuery(call: &mut Call, handle: u64) -> Answer<()> {
    match waitable(&mut call.state, handle)? {
        Some(marks) if !reached(&call.state, &marks) => Err(Code::NOT_READY),
        _ => Ok(()),
    }
}

/// `cuEventSynchronize`.
pub(crate) fn cuEventSynchronize(call: &mut Call, handle: u64) -> Answer<()> {
    if let Some(marks) = waitable(&mut call.state, handle)? {
        let context = find(&call.state, handle)?.context;
        call.wait(|state| reached(state, &marks));
        pools::after_wait(&mut call.state);
        contexts::check(&call.state, context)?;
    }
    Ok(())
}

/// `cuEventElapsedTime_v2`.
pub(crate) fn cuEventElapsedTime_v2(call: &mut Call, milliseconds: Out<f32>, from: u64, to: u64) -> Answer<()> {
    cuEventElapsedTime(call, milliseconds, from, to)
}

/// `cuEventElapsedTime`.
pub(crate) fn cuEventElapsedTime(call: &mut Call, milliseconds: Out<f32>, from: u64, to: u64) -> Answer<()> {
    call.answer(milliseconds, |call| elapsed(call, from, to))
}

/// Returns the milliseconds between two recorded events with timing.
fn elapsed(call: &mut Call, from: u64, to: u64) -> Answer<f32> {
    let mut times = Vec::new();
    for handle in [from, to] {
        let marks = waitable(&mut call.state, handle)?.ok_or(Code::INVALID_HANDLE)?;
        let stamp = find(&call.state, handle)?.stamp.clone().ok_or(Code::INVALID_HANDLE)?;
        times.push((marks, stamp));
    }
    let reached = times.iter().all(|(marks, _)| reached(&call.state, marks));
    let (from, to) = (times[0].1.get(), times[1].1.get());
    match (reached, from, to) {
        (true, Some(&from), Some(&to)) => {
            let forward = to.saturating_duration_since(from).as_secs_f32();
            Ok(1e3 * (forward - from.saturating_duration_since(to).as_secs_f32()))
        }
        // Work dropped by a broken context has no time.
        (true, ..) => Err(Code::INVALID_HANDLE),
        (false, ..) => Err(Code::NOT_READY),
    }
}

/// `cuStreamWaitEvent`.
pub(crate) fn cuStreamWaitEvent(call: &mut Call, stream: u64, handle: u64, flags: u32) -> Answer<()> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let queue = call.queue(stream)?;
    let event = find(&call.state, handle)?;
    contexts::check(&call.state, event.context)?;
    let point = event.point.clone();
    captures::wait(&mut call.state, queue, &point)
}

/// Records an event on a whole context: the event is complete when all work of all streams so far
/// is.
pub(crate) fn record_on_context(call: &mut Call, context: u64, handle: u64) -> Answer<()> {
    let event = find(&call.state, handle)?;
    if event.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    let stamp = event.stamp.is_some().then(Stamp::default);
    let state = &mut *call.state;
    let mut marks = contexts::ends(state, context);
    if let Some(stamp) = &stamp {
        // The time needs a piece of work after all others: on a queue that no stream has.
        let its = state.contexts.get_mut(&context).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        let device = its.device;
        let queue = *its.event_queue.get_or_insert_with(|| state.streams.open(context, device, Kind::NonBlocking));
        threads::push(state, queue, Work::Stamp(Arc::clone(stamp)), marks)?;
        marks = vec![state.streams.end_of(queue)];
    }
    let event = call.state.events.get_mut(handle)?;
    (event.point, event.stamp) = (Point::At(marks), stamp);
    Ok(())
}

/// Lets all later work of a context come after an event.
pub(crate) fn make_context_wait(call: &mut Call, context: u64, handle: u64) -> Answer<()> {
    let event = find(&call.state, handle)?;
    contexts::check(&call.state, event.context)?;
    match event.point.clone() {
        Point::Never => Ok(()),
        Point::Captured(id, _) => captures::check_event(&mut call.state, id),
        Point::At(marks) => {
            let context = call.state.contexts.get_mut(&context).ok_or(Code::CONTEXT_IS_DESTROYED)?;
            context.after.extend(marks);
            Ok(())
        }
    }
}

/// Returns the event of a live handle.
fn find(state: &State, handle: u64) -> Answer<&Event> {
    state.refuse_retired("event", &state.events, handle);
    state.events.get(handle).map_err(|code| state.answers.outcome("event_unknown").err().unwrap_or(code))
}

/// Returns whether all marks are reached.
fn reached(state: &State, marks: &[Mark]) -> bool {
    marks.iter().all(|&mark| state.streams.reached(mark))
}

/// Returns the marks of an event, or `None` if the event was never recorded. A query is unsafe
/// during captures, and above all if the event belongs to a capture.
fn waitable(state: &mut State, handle: u64) -> Answer<Option<Vec<Mark>>> {
    let event = find(state, handle)?;
    contexts::check(state, event.context)?;
    match event.point.clone() {
        Point::Never => captures::check_unsafe(state).map(|()| None),
        Point::At(marks) => captures::check_unsafe(state).map(|()| Some(marks)),
        Point::Captured(id, _) => captures::check_event(state, id).map(|()| None),
    }
}
