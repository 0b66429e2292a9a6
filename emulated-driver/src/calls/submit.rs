//! Work of a driver call, queued or recorded.

use crate::call::Call;
use crate::state::{captures, contexts, threads};
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
