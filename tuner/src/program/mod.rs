//! Recorded programs as explicit calls of an allocator. Calls that a record only implies are
//! listed, too.

mod halves;
mod learn;
mod leave_out;
mod passes;
mod run;
mod scale;
mod subject;
mod time;

pub use leave_out::LeftOut;
pub use passes::DriverTime;
pub use passes::{Passes, Position, Refusal};
pub use run::Run;
pub use subject::{DEVICE, GRAPHS, Settings, Simulates, Subject};
pub use time::{median, nanoseconds_per_call};

use cachalot_core::{PoolId, StreamId};

/// A call of an allocator. A block has a number, which is reused after its free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Requests `bytes` bytes for use on `stream`, and names the block `slot`.
    Malloc {
        /// The size in bytes.
        bytes: u64,
        /// The stream.
        stream: StreamId,
        /// The block's number.
        slot: u32,
    },
    /// Requests `bytes` bytes that the recorded program did not get. If the request succeeds, the
    /// block is freed at once.
    Refused {
        /// The size in bytes.
        bytes: u64,
        /// The stream.
        stream: StreamId,
    },
    /// Frees a block.
    Free {
        /// The block's number.
        slot: u32,
    },
    /// Announces the use of a block on `stream`.
    RecordStream {
        /// The block's number.
        slot: u32,
        /// The stream that uses the block.
        stream: StreamId,
    },
    /// Completes the work on `stream`, and lets the allocator poll for completion.
    Complete {
        /// The stream.
        stream: StreamId,
    },
    /// Releases cached memory.
    EmptyCache,
    /// Announces the end of an iteration and the start of the next one.
    Announce,
    /// The capture of a graph starts.
    BeginCapture,
    /// `stream` takes part in the capture.
    Capture {
        /// The stream.
        stream: StreamId,
    },
    /// The capture ends.
    EndCapture,
    /// Leads later requests into a private pool, or into the default pool again. The pool counts as
    /// one of captured graphs: its memory serves no other pool, and stays.
    Route {
        /// The pool.
        pool: PoolId,
    },
    /// The graphs of a private pool are destroyed: its free memory can be released.
    Destroy {
        /// The pool.
        pool: PoolId,
    },
}

impl Operation {
    /// Returns whether the call requests memory.
    pub fn is_request(self) -> bool {
        matches!(self, Self::Malloc { .. } | Self::Refused { .. })
    }
}

/// The calls of a whole program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The calls in order.
    pub operations: Vec<Operation>,
    /// The greatest number of live blocks.
    pub slots: u32,
    /// The number of calls at the start that make again what the program held before its record
    /// began. Their cost is not the program's.
    pub start: usize,
}
