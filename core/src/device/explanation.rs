//! What is known of an address at which a kernel has gone wrong: the nearest block, and the block's
//! life.

use crate::units::{DeviceIndex, DevicePtr, StreamId};
use core::fmt;

/// Number of streams that are remembered of a block.
pub(crate) const STREAMS: usize = 6;

/// The streams that were said to use a block.
pub(crate) type UsedOn = heapless::Vec<StreamId, STREAMS>;

/// Who has the block of an [`Explanation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Holder {
    /// The program.
    Program,
    /// Work: the program has freed the block, and the work known at the free may go on.
    Work,
    /// No holder is left: the work known at the free is complete, and the addresses are unmapped.
    Nobody,
}

/// Where an address lies relative to a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Offset {
    /// So many bytes below the first byte.
    Before(u64),
    /// So many bytes into the requested bytes.
    Inside(u64),
    /// So many bytes behind the last requested byte.
    Behind(u64),
}

/// What is known of an address: the nearest block, and the block's life.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The address asked about.
    pub address: DevicePtr,
    /// The first byte of the block.
    pub block: DevicePtr,
    /// Bytes requested by the program.
    pub requested: u64,
    /// Bytes of the block: `requested`, rounded up, or more.
    pub size: u64,
    /// The block's own stream.
    pub stream: StreamId,
    /// The device of the block.
    pub device: DeviceIndex,
    /// Who has the block.
    pub holder: Holder,
    /// Whether the block is [guarded](crate::config::Guard).
    pub guarded: bool,
    /// Whether the address lies in free memory behind the block: a kernel has gone beyond the
    /// block, or has used a block there that was freed before.
    pub in_free_memory: bool,
    /// The call sites of the request and of the free, by the host's numbers; 0 if unknown.
    pub allocated_at: u32,
    /// The call site of the free.
    pub freed_at: u32,
    /// How many guarded blocks were freed after this one.
    pub frees_since: u64,
    /// The first streams, beside the block's own, that were said to use the block.
    pub(crate) used_on: UsedOn,
}

impl Explanation {
    /// Returns the streams, beside the block's own, that were said to use the block, up to its
    /// free: the first six.
    #[must_use]
    pub fn used_on(&self) -> &[StreamId] {
        &self.used_on
    }

    /// Returns the explanation with the uses known to another one of the same block.
    pub(crate) fn with_uses(mut self, other: &Self) -> Self {
        self.used_on.clone_from(&other.used_on);
        self
    }

    /// Returns where the address lies relative to the block.
    #[must_use]
    pub fn offset(&self) -> Offset {
        let (at, begin) = (self.address.0, self.block.0);
        match at.checked_sub(begin) {
            None => Offset::Before(begin - at),
            Some(offset) if offset < self.requested => Offset::Inside(offset),
            Some(offset) => Offset::Behind(offset - self.requested),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, block, requested, stream, .. } = self;
        write!(f, "{address} lies ")?;
        if self.in_free_memory {
            f.write_str("in free memory, ")?;
        }
        match self.offset() {
            Offset::Before(bytes) => write!(f, "{bytes} bytes before the")?,
            Offset::Inside(bytes) => write!(f, "{bytes} bytes into the")?,
            Offset::Behind(bytes) => write!(f, "{bytes} bytes behind the end of the")?,
        }
        write!(f, " block of {requested} bytes at {block}, which was allocated on {stream:?}. ")?;
        f.write_str(match self.holder {
            Holder::Program => "The program holds the block.",
            Holder::Work => "The block was freed, and waits for work known at the free.",
            Holder::Nobody => {
                "The block was freed. The work known at the free was complete, so the addresses were unmapped: work that \
                 the free did not know has used the block."
            }
        })?;
        if self.holder == Holder::Nobody && self.frees_since > 0 {
            write!(f, " Since then, {} guarded blocks were freed.", self.frees_since)?;
        }
        match (self.used_on.split_first(), self.holder) {
            (None, Holder::Program) => f.write_str(" No other stream is said to use it."),
            (None, _) => f.write_str(" No other stream was said to use it."),
            (Some((first, others)), _) => {
                write!(f, " Also said to use it: {first:?}")?;
                others.iter().try_for_each(|other| write!(f, ", {other:?}"))?;
                f.write_str(".")
            }
        }
    }
}
