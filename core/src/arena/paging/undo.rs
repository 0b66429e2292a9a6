//! A step that is undone unless the operation that made it succeeds.

/// Undoes a step when dropped, unless the step is kept. Several steps are undone in the reverse
/// order.
#[must_use = "a step that is not held is undone at once"]
pub(in crate::arena) struct Undo<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Undo<F> {
    /// Holds a step that `undo` takes back.
    pub(in crate::arena) fn by(undo: F) -> Self {
        Self(Some(undo))
    }

    /// Keeps the step for good.
    pub(in crate::arena) fn keep(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Undo<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}
