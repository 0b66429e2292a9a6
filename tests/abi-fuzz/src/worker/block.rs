//! Blocks of the program, and work on their memory in the order of streams.

use super::Worker;
use crate::contents::{Action, Contents, Job, run};
use crate::driver::insist;
use crate::finding;
use crate::permitted::Situation;
use crate::places::{Domain, Kind, Life, Stream};
use crate::world::add;
use crate::{abi, places};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A live block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// The stream of the request.
    pub(crate) stream: Arc<Stream>,
    /// The domain of the memory.
    pub(crate) domain: Arc<Domain>,
    /// Number of the domain's changes contained in `contents`.
    pub(crate) seen: usize,
    pub(crate) contents: Contents,
    /// The stream of the latest write, at first the stream of the request.
    pub(crate) writer: Arc<Stream>,
    /// The streams of all reads since the latest write.
    pub(crate) readers: Vec<Arc<Stream>>,
}

impl Block {
    /// Returns a new block.
    pub(crate) fn new(address: u64, bytes: usize, stream: &Arc<Stream>, domain: &Arc<Domain>, seen: usize) -> Self {
        Self {
            address,
            bytes,
            stream: Arc::clone(stream),
            domain: Arc::clone(domain),
            seen,
            contents: Contents::Unknown,
            writer: Arc::clone(stream),
            readers: Vec::new(),
        }
    }
}

impl Worker {
    /// Queues a job on a stream, which is alive.
    pub(crate) fn submit(&self, on: &Stream, address: u64, bytes: usize, action: Action, stays: bool) -> *mut Job {
        let shift = self.world.shifts[on.device];
        let origin = finding::origin();
        let argument = Job { address, bytes, shift, action, origin, stays }.into_argument();
        self.enter(on.device);
        insist("cuLaunchHostFunc", || self.world.driver.launch_host(on.handle, run, argument));
        if matches!(action, Action::Check(contents) if contents != Contents::Unknown) {
            add(&self.world.tally.checked);
        }
        argument.cast()
    }

    /// Orders a live stream after the work of another stream. Returns whether the order was
    /// possible.
    pub(crate) fn order(&self, on: &Arc<Stream>, before: &Arc<Stream>) -> bool {
        if Arc::ptr_eq(on, before) {
            return true;
        }
        let life = before.life.read_recursive();
        let driver = &self.world.driver;
        let event = match *life {
            Life::Ended(event) => event,
            Life::Alive if !before.is_usable_by(self.id) => return false,
            Life::Alive => {
                self.enter(before.device);
                let event = self.events[before.device];
                insist("cuEventRecord", || driver.event_record(event, before.handle));
                event
            }
        };
        self.enter(on.device);
        insist("cuStreamWaitEvent", || driver.stream_wait(on.handle, event, 0));
        true
    }

    /// Writes or checks a block on a stream, in an order demanded by the contract. Returns whether
    /// the access was possible.
    pub(crate) fn touch(&self, block: &mut Block, on: &Arc<Stream>, write: bool) -> bool {
        let domain = Arc::clone(&block.domain);
        let Some(_awake) = domain.awake() else { return false };
        let Some(_alive) = on.alive() else { return false };
        let own = Arc::clone(&block.stream);
        let foreign = !Arc::ptr_eq(on, &own);
        // Uses on the legacy stream cannot be announced: the block's own stream must wait for them.
        let own_alive = own.alive().filter(|_| own.is_usable_by(self.id));
        if !on.is_usable_by(self.id) || (foreign && on.kind == Kind::Legacy && own_alive.is_none()) {
            return false;
        }
        block.contents = domain.after(block.contents, &mut block.seen);
        let behind_reads = !write || block.readers.iter().all(|reader| self.order(on, reader));
        if !self.order(on, &block.writer) || !behind_reads {
            return false;
        }
        if write {
            let tag = self.world.tags.fetch_add(1, Ordering::Relaxed);
            self.submit(on, block.address, block.bytes, Action::Write(tag), false);
            block.contents = Contents::Tag(tag);
            block.writer = Arc::clone(on);
            block.readers.clear();
        } else {
            self.submit(on, block.address, block.bytes, Action::Check(block.contents), false);
            if !block.readers.iter().any(|reader| Arc::ptr_eq(reader, on)) {
                block.readers.push(Arc::clone(on));
            }
        }
        if foreign && on.kind == Kind::Legacy {
            self.order(&own, on);
        } else if foreign {
            self.announce(block, on);
        }
        true
    }

    /// Announces the use of a block on a stream. After a failure, waits for the use.
    fn announce(&self, block: &Block, on: &Stream) {
        let (at, stream) = (abi::pointer(block.address), abi::stream(on.handle));
        let allocator = self.world.allocator;
        let reply = match finding::origin().op % 3 {
            0 => allocator.record_use(at, stream),
            _ => allocator.record_stream(at, stream),
        };
        if !reply.judge(self.world.situation() | Situation::NONE) {
            insist("cuStreamSynchronize", || self.world.driver.stream_synchronize(on.handle));
        }
    }

    /// Returns a stream on which the calling thread can check a block: the block's own stream, or
    /// any stream of the device.
    pub(crate) fn stream_for(&mut self, block: &Block) -> Arc<places::Stream> {
        let own = &block.stream;
        if own.is_usable_by(self.id) && own.alive().is_some() {
            return Arc::clone(own);
        }
        self.any_stream_of(own.device)
    }
}
