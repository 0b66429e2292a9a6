//! Barriers whose cost lies with the rare side.

#[cfg(not(loom))]
use core::sync::atomic::{Ordering, compiler_fence, fence};
#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

/// How the threads of a process see each other's stores in order.
///
/// Let a thread store to A, pass [`light`](Self::light) and load B, and a second thread store to B, pass
/// [`heavy`](Self::heavy) and load A. At least a single thread of the two sees the store of the second.
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
        // The model has the fence alone, and so goes this way, too.
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
    /// If the system refuses the permitted barrier later. Nothing can then be known about other threads.
    pub(crate) fn heavy(self) {
        #[cfg(all(target_os = "linux", not(miri), not(loom)))]
        if self == Self::Process {
            assert!(membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), "the system takes its barrier back");
        }
        fence(Ordering::SeqCst);
    }
}

/// Calls the system's barrier with a command. Returns whether the system has obeyed.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes two numbers and a third that these commands do not read.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
