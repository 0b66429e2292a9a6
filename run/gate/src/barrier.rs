//! Asymmetric barriers: the rare side pays for the frequent one.

#[cfg(not(loom))]
use core::sync::atomic::{Ordering, compiler_fence, fence};
#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

/// A barrier between the threads of a process.
///
/// Let one thread store to A, pass [`light`](Self::light) and load B, and another thread store to
/// B, pass [`heavy`](Self::heavy) and load A. At least one of the two sees the store of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Barrier {
    /// The heavy side interrupts every running thread of the process.
    #[cfg(not(loom))]
    Process,
    /// Both sides use a fence.
    Fence,
}

impl Barrier {
    /// Returns the cheapest barrier that the system permits. Calls the system.
    pub(crate) fn of_system() -> Self {
        #[cfg(all(target_os = "linux", not(miri), not(loom)))]
        if membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        {
            return Self::Process;
        }
        Self::Fence
    }

    /// Returns whether the frequent side costs nothing.
    #[inline]
    pub(crate) fn is_free(self) -> bool {
        #[cfg(not(loom))]
        return self == Self::Process;
        // The model only has the fence, so it goes this way, too.
        #[cfg(loom)]
        true
    }

    /// The barrier of the frequent side.
    #[inline]
    pub(crate) fn light(self) {
        #[cfg(not(loom))]
        if self == Self::Process {
            compiler_fence(Ordering::SeqCst);
            return;
        }
        fence(Ordering::SeqCst);
    }

    /// The barrier of the rare side. Calls the system.
    ///
    /// # Panics
    /// If the system refuses the barrier that it permitted before. Nothing is known about other
    /// threads then.
    pub(crate) fn heavy(self) {
        #[cfg(all(target_os = "linux", not(miri), not(loom)))]
        if self == Self::Process {
            assert!(membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), "the system no longer permits its barrier");
        }
        fence(Ordering::SeqCst);
    }
}

/// Calls the system's barrier with a command. Returns whether it succeeded.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes two numbers and a third that these commands do not read.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
