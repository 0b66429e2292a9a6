//! Interface of the workloads.

use crate::settings::Settings;
use crate::subject::Subject;

/// Work for any subject.
pub trait Workload {
    /// Prepares a subject for the measurement, and returns a function that executes the work a
    /// given number of times. Returns `None` if the subject cannot run the workload.
    fn lane<S: Subject + 'static>(&self, subject: S) -> Option<Box<dyn FnMut(u64)>>;

    /// Returns the number of operations in one execution of the work.
    fn operations(&self) -> u64 {
        1
    }

    /// Returns whether the workload suits subjects that walk a list of all free blocks on every
    /// free.
    fn allows_walks(&self) -> bool {
        true
    }

    /// Returns the bytes of arena for subjects over an arena: a power of two.
    fn arena(&self) -> u64;

    /// Returns the settings for configurable subjects.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}
