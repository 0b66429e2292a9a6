//! Allocators that are broken on purpose. A run on one must find something wrong: that shows that it would.
//!
//! The core itself is left as it is. What a mistake in it would do is done around it: by a device that answers wrongly, or by
//! a shell that passes requests on wrongly.

use clap::ValueEnum;

/// A way to be broken.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// Events count as complete at once: blocks are reused while other streams use them.
    SkipWait,
    /// Events are not recorded, so that they are complete from the start.
    SkipRecord,
    /// A stream is not waited for before its memory is unmapped.
    SkipSync,
    /// A block is found without a look at its size: it may be too small.
    ShortBlock,
    /// The size given with a free is not compared with the block's.
    SizeCheck,
    /// A block is given back first and struck off the books of the blocks in use afterwards, when it may be in use again.
    LateErase,
}

impl Mutant {
    /// As the command line has it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
