//! The known facts about an address at which a kernel failed: the nearest block, and its history.

use crate::units::{DeviceIndex, DevicePtr, StreamId};
use core::fmt;

/// How many of the streams that use a block are remembered.
pub(crate) const STREAMS: usize = 6;

/// The streams that the program declared as users of a block.
pub(crate) type UsedOn = heapless::Vec<StreamId, STREAMS>;

/// The holder of the block of an [`Explanation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Holder {
    /// The program.
    Program,
    /// Work on the device: the program has freed the block, and the work known at the free may
    /// still be running.
    Work,
    /// Others, or nobody: the pool [lends](crate::Parking::lend) its free memory, and has not
    /// reclaimed it.
    Borrowers,
    /// Nobody. The work known at the free is complete, and the addresses are unmapped.
    Nobody,
}

/// Where an address is relative to a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Offset {
    /// This many bytes before the first byte.
    Before(u64),
    /// This many bytes after the first byte, inside the requested bytes.
    Inside(u64),
    /// This many bytes after the end of the requested bytes.
    Behind(u64),
}

/// The known facts about an address: the nearest block, and its history.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The address asked about.
    pub address: DevicePtr,
    /// The first byte of the block.
    pub block: DevicePtr,
    /// How many bytes the program requested.
    pub requested: u64,
    /// The size of the block in bytes: `requested`, rounded up, or more.
    pub size: u64,
    /// The stream on which the block was allocated.
    pub stream: StreamId,
    /// The device of the block.
    pub device: DeviceIndex,
    /// The holder of the block.
    pub holder: Holder,
    /// Whether the block is [guarded](crate::config::Guard).
    pub guarded: bool,
    /// Whether the address is in free memory after the block. Then a kernel wrote or read beyond
    /// the end of the block, or used a block that was there before and was freed.
    pub in_free_memory: bool,
    /// The call site of the request, as the host numbers it; 0 if it is unknown.
    pub allocated_at: u32,
    /// The call site of the free, as the host numbers it; 0 if it is unknown.
    pub freed_at: u32,
    /// How many guarded blocks were freed after this one.
    pub frees_since: u64,
    /// The first streams that the program declared as users of the block, besides the block's own
    /// stream.
    pub(crate) used_on: UsedOn,
}

impl Explanation {
    /// Returns the streams that the program declared as users of the block until it was freed,
    /// besides the block's own stream: the first six.
    #[must_use]
    pub fn used_on(&self) -> &[StreamId] {
        &self.used_on
    }

    /// Returns the explanation with the uses that another explanation of the same block knows.
    pub(crate) fn with_uses(mut self, other: &Self) -> Self {
        self.used_on.clone_from(&other.used_on);
        self
    }

    /// Returns where the address is relative to the block.
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
        if self.holder == Holder::Borrowers {
            return write!(
                f,
                "{address} lies in free memory that its pool has lent and not reclaimed: a graph has run in between."
            );
        }
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
            Holder::Program | Holder::Borrowers => "The program holds the block.",
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
