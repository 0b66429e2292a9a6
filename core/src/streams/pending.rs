//! Freed blocks that are not available yet.

/// A block that the program has freed, but that cannot be reused yet: other streams use it, events
/// are recorded after their work, or the safe frontier has not reached its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingBlock {
    /// The slot of the block's heap.
    pub slot: u32,
    /// The index of the block in the heap.
    pub index: u32,
}

/// A free that has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFree {
    /// The block.
    pub block: PendingBlock,
    /// The call site of the free. It is traced once the free can no longer fail. `None` if it was
    /// traced already.
    pub site: Option<u32>,
}
