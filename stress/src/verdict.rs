//! Findings of a run. The first finding ends the run.

use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Two live blocks share memory.
    Overlap,
    /// A block was served while another stream still uses the memory.
    Pending,
    /// A block does not contain the pattern written last.
    Content,
    /// The allocator's information about a block is wrong, or the block violates the contract.
    Books,
    /// A call was refused, although the call was valid.
    Refused,
    /// A call was accepted, although the call was invalid.
    Accepted,
    /// An invariant of the allocator does not hold.
    Invariant,
    /// A device error that neither a fault plan nor a capture explains.
    Unexpected,
    /// Memory or blocks were left at the end of the run.
    Leak,
}

/// A finding, with its kind and a description.
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

    /// Returns the stored findings, in the order of their discovery.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.found.lock().clone()
    }
}
