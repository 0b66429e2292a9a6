//! A program with work of some duration on the blocks, on a simulated device. The device reports
//! unordered work on shared physical memory.

use crate::consistency;
use crate::host::{DEVICE, Host, MIB};
use cachalot_core::simulated::{Call, Failure, Outstanding};
use cachalot_core::{DevicePtr, Error, Host as _, PageStats, PhysicalHandle, StreamId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Result of an operation: the allocator's error, if any.
///
/// The outer error is a message with the violated rule.
pub type Outcome = Result<Option<Error>, String>;

/// A step of a program. Numbers of blocks are taken modulo the count.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Step {
    /// Allocates a block, and queues a write to it.
    Malloc { bytes: u64, stream: u64 },
    /// Queues work on the stream of a block.
    Work { block: usize },
    /// Lets another stream use a block.
    Share { block: usize, stream: u64 },
    /// Frees a block.
    Free { block: usize },
    /// Completes all work of a stream.
    Complete { stream: u64 },
    /// Completes the oldest event of a stream.
    CompleteOne { stream: u64 },
    /// Begins or ends a capture unknown to the allocator.
    Capturing { stream: u64, on: bool },
    /// Processes pending frees whose events are complete.
    ProcessEvents,
    /// Empties the cache.
    EmptyCache,
    /// Releases cached memory down to a number of MiB.
    Trim { keep_mib: u64 },
    /// Does upkeep for a time.
    Maintain { us: u64 },
    /// Lets time pass, and does upkeep.
    Pass { ms: u64, us: u64 },
    /// Sets the limit to a number of MiB above the memory in use, or removes the limit.
    Limit { above_mib: Option<u64> },
    /// Reports a stream as destroyed.
    StreamDestroyed { stream: u64 },
    /// Pins a block, exports its first page, and unpins it.
    Export { block: usize },
}

/// A block of the program.
#[derive(Clone, Debug)]
pub struct Held {
    /// The address.
    pub ptr: DevicePtr,
    /// The requested bytes.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The physical memory under the block at the allocation.
    physical: Vec<(PhysicalHandle, Range<u64>)>,
    /// Whether a second stream uses the block. The block's own stream must then no longer write to
    /// the block.
    shared: bool,
}

/// A program, with its live blocks.
pub struct Working {
    /// The allocator and its device.
    pub host: Host,
    /// The blocks of the program.
    pub held: Vec<Held>,
    /// Capturing streams, unannounced to the allocator.
    capturing: BTreeSet<StreamId>,
}

impl Working {
    /// Starts a program on a device of `capacity` bytes.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: &str, capacity: u64) -> Self {
        Self::of(Host::new(config, capacity))
    }

    /// Starts a program on the device of a host.
    pub fn of(host: Host) -> Self {
        Self { host, held: Vec::new(), capturing: BTreeSet::new() }
    }

    /// Takes a step.
    ///
    /// # Errors
    /// The violated rule.
    pub fn take(&mut self, step: &Step) -> Outcome {
        let count = self.held.len().max(1);
        let (allocator, device) = (&self.host.allocator, self.host.device());
        Ok(match *step {
            Step::Malloc { bytes, stream } => return self.malloc(bytes, StreamId(stream)),
            Step::Work { block } => return self.work(block % count).map(|()| None),
            Step::Share { block, stream } => return self.share(block % count, StreamId(stream)),
            Step::Free { block } => self.free(block % count),
            Step::Complete { stream } => {
                device.complete(StreamId(stream));
                None
            }
            Step::CompleteOne { stream } => {
                device.complete_one(StreamId(stream));
                None
            }
            Step::Capturing { stream, on } => {
                self.set_capturing(StreamId(stream), on);
                None
            }
            Step::ProcessEvents => allocator.process_events(DEVICE).err(),
            Step::EmptyCache => allocator.empty_cache(DEVICE).err(),
            Step::Trim { keep_mib } => allocator.trim(DEVICE, keep_mib * MIB).err(),
            Step::Maintain { us } => allocator.pages(DEVICE).and_then(|pages| pages.maintain(us)).err(),
            Step::Pass { ms, us } => {
                device.pause(ms * 1000);
                allocator.pages(DEVICE).and_then(|pages| pages.maintain(us)).err()
            }
            Step::Limit { above_mib } => {
                let limit = above_mib.map(|mib| device.used() + mib * MIB);
                allocator.settings(DEVICE).map(|view| view.set_limit(limit)).err()
            }
            Step::StreamDestroyed { stream } => {
                let ended = allocator.stream_destroyed(DEVICE, StreamId(stream)).err();
                self.set_capturing(StreamId(stream), false);
                ended
            }
            Step::Export { block } => return self.export(block % count),
        })
    }

    /// Pins a block, exports the block's first page, and unpins the block, whether or not the
    /// export has failed. Afterwards the page may move again.
    fn export(&self, block: usize) -> Outcome {
        let Some(ptr) = self.held.get(block).map(|held| held.ptr) else { return Ok(None) };
        let pages = self.host.allocator.pages(DEVICE).map_err(|error| error.to_string())?;
        pages.pin(ptr).map_err(|error| error.to_string())?;
        let exported = pages.export(ptr);
        pages.unpin(ptr).map_err(|error| error.to_string())?;
        match pages.stats() {
            PageStats { pinned: 0, .. } => Ok(exported.err()),
            stats => Err(format!("after the export: {stats:?}")),
        }
    }

    /// Allocates a block on a stream, and queues a write to the block on the stream. Does nothing
    /// on a capturing stream.
    ///
    /// # Errors
    /// The block cannot be accessed, or is still in use.
    pub fn malloc(&mut self, bytes: u64, stream: StreamId) -> Outcome {
        if self.capturing.contains(&stream) {
            return Ok(None);
        }
        match self.host.allocator.malloc(DEVICE, bytes, stream) {
            Ok(ptr) => {
                let physical = self.host.device().physical(ptr, bytes).ok_or("a block cannot be accessed")?;
                self.held.push(Held { ptr, bytes, stream, physical, shared: false });
                self.work(self.held.len() - 1).map(|()| None)
            }
            Err(error) => Ok(Some(error)),
        }
    }

    /// Queues work on the block's own stream, unless the stream captures or a second stream uses
    /// the block.
    ///
    /// # Errors
    /// Unordered work uses the physical memory of the block.
    pub fn work(&self, block: usize) -> Result<(), String> {
        match self.held.get(block) {
            Some(held) if !held.shared && !self.capturing.contains(&held.stream) => self.launch(held, held.stream),
            _ => Ok(()),
        }
    }

    /// Lets another stream use a block, after the work of the block's own stream, and tells the
    /// allocator. Does nothing if a third stream uses the block, or the streams cannot be ordered.
    ///
    /// # Errors
    /// As for [`work`](Self::work).
    pub fn share(&mut self, block: usize, stream: StreamId) -> Outcome {
        let Some(held) = self.held.get(block).filter(|held| !held.shared && held.stream != stream) else {
            return Ok(None);
        };
        if self.host.device().order(stream, held.stream).is_err() {
            return Ok(None);
        }
        self.launch(held, stream)?;
        let error = self.host.allocator.record_stream(held.ptr, stream).err();
        self.held[block].shared = true;
        Ok(error)
    }

    fn launch(&self, held: &Held, stream: StreamId) -> Result<(), String> {
        let Held { ptr, bytes, .. } = *held;
        self.host.device().launch(stream, ptr, bytes).map_err(|why| format!("{bytes} bytes on {stream:?}: {why}"))
    }

    /// Frees a block, even during work on the block. A block whose free fails stays with the
    /// program.
    pub fn free(&mut self, block: usize) -> Option<Error> {
        let error = self.host.allocator.free(self.held.get(block)?.ptr).err();
        if error.is_none() {
            self.held.swap_remove(block);
        }
        error
    }

    /// Ends all captures, frees every block, and empties the cache.
    ///
    /// # Errors
    /// The first error of the allocator.
    pub fn give_back(&mut self) -> Result<(), String> {
        while let Some(&stream) = self.capturing.first() {
            self.set_capturing(stream, false);
        }
        while !self.held.is_empty() {
            if let Some(error) = self.free(0) {
                return Err(error.to_string());
            }
        }
        self.host.allocator.empty_cache(DEVICE).map_err(|error| error.to_string())
    }

    /// Begins or ends a capture unknown to the allocator.
    pub fn set_capturing(&mut self, stream: StreamId, on: bool) {
        self.host.device().set_capturing(stream, on);
        if on {
            self.capturing.insert(stream);
        } else {
            self.capturing.remove(&stream);
        }
    }

    /// Checks the invariants of the allocator. Also checks that no block has moved, that no two
    /// blocks share physical memory, and that the allocator describes each block as requested.
    ///
    /// # Errors
    /// A message with the violated rule.
    pub fn check(&self) -> Result<(), String> {
        consistency::check(&self.host.allocator, DEVICE, None)?;
        for held in &self.held {
            let Held { ptr, bytes, stream, physical, .. } = held;
            if self.host.device().physical(*ptr, *bytes).as_ref() != Some(physical) {
                return Err(format!("the memory under the block at {ptr} has changed"));
            }
            let found = self.host.allocator.base_of(ptr.offset(bytes - 1)).map_err(|error| error.to_string())?;
            let end = found.segment.offset(found.segment_bytes);
            let is_inside = found.segment <= *ptr && ptr.offset(found.size) <= end;
            if (found.base, found.requested, found.stream) != (*ptr, *bytes, *stream) || !is_inside {
                return Err(format!("{held:?} is described as {found:?}"));
            }
        }
        Ok(())
    }

    /// Checks the program after a step, of which the only error may be a lack of memory.
    ///
    /// # Errors
    /// The violated rule, or another error.
    pub fn judge(&self, outcome: Outcome) -> Result<(), String> {
        match outcome? {
            None | Some(Error::OutOfMemory(_)) => self.check_all(),
            Some(error) => Err(error.to_string()),
        }
    }

    /// Gives everything back, and checks that nothing is left with the device.
    ///
    /// # Errors
    /// The violated rule, or the remains.
    pub fn finish(&mut self) -> Result<(), String> {
        self.give_back()?;
        let left = self.host.device().outstanding();
        if left == Outstanding::default() { self.check() } else { Err(format!("{left:?} is left")) }
    }

    /// Ends the program after a failure of the device: nothing is lost or left, but for what the
    /// device may still hold because it failed to take it back.
    ///
    /// # Errors
    /// The violated rule, or the remains.
    pub fn survive(&mut self, failure: &Failure) -> Result<(), String> {
        let in_doubt = matches!(failure.call, Call::Unmap | Call::Destroy | Call::Unreserve);
        self.host.device().clear_failures();
        if !in_doubt {
            self.check_nothing_lost()?;
            return self.finish();
        }
        self.give_back()?;
        let (used, leaked) =
            (self.host.device().used(), self.host.allocator.stats(DEVICE).map(|view| view.leaked_bytes()));
        if leaked == Ok(used) { self.check() } else { Err(format!("{used} bytes are held, {leaked:?} lost")) }
    }

    /// Makes all checks, for a program without failing calls.
    ///
    /// # Errors
    /// A message with the violated rule.
    pub fn check_all(&self) -> Result<(), String> {
        self.check()?;
        self.check_nothing_lost()
    }

    /// Returns how often the device was called.
    pub fn calls(&self, call: Call) -> u64 {
        self.host.device().calls(call)
    }

    /// Returns the MiB in use on the device.
    pub fn used_mib(&self) -> u64 {
        self.host.device().used() / MIB
    }

    /// Returns the statistics of pages.
    ///
    /// # Panics
    /// Never.
    pub fn pages(&self) -> PageStats {
        self.host.allocator.pages(DEVICE).expect("there is one device").stats()
    }

    /// Checks that no memory was lost: the device refuses to unmap memory in use by work.
    ///
    /// # Errors
    /// A message with the number of bytes.
    pub fn check_nothing_lost(&self) -> Result<(), String> {
        match self.host.allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()) {
            Ok(0) => Ok(()),
            Ok(leaked) => Err(format!("{leaked} bytes were lost: memory in use was unmapped")),
            Err(error) => Err(error.to_string()),
        }
    }
}
