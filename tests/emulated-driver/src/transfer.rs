//! Fills and copies: argument checks, and the order with the host that CUDA documents for pageable memory.

use crate::capture;
use crate::code::{Answer, Code};
use crate::context;
use crate::memory;
use crate::session::Session;
use crate::stream;
use crate::work::{Place, Work};
use std::sync::Arc;

/// `cuMemsetD8Async`.
pub(crate) fn fill(session: &mut Session, address: u64, value: u8, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    let device = resolve(session, address, bytes, stream)?;
    capture::submit(session, stream, Work::Fill { device, address, bytes, value })
}

/// `cuMemcpyHtoDAsync_v2`. The host memory may be used again when the call returns, as with pageable memory on a real
/// device; in a capture it is read at each replay instead.
pub(crate) fn to_device(session: &mut Session, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    if from == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = resolve(session, to, bytes, stream)?;
    let queue = stream::find(&mut session.state, stream, session.context)?;
    let from = if capture::of_queue(&mut session.state, queue)?.is_some() {
        Place::Host(from)
    } else {
        // SAFETY: the caller promises `bytes` readable bytes at `from`, as for the real function.
        let data = unsafe { std::slice::from_raw_parts(from as *const u8, bytes as usize) };
        Place::Kept(Arc::from(data))
    };
    capture::submit(session, stream, Work::Copy { to: Place::Device { device, address: to }, from, bytes })
}

/// `cuMemcpyDtoHAsync_v2`. Returns when the copy is done, as for pageable memory on a real device; in a capture it is
/// recorded.
pub(crate) fn to_host(session: &mut Session, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = resolve(session, from, bytes, stream)?;
    let from = Place::Device { device, address: from };
    capture::submit(session, stream, Work::Copy { to: Place::Host(to), from, bytes })?;
    let queue = stream::find(&mut session.state, stream, session.context)?;
    if capture::of_queue(&mut session.state, queue)?.is_some() {
        return Ok(());
    }
    finish(session, queue)
}

/// `cuMemcpyDtoDAsync_v2`.
pub(crate) fn on_device(session: &mut Session, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    let to = Place::Device { device: resolve(session, to, bytes, stream)?, address: to };
    let from = Place::Device { device: resolve(session, from, bytes, stream)?, address: from };
    capture::submit(session, stream, Work::Copy { to, from, bytes })
}

/// `cuMemcpyHtoD_v2`: on the legacy stream, done when it returns.
pub(crate) fn to_device_now(session: &mut Session, to: u64, from: u64, bytes: u64) -> Answer<()> {
    to_device(session, to, from, bytes, 0)?;
    let queue = stream::find(&mut session.state, 0, session.context)?;
    finish(session, queue)
}

/// `cuStreamSynchronize`.
pub(crate) fn synchronize(session: &mut Session, stream: u64) -> Answer<()> {
    let queue = stream::find(&mut session.state, stream, session.context)?;
    capture::check_wait(&mut session.state, queue)?;
    capture::check_unsafe(&mut session.state)?;
    finish(session, queue)
}

/// `cuStreamQuery`.
pub(crate) fn query(session: &mut Session, stream: u64) -> Answer<()> {
    let queue = stream::find(&mut session.state, stream, session.context)?;
    capture::check_wait(&mut session.state, queue)?;
    capture::check_unsafe(&mut session.state)?;
    let context = session.state.streams.queue(queue)?.context;
    context::check(&session.state, context)?;
    let streams = &session.state.streams;
    let done = streams.ends_of_stream(queue).into_iter().all(|mark| streams.reached(mark));
    if done { Ok(()) } else { Err(Code::NOT_READY) }
}

/// Waits for everything queued so far.
fn finish(session: &mut Session, queue: u64) -> Answer<()> {
    let context = session.state.streams.queue(queue)?.context;
    context::check(&session.state, context)?;
    let marks = session.state.streams.ends_of_stream(queue);
    session.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    context::check(&session.state, context)
}

/// The device through whose eyes work on a stream uses a range.
fn resolve(session: &mut Session, address: u64, bytes: u64, stream: u64) -> Answer<usize> {
    let queue = stream::find(&mut session.state, stream, session.context)?;
    let device = session.state.streams.queue(queue)?.device;
    memory::resolve(&session.state, address, bytes, device)
}
