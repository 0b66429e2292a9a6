//! Work of a driver call, queued or recorded, and the memory that the work uses.

use crate::backing::space::DeviceAccess;
use crate::call::Call;
use crate::state::{captures, contexts, regions, threads};
use crate::tables::work::Work;
use crate::values::code::Answer;

/// Queues work, or records the work if the stream captures.
pub(crate) fn submit(call: &mut Call, stream: u64, work: Work) -> Answer<()> {
    let queue = call.queue(stream)?;
    let context = call.state.streams.queue(queue)?.context;
    contexts::check(&call.state, context)?;
    match captures::of_queue(&mut call.state, queue)? {
        None => threads::push(&mut call.state, queue, work, Vec::new()),
        Some(id) => {
            captures::record(&mut call.state, id, queue, work);
            Ok(())
        }
    }
}

/// Returns the device in whose view work on a stream uses a range.
pub(crate) fn resolve(call: &mut Call, address: u64, bytes: u64, stream: u64, needed: DeviceAccess) -> Answer<usize> {
    let queue = call.queue(stream)?;
    let device = call.state.streams.queue(queue)?.device;
    regions::resolve(&call.state, address, bytes, device, needed)
}

/// Returns whether an address is, or was, an address of device memory.
pub(crate) fn is_of_device(call: &Call, address: u64) -> bool {
    call.state.space.as_ref().is_some_and(|space| space.has(address))
}
