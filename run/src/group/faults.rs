//! Deaths on purpose, for tests: a process is killed at a point below the lock.

use std::sync::OnceLock;

/// A place of the group's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// The lock is taken, and nothing is changed.
    Locked,
    /// The bytes are counted, and the lock is held.
    Counted,
    /// The lock passed on from a dead holder.
    Recovered,
    /// The entry of a dead owner is freed, and the lock is held.
    Swept,
}

type Hook = Box<dyn Fn(Point) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets the action of a process at every point. Called once, by a child of a test.
pub(super) fn set(hook: Hook) {
    assert!(HOOK.set(hook).is_ok(), "a process has one hook");
}

/// Called by the group's code.
pub(super) fn reach(point: Point) {
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
}
