//! A block that a thread of the world holds.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{DevicePtr, StreamId};
use cachalot_tests::claims::{Claims, Marks, Place};

/// A block that a thread of the world holds.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Unique in the world.
    pub number: u64,
    pub ptr: DevicePtr,
    pub bytes: u64,
    /// The own stream.
    pub home: StreamId,
    /// The stream of the last use.
    pub last: StreamId,
    /// The contents at the first use.
    marks: Marks,
}

impl Block {
    pub(crate) fn new(number: u64, ptr: DevicePtr, bytes: u64, home: StreamId) -> Self {
        Self { number, ptr, bytes, home, last: home, marks: Marks::default() }
    }

    pub(crate) fn place(&self) -> Place {
        Place { number: self.number, ptr: self.ptr, bytes: self.bytes }
    }

    /// Notes the contents under the block.
    pub(crate) fn mark(&mut self, device: &SimulatedDevice) {
        self.marks = Marks::default();
        self.marks.add(device, self.ptr, self.bytes);
    }

    /// Compares the contents with the marks.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn check_contents(&self, device: &SimulatedDevice) -> Result<(), String> {
        self.marks.check(device).map_err(|what| format!("{} of {:?} has {what}", self.place(), self.home))
    }

    /// Compares the memory with that of the first use, and the contents, unless the block is
    /// parked.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn check(&self, claims: &Claims, device: &SimulatedDevice) -> Result<(), String> {
        if !claims.has_memory(self.place()) {
            return Ok(());
        }
        claims.check(device, self.place())?;
        self.check_contents(device)
    }
}
