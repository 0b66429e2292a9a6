//! What a subject is made to do.

use crate::settings::Settings;
use crate::subject::Subject;

/// Work that any subject can be given.
pub trait Workload {
    /// Brings a subject into the state to be measured in, and returns what does the work so many times over; `None` if
    /// the subject cannot hold it.
    fn lane<S: Subject + 'static>(&self, subject: S) -> Option<Box<dyn FnMut(u64)>>;

    /// How many operations count as one when the work was done once.
    fn operations(&self) -> u64 {
        1
    }

    /// Whether a subject can do it that walks a list of all free blocks on every free.
    fn allows_walks(&self) -> bool {
        true
    }

    /// Bytes of arena for subjects that have one: a power of two.
    fn arena(&self) -> u64;

    /// For subjects that know settings.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}
