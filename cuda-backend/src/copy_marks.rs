//! The copies of a device: numbered copies on their own stream, jobs for files, and marks after
//! both.

use crate::context::Context;
use crate::device_event::DeviceEvent;
use crate::driver::types::CuStream;
use crate::file_copies::FileCopies;
use crate::file_jobs::JobSpan;
use crate::own_stream::OwnStream;
use crate::spare_events;
use cachalot_core::{CopyMark, DeviceError, DeviceResult};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An event after copies.
#[derive(Debug)]
struct EventAfterCopies {
    event: DeviceEvent,
    /// The number of the last copy before the event.
    copied: u64,
    /// The copies to and from files before the event.
    jobs: JobSpan,
}

/// The numbers of copies, and the marks.
#[derive(Default, Debug)]
struct Marks {
    /// The marks without a finished wait, by number. They are shared with the waiting threads, and
    /// the last thread destroys the event.
    open: BTreeMap<u64, Arc<EventAfterCopies>>,
    /// The errors of the marks before which a copy to or from a file has failed.
    failed: BTreeMap<u64, DeviceError>,
    /// The number of the latest mark.
    latest: u64,
    /// The number of the copy started last, and of the last copy known to have ended.
    begun: u64,
    ended: u64,
}

/// The copies of a device.
#[derive(Default, Debug)]
pub(crate) struct CopyMarks {
    marks: Mutex<Marks>,
    /// The stream of the copies to and from memory.
    stream: OwnStream,
    /// The copies to and from files.
    pub(crate) files: FileCopies,
}

impl CopyMarks {
    fn lock(&self) -> MutexGuard<'_, Marks> {
        // Poison is ignored, because each change of the marks is complete before the next call that
        // may panic.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream of the copies to and from memory.
    pub(crate) fn stream(&self, context: &Context) -> DeviceResult<CuStream> {
        self.stream.get(context)
    }

    /// Counts another copy to or from memory, and returns its number.
    pub(crate) fn number(&self) -> u64 {
        let mut marks = self.lock();
        marks.begun += 1;
        marks.begun
    }

    /// Waits until the copy with the number has ended. Calls the driver only if no mark after the
    /// copy was waited for, which happens after a failed save, mark or wait.
    pub(crate) fn wait_for_copy(&self, context: &Context, copy: u64) -> DeviceResult<()> {
        let begun = {
            let marks = self.lock();
            if copy <= marks.ended {
                return Ok(());
            }
            marks.begun
        };
        self.stream.synchronize(context)?;
        let mut marks = self.lock();
        marks.ended = marks.ended.max(begun);
        Ok(())
    }

    pub(crate) fn mark(&self, context: &Context) -> DeviceResult<CopyMark> {
        let stream = self.stream.get(context)?;
        // Read before the event is recorded, so that the event comes after every copy that counts.
        let copied = self.lock().begun;
        let event = match Self::record(context, stream) {
            Ok(event) => event,
            Err(error) => {
                // If nothing waited for the copies, they would go on after their memory is
                // unmapped. There is no event, so the calling thread waits for them here.
                let jobs = self.files.jobs.span();
                self.files.wait(context, jobs.last)?;
                self.stream.synchronize(context).map_err(|_| error)?;
                let mut marks = self.lock();
                marks.ended = marks.ended.max(copied);
                drop(marks);
                let failure = self.files.jobs.failure_in(jobs);
                return failure.map_or(Ok(CopyMark::default()), |error| {
                    self.files.jobs.tell(jobs);
                    Err(error)
                });
            }
        };
        let mut marks = self.lock();
        marks.latest += 1;
        let mark = marks.latest;
        // Read under the lock, because failures without a mark are forgotten under it.
        let jobs = self.files.jobs.span();
        marks.open.insert(mark, Arc::new(EventAfterCopies { event, copied, jobs }));
        Ok(CopyMark(mark))
    }

    /// Returns a new event after the copies started so far.
    fn record(context: &Context, stream: CuStream) -> DeviceResult<DeviceEvent> {
        let event = spare_events::create(context)?;
        let recorded = context.call(|driver| {
            // SAFETY: takes no host pointers; both handles are this device's own.
            unsafe { driver.event_record(event.handle, stream) }
        });
        if recorded.is_err() {
            let _ = spare_events::destroy(context, event);
        }
        recorded.map(|()| event)
    }

    pub(crate) fn finish(&self, context: &Context, mark: CopyMark) -> DeviceResult<()> {
        let due: Vec<_> =
            self.lock().open.range(..=mark.0).map(|(&number, marked)| (number, Arc::clone(marked))).collect();
        // The latest event comes after the earlier ones, unless two threads made marks at the same
        // time.
        let waited = due.iter().rev().try_for_each(|(_, marked)| {
            context.call(|driver| {
                // SAFETY: takes no host pointers; the event is destroyed by the last thread that
                // has it.
                unsafe { driver.event_synchronize(marked.event.handle) }
            })
        });
        // This also happens after an error, because the caller unmaps the memory.
        let last = due.iter().map(|(_, marked)| marked.jobs.last).max().unwrap_or(0);
        let waited = waited.and(self.files.wait(context, last));
        if waited.is_ok() {
            let failures: Vec<_> = due
                .iter()
                .filter_map(|(number, marked)| Some((*number, self.files.jobs.failure_in(marked.jobs)?)))
                .collect();
            let mut marks = self.lock();
            marks.failed.extend(failures);
            for (number, marked) in &due {
                marks.open.remove(number);
                marks.ended = marks.ended.max(marked.copied);
            }
        }
        // If there is no event, the mark was waited for before.
        let waited = if due.is_empty() { context.health() } else { waited };
        let waited = waited.and(self.failure_of(mark, due.last().map(|(_, marked)| marked.jobs)));
        self.files.rest(context);
        waited.and(release(context, due.into_iter().map(|(_, marked)| marked)))
    }

    /// Reports the failure of a copy to or from a file before a mark that was waited for. `jobs`
    /// are the copies before the mark.
    fn failure_of(&self, mark: CopyMark, jobs: Option<JobSpan>) -> DeviceResult<()> {
        let marks = self.lock();
        let failure = marks.failed.get(&mark.0).copied();
        if let (Some(_), Some(jobs)) = (failure, jobs) {
            self.files.jobs.tell(jobs);
        }
        let oldest = marks.open.first_key_value().map(|(_, marked)| marked.jobs);
        self.files.jobs.forget_failures(oldest);
        failure.map_or(Ok(()), Err)
    }

    /// Waits for the copies and destroys their stream and events, when the device is closed. No
    /// other thread may be inside a call of the device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        self.files.close(context);
        let marks = core::mem::take(&mut *self.lock());
        let result = self.stream.synchronize(context).and(self.stream.destroy(context));
        result.and(release(context, marks.open.into_values()))
    }
}

/// Gives up events of marks. Destroys each event that has no other owner, here or in a thread.
fn release(context: &Context, marks: impl Iterator<Item = Arc<EventAfterCopies>>) -> DeviceResult<()> {
    let mut result = Ok(());
    for marked in marks.filter_map(Arc::into_inner) {
        result = result.and(spare_events::destroy(context, marked.event));
    }
    result
}
