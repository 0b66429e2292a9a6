//! Recorded programs as explicit calls of an allocator. Calls implied by a record are spelled out.

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
pub use subject::{DEVICE, Settings, Simulates, Subject};
pub use time::{median, nanoseconds_per_call};

use cachalot_core::StreamId;

/// A call. A block has a number, which is reused after the free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Requests `bytes` for use on `stream`, and names the block `slot`.
    Malloc {
        /// Size in bytes.
        bytes: u64,
        /// The stream.
        stream: StreamId,
        /// The block's number.
        slot: u32,
    },
    /// Requests `bytes` that the recorded program was refused. A successful request is freed at
    /// once.
    Refused {
        /// Size in bytes.
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
        /// The using stream.
        stream: StreamId,
    },
    /// Completes the work on `stream`, and lets the allocator poll for completion.
    Complete {
        /// The stream.
        stream: StreamId,
    },
    /// Releases cached memory.
    EmptyCache,
    /// Announces the end of an iteration and the start of the next.
    Announce,
    /// A graph's capture starts.
    BeginCapture,
    /// `stream` takes part in the capture.
    Capture {
        /// The stream.
        stream: StreamId,
    },
    /// The capture ends.
    EndCapture,
    /// Every captured graph is destroyed.
    DestroyGraphs,
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
    /// Greatest number of live blocks.
    pub slots: u32,
}
