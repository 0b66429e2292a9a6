//! A recorded program as the explicit calls that an allocator receives: what a record only implies is said here.

use super::Settings;
use cachalot_core::pool::{PoolId, PoolOptions, Route};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::storage::Growable;
use cachalot_core::units::{DeviceIndex, DevicePtr, StreamId};
use cachalot_core::{Allocator, Error};

/// The allocator that programs are run on.
pub type Simulated = Allocator<SimulatedDevice, parking_lot::RawMutex, Growable>;

/// The one device of a program.
pub(super) const DEVICE: DeviceIndex = DeviceIndex(0);

/// The pool that all captured graphs of a program share. A record does not name it; `PyTorch` names its first one so.
pub(super) const GRAPHS: PoolId = PoolId(0, 1);

/// One call. Blocks are known by a number, which is used again once the block is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Requests `bytes` for use on `stream`, and calls the block `slot`.
    Malloc {
        /// How many.
        bytes: u64,
        /// Where.
        stream: StreamId,
        /// The block's number.
        slot: u32,
    },
    /// Requests `bytes` that the recorded program did not get. If they are had now, they are given back at once.
    Refused {
        /// How many.
        bytes: u64,
        /// Where.
        stream: StreamId,
    },
    /// Frees a block.
    Free {
        /// The block's number.
        slot: u32,
    },
    /// Announces that `stream` uses a block.
    RecordStream {
        /// The block's number.
        slot: u32,
        /// The user.
        stream: StreamId,
    },
    /// The work on `stream` is done, and the allocator asks after it.
    Complete {
        /// Which.
        stream: StreamId,
    },
    /// Gives back what is cached.
    EmptyCache,
    /// A graph's capture begins.
    BeginCapture,
    /// `stream` takes part in the capture.
    Capture {
        /// Which.
        stream: StreamId,
    },
    /// The capture ends.
    EndCapture,
    /// Every captured graph is destroyed.
    DestroyGraphs,
}

/// The calls of a whole program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// In order.
    pub operations: Vec<Operation>,
    /// How many blocks are held at once at most.
    pub slots: u32,
}

/// A program's run: an allocator, and what the program holds of it.
pub(super) struct Run {
    /// The allocator.
    pub(super) allocator: Simulated,
    /// The block of every slot; null where there is none.
    pub(super) blocks: Vec<DevicePtr>,
    /// The streams that take part in the present capture.
    capturing: Vec<StreamId>,
}

impl Run {
    /// A run on a fresh device of `capacity` bytes.
    pub(super) fn new(settings: &Settings, capacity: u64) -> Result<Self, Error> {
        let allocator = Simulated::new([SimulatedDevice::new(capacity)], &settings.config)?;
        // Without a limit of its own, one that the configuration sets as a fraction stays in force.
        if settings.limit.is_some() {
            allocator.set_limit(DEVICE, settings.limit)?;
        }
        Ok(Self { allocator, blocks: Vec::new(), capturing: Vec::new() })
    }

    /// The device.
    pub(super) fn device(&self) -> &SimulatedDevice {
        self.allocator.device(DEVICE).expect("a run has one device")
    }

    /// Makes one call. Running out of memory is an outcome, not an error.
    pub(super) fn perform(&mut self, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::Malloc { bytes, stream, slot } => {
                let block = self.malloc(bytes, stream)?;
                match self.blocks.get_mut(slot as usize) {
                    Some(place) => *place = block,
                    None => self.blocks.push(block),
                }
                Ok(())
            }
            Operation::Refused { bytes, stream } => {
                let block = self.malloc(bytes, stream)?;
                self.allocator.free(block)
            }
            Operation::Free { slot } => {
                let block = std::mem::take(&mut self.blocks[slot as usize]);
                self.allocator.free(block)
            }
            Operation::RecordStream { slot, stream } => {
                self.allocator.record_stream(self.blocks[slot as usize], stream)
            }
            Operation::Complete { stream } => {
                self.device().complete(stream);
                self.allocator.process_events(DEVICE)
            }
            Operation::EmptyCache => self.allocator.empty_cache(DEVICE),
            _ => self.turn_capture(operation),
        }
    }

    /// A block, or null if there is no memory for it.
    fn malloc(&self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        match self.allocator.malloc(DEVICE, bytes, stream) {
            Err(Error::OutOfMemory(_)) => Ok(DevicePtr::NULL),
            outcome => outcome,
        }
    }

    /// The calls that have to do with graphs.
    fn turn_capture(&mut self, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::BeginCapture => {
                self.allocator.retain_pool(DEVICE, GRAPHS, PoolOptions::default())?;
                self.allocator.begin_capture(DEVICE, GRAPHS, Route::All)
            }
            Operation::Capture { stream } => {
                self.capturing.push(stream);
                self.device().set_capturing(stream, true);
                Ok(())
            }
            Operation::EndCapture => {
                while let Some(stream) = self.capturing.pop() {
                    self.device().set_capturing(stream, false);
                }
                self.allocator.end_capture(DEVICE, GRAPHS)
            }
            _ => {
                while self.allocator.pool_users(DEVICE, GRAPHS).is_ok_and(|users| users > 0) {
                    self.allocator.release_pool(DEVICE, GRAPHS)?;
                }
                Ok(())
            }
        }
    }

    /// Runs a program to its end.
    pub(super) fn perform_all(&mut self, program: &Program) -> Result<(), Error> {
        program.operations.iter().try_for_each(|&operation| self.perform(operation))
    }

    /// Runs a program to its end. Answers how many bytes it asked for and held, at the highest.
    pub(super) fn perform_watching(&mut self, program: &Program) -> Result<u64, Error> {
        let mut held = vec![0; program.slots as usize];
        let (mut live, mut peak) = (0, 0);
        for &operation in &program.operations {
            self.perform(operation)?;
            match operation {
                Operation::Malloc { bytes, slot, .. } if self.blocks[slot as usize] != DevicePtr::NULL => {
                    held[slot as usize] = bytes;
                    live += bytes;
                }
                Operation::Free { slot } => live -= std::mem::take(&mut held[slot as usize]),
                _ => {}
            }
            peak = peak.max(live);
        }
        Ok(peak)
    }

    /// Gives back what the program left behind, so that it can run again. The cache stays.
    pub(super) fn clean_up(&mut self) -> Result<(), Error> {
        if !self.capturing.is_empty() {
            self.perform(Operation::EndCapture)?;
        }
        for block in &mut self.blocks {
            self.allocator.free(std::mem::take(block))?;
        }
        self.perform(Operation::DestroyGraphs)
    }
}
