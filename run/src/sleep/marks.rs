//! What each thread of the process has: a mark, and whether it is inside a served call.
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

/// What a thread has. In one place: a library finds the data of a thread by a call of the loader's, which a launch makes once.
struct Own {
    mark: Cell<Option<&'static Mark>>,
    /// Whether the thread is inside a served call.
    serving: Cell<bool>,
}

thread_local! {
    /// Constant and without a destructor, so an ending thread may still call.
    static OWN: Own = const { Own { mark: Cell::new(None), serving: Cell::new(false) } };
    static RETURNED: Returned = const { Returned };
}

/// The time of a thread in a served call.
#[derive(Debug)]
pub struct Serving(());

impl Serving {
    /// Begins a call. `None` inside a served call: the driver may call functions by name, and finds the library's.
    #[inline]
    pub fn enter() -> Option<Self> {
        // Only then is there a value, whose end is the end of the call.
        (!OWN.with(|own| own.serving.replace(true))).then(|| Self(()))
    }
}

impl Drop for Serving {
    #[inline]
    fn drop(&mut self) {
        OWN.with(|own| own.serving.set(false));
    }
}

/// Returns the thread's mark when the thread ends.
struct Returned;

impl Drop for Returned {
    fn drop(&mut self) {
        // A call of a later destructor takes a further mark, which nobody returns.
        if let Some(mark) = OWN.with(|own| own.mark.take())
            && !mark.is_inside()
        {
            lock().spare.push(mark);
        }
    }
}

/// Returns the calling thread's mark.
#[inline]
pub(super) fn own() -> &'static Mark {
    OWN.with(|own| own.mark.get()).unwrap_or_else(|| take())
}

/// Returns the calling thread's mark, or `None` inside a served call.
#[inline]
pub(super) fn own_outside() -> Option<&'static Mark> {
    OWN.with(|own| (!own.serving.get()).then(|| own.mark.get().unwrap_or_else(|| take())))
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
    OWN.with(|own| own.mark.set(Some(mark)));
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
    use super::{Serving, own, own_outside};

    #[test]
    fn a_call_inside_a_call_is_the_drivers_until_the_outer_one_ends() {
        let outer = Serving::enter().expect("the first call");
        assert!(Serving::enter().is_none());
        // The refusal has not ended the outer call.
        assert!(Serving::enter().is_none());
        assert!(own_outside().is_none());
        drop(outer);
        assert!(own_outside().is_some_and(|mark| core::ptr::eq(mark, own())));
        assert!(Serving::enter().is_some());
    }

    #[test]
    fn a_threads_mark_serves_a_later_thread() {
        let first = std::thread::spawn(|| core::ptr::from_ref(own()) as usize).join().unwrap();
        // Other tests take marks, too.
        let found =
            (0..64).any(|_| std::thread::spawn(|| core::ptr::from_ref(own()) as usize).join().unwrap() == first);
        assert!(found);
    }
}
