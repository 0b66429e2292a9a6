//! Detects children that were forked after the first use of the driver.
//!
//! After a fork, the driver's threads and its connection to the device are gone, and locks held by
//! other threads remain locked. A child must neither call the driver nor take a lock. The check
//! runs before every driver call, so it must be cheap, and must itself neither call the driver nor
//! take a lock.
//!
//! The kernel does the work: a page of memory is marked to read as zero in a child
//! (`MADV_WIPEONFORK`, Linux 4.14), and the check is one load. A handler of `pthread_atfork` would
//! miss children made by `clone`, and would have to be registered from a library that can be
//! unloaded. If the kernel refuses the mark, process ids are compared. This is as correct, but
//! takes a system call each time (120 ns instead of 0.7 ns).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// A word that reads as 1 in the process that published it, and as 0 in the children of that
/// process. Null until it is published.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// The id of the process of the first check, or 0 before this check. It decides as long as [`MARK`]
/// is null.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel has refused to mark a page. If so, no other attempt is made.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is a forked child of the process that made the first check. The
/// first check is part of loading the driver.
///
/// The first call makes three or four system calls. Later calls are two loads, or a system call if
/// the kernel has refused to mark a page. Takes no lock and allocates nothing, so a forked child
/// may call it.
#[inline]
#[must_use]
pub fn in_child() -> bool {
    match NonNull::new(MARK.load(Ordering::Acquire)) {
        // SAFETY: a published pointer points to an initialised word in a mapping that is never
        // unmapped.
        Some(word) => unsafe { word.as_ref() }.load(Ordering::Relaxed) == 0,
        None => in_child_by_id(),
    }
}

/// Compares process ids, and tries to publish a marked page for later checks.
#[cold]
fn in_child_by_id() -> bool {
    let id = std::process::id();
    let parent = PARENT.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire).map_or_else(|old| old, |_| id);
    if parent != id {
        return true;
    }
    if !REFUSED.load(Ordering::Relaxed) {
        match marked_page() {
            // A thread that loses the race leaves its page mapped but unused.
            Some(word) => drop(MARK.compare_exchange(
                core::ptr::null_mut(),
                core::ptr::from_ref(word).cast_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )),
            None => REFUSED.store(true, Ordering::Relaxed),
        }
    }
    false
}

/// Makes whole pages read as zeros in forked children. Returns false if the kernel refuses: then
/// nothing has changed.
///
/// # Safety
/// The `bytes` from `first` on are whole pages of private anonymous memory, such as zeroed statics,
/// that stay mapped, and zeros are a valid value of what is in them.
#[must_use]
pub unsafe fn wipe_in_children(first: *mut u8, bytes: usize) -> bool {
    // Miri has no `madvise`.
    // SAFETY: guaranteed by the caller. The advice only changes what children see.
    !cfg!(miri) && unsafe { libc::madvise(first.cast(), bytes, libc::MADV_WIPEONFORK) } == 0
}

/// Returns a word with the value 1 in the present process and 0 in children, or `None` if the
/// kernel refuses to mark a page.
fn marked_page() -> Option<&'static AtomicU32> {
    // The kernel rounds it up to its page.
    const LENGTH: usize = size_of::<AtomicU32>();
    // SAFETY: an anonymous private mapping at an address of the kernel's choice overlaps no other
    // mapping.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            LENGTH,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the new mapping, of which nothing is used yet.
    if !unsafe { wipe_in_children(address.cast(), LENGTH) } {
        // SAFETY: the range is the new mapping, and no reference to the range exists.
        unsafe { libc::munmap(address, LENGTH) };
        return None;
    }
    let word = NonNull::new(address.cast::<AtomicU32>())?;
    // SAFETY: the mapping is page-aligned, zeroed, at least as long as the word, and never unmapped
    // from here on.
    let word: &'static AtomicU32 = unsafe { word.as_ref() };
    word.store(1, Ordering::Relaxed);
    Some(word)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the exit status of a child that runs `body`.
    pub(crate) fn in_forked_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child runs only `body`, which takes no lock of this process, and then leaves
        // without running destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let status = body();
            // SAFETY: ends the child at once, without touching the parent's state.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        assert!(libc::WIFEXITED(status), "the child did not exit: {status:#x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_child_knows_that_it_is_one_and_its_parent_that_it_is_not() {
        assert!(!in_child());
        assert_eq!(in_forked_child(|| i32::from(in_child())), 1);
        assert!(!in_child());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_marked_page_reads_as_zero_in_a_child() {
        let Some(word) = marked_page() else {
            // A kernel before 4.14, or a sandbox: `in_child` compares process ids, which the other
            // test covers.
            return;
        };
        assert_eq!(word.load(Ordering::Relaxed), 1);
        assert_eq!(in_forked_child(|| word.load(Ordering::Relaxed).cast_signed()), 0);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }
}
