//! Findings of a run. The first finding ends the run.

use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Two blocks share memory.
    Overlap,
    /// A block was served while another stream still uses the memory.
    Pending,
    /// A block does not contain the pattern written last.
    Content,
    /// The allocator's information about a block is wrong, or the block violates the contract.
    Books,
    /// A valid call was refused.
    Refused,
    /// An invalid call was accepted.
    Accepted,
    /// An invariant does not hold.
    Invariant,
    /// An error without an explanation.
    Unexpected,
    /// Memory was not released.
    Leak,
}

/// One finding.
#[derive(Clone, Serialize, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// All findings, and whether the run must end.
#[derive(Default, Debug)]
pub(crate) struct Verdict {
    found: Mutex<Vec<Violation>>,
    any: AtomicBool,
}

/// Upper bound for the number of stored findings; later findings follow from the first.
const KEPT: usize = 16;

impl Verdict {
    /// Adds a finding, and ends the run.
    pub(crate) fn report(&self, kind: Kind, text: String) {
        let mut found = self.found.lock();
        if found.len() < KEPT {
            eprintln!("{kind:?}: {text}");
            found.push(Violation { kind, text });
        }
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether the verdict contains a finding.
    pub(crate) fn is_bad(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns the findings.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.found.lock().clone()
    }
}
