//! What was found to be wrong. The first finding ends the run.

use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// What kind of fault it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Two blocks share memory.
    Overlap,
    /// A block was handed out while another stream still uses it.
    Pending,
    /// A block does not hold what was written to it.
    Content,
    /// What the allocator says of a block is not so, or the block is not as it has to be.
    Books,
    /// A correct call was refused.
    Refused,
    /// A wrong call was accepted.
    Accepted,
    /// An invariant does not hold.
    Invariant,
    /// An error that nothing explains.
    Unexpected,
    /// Memory was not given back.
    Leak,
}

/// One finding.
#[derive(Clone, Serialize, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// All findings, and whether the run is to end.
#[derive(Default, Debug)]
pub(crate) struct Verdict {
    found: Mutex<Vec<Violation>>,
    any: AtomicBool,
}

/// Later findings follow from the first ones.
const KEPT: usize = 16;

impl Verdict {
    /// Notes a finding.
    pub(crate) fn report(&self, kind: Kind, text: String) {
        let mut found = self.found.lock();
        if found.len() < KEPT {
            eprintln!("{kind:?}: {text}");
            found.push(Violation { kind, text });
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether anything was found.
    pub(crate) fn is_bad(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The findings.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.found.lock().clone()
    }
}
