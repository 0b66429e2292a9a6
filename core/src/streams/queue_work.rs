//! The work that threads are doing on a queue of blocks that wait for a stream, while they call the
//! device without the lock of the queue.

use crate::tables::slot_table::NONE;

/// The calls in progress. During a recording, no other thread records on the stream, or removes the
/// block after which the event is recorded. During a poll, no thread removes a block that the
/// polled event covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueWork {
    /// No thread works on the queue.
    Idle,
    /// A thread polls the first event.
    Polling,
    /// A thread records an event after this block.
    Recording(u32),
    /// One thread polls the first event, and another one records an event after this block.
    PollingAndRecording(u32),
    /// A thread asks whether the stream is idle. This block was the last one when it started.
    Asking(u32),
}

impl QueueWork {
    /// Returns the last block of a recording or a question, or `NONE`.
    pub(super) fn last(self) -> u32 {
        match self {
            Self::Recording(last) | Self::PollingAndRecording(last) | Self::Asking(last) => last,
            Self::Idle | Self::Polling => NONE,
        }
    }

    /// Returns whether a thread is working on the first event, or on the place where it would be.
    pub(super) fn polls(self) -> bool {
        matches!(self, Self::Polling | Self::PollingAndRecording(_) | Self::Asking(_))
    }

    /// Returns the work with a poll added. `None` if a thread already polls, or asks whether the
    /// stream is idle.
    pub(super) fn with_poll(self) -> Option<Self> {
        match self {
            Self::Idle => Some(Self::Polling),
            Self::Recording(last) => Some(Self::PollingAndRecording(last)),
            Self::Polling | Self::PollingAndRecording(_) | Self::Asking(_) => None,
        }
    }

    /// Returns the work without the poll.
    pub(super) fn without_poll(self) -> Self {
        if let Self::PollingAndRecording(last) = self { Self::Recording(last) } else { Self::Idle }
    }

    /// Returns the work with a recording after `last` added. No thread is recording yet.
    pub(super) fn with_recording(self, last: u32) -> Self {
        if self == Self::Polling { Self::PollingAndRecording(last) } else { Self::Recording(last) }
    }

    /// Returns the work without the recording or the question.
    pub(super) fn without_recording(self) -> Self {
        if let Self::PollingAndRecording(_) = self { Self::Polling } else { Self::Idle }
    }
}
