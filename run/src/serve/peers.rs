//! Which contexts may access the memory of others.

use cachalot_cuda::driver::types::{CuContext, CuDevice};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The access between contexts that the program has enabled.
#[derive(Default, Debug)]
pub(super) struct Peers(Mutex<Access>);

/// The state under the lock of [`Peers`].
#[derive(Default, Debug)]
pub(super) struct Access {
    /// The context that accesses, and the context whose memory is accessed.
    pub(super) pairs: Vec<(CuContext, CuContext)>,
    /// Those of the pairs that a pool's access has opened, and the program has not enabled itself.
    pub(super) by_pool: Vec<(CuContext, CuContext)>,
    /// Devices without a primary context so far, and the contexts open to their coming contexts.
    pub(super) waiting: Vec<(CuDevice, CuContext)>,
}

impl Peers {
    /// Forgets a context that is gone.
    pub(super) fn forget(&self, context: CuContext) {
        let mut opened = self.lock();
        let lives = |(accessor, owner): &(CuContext, CuContext)| *accessor != context && *owner != context;
        opened.pairs.retain(lives);
        opened.by_pool.retain(lives);
        opened.waiting.retain(|(_, owner)| *owner != context);
    }

    /// Locks the pairs.
    pub(super) fn lock(&self) -> MutexGuard<'_, Access> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
