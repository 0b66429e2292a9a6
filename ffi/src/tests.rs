//! What only the inside can show: panics at named places.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the next call for memory panics.
static PANIC: AtomicBool = AtomicBool::new(false);

/// Panics if a test wants it.
pub(crate) fn panic_if_wanted() {
    assert!(!PANIC.swap(false, Ordering::Relaxed), "the test's own fault");
}
