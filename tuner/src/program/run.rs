//! The run of a program: an allocator with the blocks of the program.

use super::Operation;
use super::subject::{GRAPHS, Subject};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{DevicePtr, Error, PoolId, StreamId};

/// A run of a program.
#[derive(Debug)]
pub struct Run<A> {
    /// The allocator.
    pub allocator: A,
    /// The block of every slot, or null if a slot is empty.
    pub blocks: Vec<DevicePtr>,
    /// The time of each of the two calls of upkeep between two passes, in microseconds; 0 for no
    /// call.
    pub upkeep_us: u64,
    /// The streams of the present capture.
    capturing: Vec<StreamId>,
    /// The pool that requests are led into.
    route: PoolId,
    /// The private pools that graphs use.
    pools: Vec<PoolId>,
    /// The number of requests that ran out of memory.
    pub ooms: u64,
    /// The size of the largest failed request in bytes.
    pub largest_failed: u64,
    /// The number of failed requests that the recorded program was served.
    pub new_ooms: u64,
}

impl<A: Subject> Run<A> {
    /// Starts a run on a fresh allocator.
    pub fn new(allocator: A) -> Self {
        Self {
            allocator,
            blocks: Vec::new(),
            upkeep_us: 0,
            capturing: Vec::new(),
            route: PoolId::DEFAULT,
            pools: Vec::new(),
            ooms: 0,
            largest_failed: 0,
            new_ooms: 0,
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &SimulatedDevice {
        self.allocator.device()
    }

    /// Makes a call. It is an outcome, and not an error, if a request runs out of memory.
    ///
    /// # Errors
    /// The other errors of the allocator.
    pub fn perform(&mut self, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::Malloc { bytes, stream, slot } => {
                let block = self.malloc(bytes, stream)?;
                self.new_ooms += u64::from(block == DevicePtr::NULL);
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
                self.allocator.process_events()
            }
            Operation::EmptyCache => self.allocator.empty_cache(),
            Operation::Announce => self.allocator.announce(),
            Operation::BeginCapture => {
                if !self.pools.contains(&GRAPHS) {
                    self.pools.push(GRAPHS);
                }
                self.allocator.begin_capture()
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
                self.allocator.end_capture()
            }
            Operation::Route { pool } => self.lead(pool),
            Operation::Destroy { pool } => self.destroy(pool),
        }
    }

    /// Requests a block. Returns null if there is too little memory.
    fn malloc(&mut self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        match self.allocator.malloc(bytes, stream) {
            Err(Error::OutOfMemory(_)) => {
                self.ooms += 1;
                self.largest_failed = self.largest_failed.max(bytes);
                Ok(DevicePtr::NULL)
            }
            outcome => outcome,
        }
    }

    /// Makes a private pool one that graphs use, unless it is one.
    ///
    /// # Errors
    /// Those of the allocator.
    pub fn keep(&mut self, pool: PoolId) -> Result<(), Error> {
        if !self.pools.contains(&pool) {
            self.allocator.keep_pool(pool)?;
            self.pools.push(pool);
        }
        Ok(())
    }

    /// Returns the private pools that graphs use.
    pub fn pools(&self) -> &[PoolId] {
        &self.pools
    }

    /// Leads later requests into a pool.
    fn lead(&mut self, pool: PoolId) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.route, PoolId::DEFAULT);
        if before != PoolId::DEFAULT {
            self.allocator.end_route(before)?;
        }
        if pool != PoolId::DEFAULT {
            self.keep(pool)?;
            self.allocator.begin_route(pool)?;
            self.route = pool;
        }
        Ok(())
    }

    fn destroy(&mut self, pool: PoolId) -> Result<(), Error> {
        if self.route == pool {
            self.lead(PoolId::DEFAULT)?;
        }
        self.pools.retain(|&other| other != pool);
        self.allocator.destroy_pool(pool)
    }

    /// Makes several calls.
    ///
    /// # Errors
    /// The first refusal.
    pub fn perform_all(&mut self, operations: &[Operation]) -> Result<(), Error> {
        operations.iter().try_for_each(|&operation| self.perform(operation))
    }

    /// Returns whether a graph is being captured.
    pub fn is_capturing(&self) -> bool {
        !self.capturing.is_empty()
    }
}
