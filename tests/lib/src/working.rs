//! A program with work of some duration on the blocks, on a simulated device. The device reports
//! unordered work on shared physical memory.

use crate::consistency;
use crate::host::{DEVICE, Host};
use cachalot_core::{DevicePtr, Error, PhysicalHandle, StreamId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Result of an operation: the allocator's error, if any.
///
/// The outer error is a message with the violated rule.
pub type Outcome = Result<Option<Error>, String>;

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

    /// Frees every block, and empties the cache.
    ///
    /// # Errors
    /// The first error of the allocator.
    pub fn give_back(&mut self) -> Result<(), String> {
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

    /// Checks that no memory was lost: the device refuses to unmap memory in use by work.
    ///
    /// # Errors
    /// A message with the number of bytes.
    pub fn check_nothing_lost(&self) -> Result<(), String> {
        match self.host.allocator.leaked_bytes(DEVICE) {
            Ok(0) => Ok(()),
            Ok(leaked) => Err(format!("{leaked} bytes were lost: memory in use was unmapped")),
            Err(error) => Err(error.to_string()),
        }
    }
}
