//! A recorded program as the explicit calls that an allocator receives: what a record only implies is said here.

mod learn;
mod leave_out;
mod passes;
mod run;
mod subject;
mod time;

pub use leave_out::LeftOut;
pub use passes::DriverTime;
pub(crate) use passes::{Position, Refusal};
pub(crate) use run::Run;
pub(crate) use subject::DEVICE;
pub use subject::{OnDevice, Settings, Subject, allocator};
pub use time::median;
pub(crate) use time::nanoseconds_per_call;

use cachalot_core::StreamId;

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
    /// Announces that an iteration ends, and that the next one begins.
    Announce,
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
