//! Mutants: allocators that are broken on purpose. A run on a mutant must report a finding:
//! the stress program can then detect the mistake.
//!
//! The core stays unchanged. The mistake is made around the core: by a device with wrong
//! results, or by a wrapper that forwards requests wrongly.

use clap::ValueEnum;

/// Kind of a deliberate mistake.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// Events count as complete at once: blocks are reused while other streams use the memory.
    SkipWait,
    /// Events are not recorded, so every event is complete from the start.
    SkipRecord,
    /// A stream is not waited for before its memory is unmapped.
    SkipSync,
    /// The search for a block ignores the size: a block may be too small.
    ShortBlock,
    /// The size given with a free is not compared with the block's size.
    SizeCheck,
    /// A freed block is removed from the table of live blocks too late, when the block may be live
    /// again.
    LateErase,
}

impl Mutant {
    /// Returns the mutant's name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
