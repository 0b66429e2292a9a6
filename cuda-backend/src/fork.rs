//! Whether this is a forked child of the process that began to use the driver.
//!
//! After a fork the driver's threads and its connection to the device are gone, and locks that other threads held
//! stay held: the child may neither call the driver nor take a lock. So the question must be cheap enough to stand
//! before everything else, and must need neither.
//!
//! The kernel answers it: a page of memory is marked to read as zero in a child (`MADV_WIPEONFORK`, Linux 4.14), and
//! asking is one load. A handler of `pthread_atfork` would miss children made by `clone` and would have to be
//! registered from a library that can be unloaded. Where the mark is refused, process ids are compared, which is
//! right too and costs a system call each time (120 ns where the load costs 0.7).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// A word that holds 1 in the process that published it and 0 in its children. Null until published.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// The id of the process that asked first; 0 until then. Decides as long as there is no [`MARK`].
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel refused to make a marked page, so that it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child of the one that asked first (which is the one that loaded the driver).
///
/// The first call makes two or three system calls; later ones are two loads. Takes no lock and allocates nothing, so it
/// may be called in a forked child.
#[inline]
#[must_use]
pub fn in_child() -> bool {
    match NonNull::new(MARK.load(Ordering::Acquire)) {
        // SAFETY: what is published points into a mapping that is never unmapped, holding an initialised word.
        Some(word) => unsafe { word.as_ref() }.load(Ordering::Relaxed) == 0,
        None => in_child_by_id(),
    }
}

/// The same by process ids, and the attempt to make the question cheaper next time.
#[cold]
fn in_child_by_id() -> bool {
    let id = std::process::id();
    let parent = PARENT.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire).map_or_else(|old| old, |_| id);
    if parent != id {
        return true;
    }
    if !REFUSED.load(Ordering::Relaxed) {
        match marked_page() {
            // Whoever comes second leaves its page unused: 4 KiB, once, in a race.
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

/// A word that holds 1 here and 0 in children, if the kernel makes such pages.
fn marked_page() -> Option<&'static AtomicU32> {
    const LENGTH: usize = 4096;
    // Miri has no `madvise`, and process ids are right without it.
    if cfg!(miri) {
        return None;
    }
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory of anyone else.
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
    // SAFETY: the range is the mapping just made; the advice changes only what a child sees of it.
    if unsafe { libc::madvise(address, LENGTH, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the range is the mapping just made, and nothing refers to it.
        unsafe { libc::munmap(address, LENGTH) };
        return None;
    }
    let word = NonNull::new(address.cast::<AtomicU32>())?;
    // SAFETY: the mapping is page-aligned, zeroed, at least as long as the word, and is never unmapped from here on.
    let word: &'static AtomicU32 = unsafe { word.as_ref() };
    word.store(1, Ordering::Relaxed);
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit status of a child that runs `body`.
    fn in_forked_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child runs only `body`, which takes no lock, and then leaves without running destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let status = body();
            // SAFETY: ends the child at once; nothing of the parent's is touched.
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
            // A kernel before 4.14, or a sandbox: `in_child` compares process ids there, which the other test covers.
            return;
        };
        assert_eq!(word.load(Ordering::Relaxed), 1);
        assert_eq!(in_forked_child(|| word.load(Ordering::Relaxed).cast_signed()), 0);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }
}
