//! Captures of the run: says whether a call can have met one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the captures of all threads.
#[derive(Default, Debug)]
pub(crate) struct Captures {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A moment before a call; see [`Captures::met_since`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Number of the captures that had ended before.
    ended: u64,
}

impl Captures {
    /// Notes a capture, before the driver starts it.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes the end of a capture, once the driver has ended it.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the present moment, for a call that is about to start.
    pub(crate) fn now(&self) -> Moment {
        Moment { ended: self.ended.load(Ordering::SeqCst) }
    }

    /// Returns whether a graph was being captured at some time since `begin`.
    pub(crate) fn met_since(&self, begin: Moment) -> bool {
        self.begun.load(Ordering::SeqCst) > begin.ended
    }
}

#[cfg(test)]
mod tests {
    use super::Captures;

    #[test]
    fn a_capture_meets_the_calls_during_which_it_runs() {
        let captures = Captures::default();
        let before = captures.now();
        assert!(!captures.met_since(before));
        captures.begin();
        let during = captures.now();
        assert!(captures.met_since(before) && captures.met_since(during));
        captures.end();
        assert!(captures.met_since(before) && captures.met_since(during));
        assert!(!captures.met_since(captures.now()));
    }
}
