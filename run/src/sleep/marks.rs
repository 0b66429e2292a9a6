//! The marks of the process's threads.
//!
//! A thread takes a mark at its first call, and another thread takes the mark over when the thread has ended. Marks live as long
//! as the process: the closer of a gate may read any of them at any time.

use cachalot_gate::{Look, Mark, look};
use core::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every mark of the process.
struct Marks {
    all: Vec<&'static Mark>,
    /// The marks of ended threads.
    spare: Vec<&'static Mark>,
}

static MARKS: Mutex<Marks> = Mutex::new(Marks { all: Vec::new(), spare: Vec::new() });

thread_local! {
    /// The thread's mark. Constant and without a destructor, so an ending thread may still call.
    static OWN: Cell<Option<&'static Mark>> = const { Cell::new(None) };
    static RETURNED: Returned = const { Returned };
}

/// Returns the thread's mark when the thread ends.
struct Returned;

impl Drop for Returned {
    fn drop(&mut self) {
        // A call of a later destructor takes a further mark, which nobody returns.
        if let Some(mark) = OWN.take()
            && !mark.is_inside()
        {
            lock().spare.push(mark);
        }
    }
}

/// Returns the calling thread's mark.
#[inline]
pub(super) fn own() -> &'static Mark {
    OWN.get().unwrap_or_else(|| take())
}

/// Takes a mark for the calling thread.
#[cold]
fn take() -> &'static Mark {
    let mut marks = lock();
    let mark = marks.spare.pop().unwrap_or_else(|| {
        let mark: &'static Mark = Box::leak(Box::default());
        marks.all.push(mark);
        mark
    });
    drop(marks);
    OWN.set(Some(mark));
    let _ = RETURNED.try_with(|_| ());
    mark
}

/// Looks at the marks of all threads but the calling one.
pub fn other_threads() -> Look {
    let own = own();
    look(lock().all.iter().copied().filter(|mark| !core::ptr::eq(*mark, own)))
}

fn lock() -> MutexGuard<'static, Marks> {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::own;

    #[test]
    fn a_threads_mark_serves_a_later_thread() {
        let first = std::thread::spawn(|| core::ptr::from_ref(own()) as usize).join().unwrap();
        // Other tests take marks, too.
        let found =
            (0..64).any(|_| std::thread::spawn(|| core::ptr::from_ref(own()) as usize).join().unwrap() == first);
        assert!(found);
    }
}
