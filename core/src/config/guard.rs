//! The settings that find errors of a program: blocks with their own addresses, where a use after
//! the free or beyond the end faults (`guard`), and values that are written to blocks.

use core::fmt;
use core::num::NonZeroU32;

/// The blocks that are guarded, and where they are on their pages.
///
/// The addresses of a guarded block are its own. They are unmapped once the work known at the free
/// is complete, and no block gets them again for some frees. Addresses after the last page of a
/// block, or before the first one, are never mapped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Guard {
    /// No block.
    #[default]
    Off,
    /// Every block. Blocks of at most half a page share physical pages, but each has its own
    /// addresses. A use after the free faults. An overrun faults only from larger blocks.
    All,
    /// Every block, at the end of its own physical pages, so that an overrun faults, too.
    After,
    /// Every block, at the start of its own physical pages, so that an underrun faults, too.
    Before,
    /// One block in this number, as with [`After`](Self::After).
    Sampled(NonZeroU32),
}

/// The values that are written to blocks (`zero`, `pattern`, `canary`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Filling {
    /// Each byte of a new block gets this value, in the order of the block's stream.
    pub on_alloc: Option<u8>,
    /// Each byte of a freed block gets this value, once the work known at the free is complete.
    pub on_free: Option<u8>,
    /// Each block has bytes after the requested ones. They get a value, which is checked once the
    /// work known at the free is complete.
    pub canary: bool,
}

impl Filling {
    /// Nothing is written.
    pub(crate) const NOTHING: Self = Self { on_alloc: None, on_free: None, canary: false };

    /// Returns whether a block is filled or checked at the end of its free.
    pub(crate) fn ends_frees(self) -> bool {
        self.on_free.is_some() || self.canary
    }
}

/// The least number of bytes after the request that are a canary, if blocks have a margin for it.
/// Most requests are a whole number of units, so without a margin most blocks would have no canary.
pub(crate) const CANARY_MARGIN: u64 = 512;

/// The moment at which blocks are cleared (`zero`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Zero {
    /// Never.
    #[default]
    Off,
    /// When a block is allocated.
    OnAlloc,
    /// When a block is free.
    OnFree,
}

impl Zero {
    const ALL: [Self; 3] = [Self::Off, Self::OnAlloc, Self::OnFree];

    /// Returns the value that `text` spells.
    pub(super) fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|zero| zero.name() == text)
    }

    /// Returns the spelling of the value.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OnAlloc => "on_alloc",
            Self::OnFree => "on_free",
        }
    }
}

impl Guard {
    /// Returns the value that `text` spells.
    pub(super) fn named(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "all" => Some(Self::All),
            "after" => Some(Self::After),
            "before" => Some(Self::Before),
            _ => text.strip_prefix("sampled:")?.parse().ok().map(Self::Sampled),
        }
    }

    /// Returns the number of requests of which one gets a guarded block; 0 without guards.
    pub(crate) fn interval(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::All | Self::After | Self::Before => 1,
            Self::Sampled(interval) => interval.get(),
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::All => f.write_str("all"),
            Self::After => f.write_str("after"),
            Self::Before => f.write_str("before"),
            Self::Sampled(interval) => write!(f, "sampled:{interval}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_has_an_end_to_fill_or_to_check_the_block() {
        let filling = Filling { on_alloc: Some(7), ..Filling::NOTHING };
        assert!(!filling.ends_frees());
        assert!(Filling { on_free: Some(0), ..filling }.ends_frees());
        assert!(Filling { canary: true, ..filling }.ends_frees());
    }
}
