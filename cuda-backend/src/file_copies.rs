//! The copies of a device to and from files, with the threads that make them while they are needed.

use crate::context::Context;
use crate::file_crew::Crew;
use crate::file_jobs::FileJobs;
use crate::fork;
use cachalot_core::DeviceResult;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The threads of a device, and their uses.
#[derive(Default, Debug)]
struct Hired {
    crew: Option<Crew>,
    /// The number of uses of the crew. Jobs start only while the crew is in use.
    users: u32,
    /// The NUMA node of the chunks, if known.
    node: Option<u32>,
}

/// The jobs, and the threads that do them.
#[derive(Default, Debug)]
pub(crate) struct FileCopies {
    pub(crate) jobs: Arc<FileJobs>,
    hired: Arc<Mutex<Hired>>,
}

/// A use of the crew, which exists until this value is dropped.
#[derive(Debug)]
pub(crate) struct CrewUse(Arc<Mutex<Hired>>);

impl Drop for CrewUse {
    fn drop(&mut self) {
        lock(&self.0).users -= 1;
    }
}

fn lock(hired: &Mutex<Hired>) -> MutexGuard<'_, Hired> {
    // Poison is ignored, because each change is complete before the next call that may panic.
    hired.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileCopies {
    /// Sets the NUMA node of the pinned memory, if known.
    pub(crate) fn set_node(&self, node: Option<u32>) {
        lock(&self.hired).node = node;
    }

    /// Starts the threads for `bytes` bytes, unless there are threads already. They remain until
    /// the use is dropped and all jobs have ended.
    ///
    /// # Errors
    /// Those of [`Crew::start`].
    pub(crate) fn hire(&self, context: &Arc<Context>, bytes: u64) -> DeviceResult<CrewUse> {
        let (is_hired, node) = {
            let mut hired = lock(&self.hired);
            hired.users += 1;
            (hired.crew.is_some(), hired.node)
        };
        let in_use = CrewUse(Arc::clone(&self.hired));
        if !is_hired {
            let crew = Crew::start(context, bytes, node, &self.jobs)?;
            let mut hired = lock(&self.hired);
            let spare = if hired.crew.is_none() { hired.crew.replace(crew) } else { Some(crew) };
            drop(hired);
            if let Some(spare) = spare {
                // Another thread was faster.
                spare.end(context, &self.jobs);
            }
        }
        Ok(in_use)
    }

    /// Waits until the jobs up to `last` have ended.
    ///
    /// # Errors
    /// [`Forked`](cachalot_core::ErrorKind::Forked), because a child does not have the threads.
    pub(crate) fn wait(&self, context: &Context, last: u64) -> DeviceResult<()> {
        if fork::in_child() {
            return context.health();
        }
        self.jobs.wait(last);
        Ok(())
    }

    /// Ends the threads and gives their memory back, unless the crew is in use or jobs have not
    /// ended.
    pub(crate) fn rest(&self, context: &Context) {
        let crew = {
            let mut hired = lock(&self.hired);
            if hired.users == 0 && self.jobs.is_idle() { hired.crew.take() } else { None }
        };
        if let Some(crew) = crew {
            crew.end(context, &self.jobs);
        }
    }

    /// Waits for all jobs, ends the threads and gives their memory back, when the device is closed.
    /// No other thread may be inside a call of the device.
    pub(crate) fn close(&self, context: &Context) {
        if self.wait(context, u64::MAX).is_ok() {
            let crew = lock(&self.hired).crew.take();
            if let Some(crew) = crew {
                crew.end(context, &self.jobs);
            }
        }
    }
}

/// Ends the threads of a device that was not closed.
impl Drop for FileCopies {
    fn drop(&mut self) {
        // In a child, the threads are those of the parent.
        if !fork::in_child() {
            self.jobs.clear();
            let crew = lock(&self.hired).crew.take();
            if let Some(crew) = crew {
                crew.abandon(&self.jobs);
            }
        }
    }
}
