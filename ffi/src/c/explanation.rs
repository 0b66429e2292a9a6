//! An address explained in words, with the call stacks of the block.

use crate::c::stacks::{Stacks, describe_frame};
use cachalot_core::Explanation;
use core::fmt::Write as _;

/// Returns the sentences of an explanation, and the stacks, a line for each frame.
pub(crate) fn describe(explanation: &Explanation, stacks: &Stacks) -> String {
    let mut text = explanation.to_string();
    for (what, site) in [("Allocated", explanation.allocated_at), ("Freed", explanation.freed_at)] {
        let stack = stacks.get(site);
        if !stack.is_empty() {
            let _ = write!(text, "\n{what} at:");
        }
        for frame in stack.frames() {
            let _ = write!(text, "\n  {}", describe_frame(frame));
        }
    }
    text
}
