//! Copies between the device and files as jobs, which are numbered, started in their order, and
//! waited for.
//!
//! If a job fails, so do all marks after it, up to the first mark that is made after a wait has
//! reported the failure. So a wait that is repeated with a new mark asks only whether copies are
//! still in progress. Only one thread at a time parks or wakes memory, so no other thread waits
//! between a copy and the mark after it.

use crate::contents_file::{ContentsFile, is_no_room};
use crate::driver::result::CuResult;
use cachalot_core::{DeviceError, DevicePtr};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The most bytes of a single read or write. It is small in tests, so that contents are longer.
pub(crate) const CHUNK: u64 = if cfg!(test) { 128 << 10 } else { 16 << 20 };

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileWay {
    ToFile,
    ToDevice,
}

/// A copy of at most a chunk.
#[derive(Debug)]
pub(crate) struct Job {
    number: u64,
    pub(crate) way: FileWay,
    pub(crate) file: Arc<ContentsFile>,
    /// The place in the file.
    pub(crate) offset: u64,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
}

/// The jobs that a mark covers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct JobSpan {
    /// The last failed job that a wait had reported when the mark was made.
    after: u64,
    /// The last job that was started.
    pub(crate) last: u64,
}

/// The jobs and their ends.
#[derive(Default, Debug)]
struct Queue {
    waiting: VecDeque<Job>,
    /// The number of the first job that each busy thread does.
    doing: Vec<u64>,
    begun: u64,
    failures: BTreeMap<u64, DeviceError>,
    /// The last failed job that a wait has reported.
    told: u64,
    /// The last error of the system, until it is taken.
    error: Option<io::Error>,
}

/// The jobs of a device, and the signal for threads and waits.
#[derive(Default, Debug)]
pub(crate) struct FileJobs {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The failure of a job.
pub(crate) struct Failed {
    code: DeviceError,
    /// The system's error, if the file has failed.
    error: Option<io::Error>,
}

impl From<DeviceError> for Failed {
    fn from(code: DeviceError) -> Self {
        Self { code, error: None }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { code: code_of(&error), error: Some(error) }
    }
}

/// Returns the error of a call that fails because of an error of a file.
fn code_of(error: &io::Error) -> DeviceError {
    if is_no_room(error) { CuResult::OUT_OF_MEMORY.error() } else { CuResult::OPERATING_SYSTEM.error() }
}

impl FileJobs {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Poison is ignored, because each change of the queue is complete before the next call that
        // may panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for jobs, and takes those of one read or write. Returns `None` after `is_dismissed`,
    /// which is asked under the lock, has returned true.
    pub(crate) fn take(&self, is_dismissed: impl Fn() -> bool) -> Option<Vec<Job>> {
        let mut queue = self.lock();
        loop {
            if is_dismissed() {
                return None;
            }
            let Some(first) = queue.waiting.pop_front() else {
                queue = self.pause(queue);
                continue;
            };
            queue.doing.push(first.number);
            let (file, way) = (Arc::clone(&first.file), first.way);
            let (begin, mut end) = (first.offset, first.offset + first.bytes);
            let mut jobs = vec![first];
            let goes_on = |job: &Job, end: u64| {
                let fits = job.offset == end && end + job.bytes - begin <= CHUNK;
                fits && job.way == way && Arc::ptr_eq(&job.file, &file)
            };
            while queue.waiting.front().is_some_and(|job| goes_on(job, end)) {
                let next = queue.waiting.pop_front();
                end += next.as_ref().map_or(0, |job| job.bytes);
                jobs.extend(next);
            }
            return Some(jobs);
        }
    }

    /// Notes the end of jobs.
    pub(crate) fn end(&self, jobs: Vec<Job>, result: Result<(), Failed>) {
        let numbers: Vec<u64> = jobs.iter().map(|job| job.number).collect();
        // The jobs are dropped before the end is noted, so no job has the file after a wait has
        // ended. No lock is held, because the system may take time to close the file.
        drop(jobs);
        let mut queue = self.lock();
        queue.doing.retain(|number| numbers.first() != Some(number));
        if let Err(Failed { code, error }) = result {
            queue.failures.extend(numbers.into_iter().map(|number| (number, code)));
            queue.error = error.or(queue.error.take());
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Notes the error of a file, for [`take_error`](Self::take_error), and returns the error of
    /// the call.
    pub(crate) fn note(&self, error: io::Error) -> DeviceError {
        let code = code_of(&error);
        self.lock().error = Some(error);
        code
    }

    /// Returns the system's last error, once.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.lock().error.take()
    }

    /// Starts to copy `bytes` bytes between `at` and a file. A crew is in use.
    pub(crate) fn begin(&self, way: FileWay, file: &Arc<ContentsFile>, offset: u64, at: DevicePtr, bytes: u64) {
        let mut queue = self.lock();
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(CHUNK);
            queue.begun += 1;
            let number = queue.begun;
            let (offset, at) = (offset + done, DevicePtr(at.0 + done));
            queue.waiting.push_back(Job { number, way, file: Arc::clone(file), offset, at, bytes: part });
            done += part;
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Returns the jobs that a mark made now covers.
    pub(crate) fn span(&self) -> JobSpan {
        let queue = self.lock();
        JobSpan { after: queue.told, last: queue.begun }
    }

    /// Waits until the jobs up to `last` have ended. No child of the process may call this, because
    /// the threads are those of the parent.
    pub(crate) fn wait(&self, last: u64) {
        let mut queue = self.lock();
        let is_open = |queue: &Queue| {
            queue.waiting.front().is_some_and(|job| job.number <= last) || queue.doing.iter().any(|&job| job <= last)
        };
        while is_open(&queue) {
            queue = self.pause(queue);
        }
    }

    /// Returns whether all jobs have ended.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.waiting.is_empty() && queue.doing.is_empty()
    }

    /// Calls `act` under the lock, and lets all threads in [`take`](Self::take) ask again.
    pub(crate) fn change(&self, act: impl FnOnce()) {
        {
            let _queue = self.lock();
            act();
        }
        self.changed.notify_all();
    }

    /// Gives up the jobs that no thread has started.
    pub(crate) fn clear(&self) {
        self.lock().waiting.clear();
    }

    /// Returns the failure of a job in the span.
    pub(crate) fn failure_in(&self, span: JobSpan) -> Option<DeviceError> {
        if span.after >= span.last {
            return None;
        }
        self.lock().failures.range(span.after + 1..=span.last).next_back().map(|(_, &error)| error)
    }

    /// Notes that a wait has reported the failures up to the end of the span.
    pub(crate) fn tell(&self, span: JobSpan) {
        let mut queue = self.lock();
        queue.told = queue.told.max(span.last);
    }

    /// Forgets the failures that were reported and that no mark covers. `oldest` has the jobs of
    /// the oldest mark without a finished wait.
    pub(crate) fn forget_failures(&self, oldest: Option<JobSpan>) {
        let mut queue = self.lock();
        let after = oldest.map_or(queue.told, |span| span.after.min(queue.told));
        queue.failures = queue.failures.split_off(&(after + 1));
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::contents_file::ContentsFolder;
    use std::time::Duration;

    const QUARTER: u64 = CHUNK / 4;

    fn file() -> Arc<ContentsFile> {
        let folder = Arc::new(ContentsFolder::new(std::env::temp_dir()));
        Arc::new(ContentsFile::new(&folder, 4 * CHUNK).expect("room"))
    }

    /// Takes all jobs. Returns the numbers of the jobs of each read or write.
    fn taken(jobs: &FileJobs) -> Vec<Vec<u64>> {
        let mut taken = Vec::new();
        while !jobs.lock().waiting.is_empty() {
            let next = jobs.take(|| false).expect("not dismissed");
            taken.push(next.iter().map(|job| job.number).collect());
            jobs.end(next, Ok(()));
        }
        assert!(jobs.is_idle());
        taken
    }

    #[test]
    fn neighbouring_bytes_of_a_file_become_one_read_or_write_of_at_most_a_chunk() {
        use FileWay::{ToDevice, ToFile};
        let (jobs, files) = (FileJobs::default(), [file(), file()]);
        let begin = |way, file: usize, offset, bytes| jobs.begin(way, &files[file], offset, DevicePtr(0), bytes);
        (3..9).for_each(|quarter| begin(ToFile, 0, quarter * QUARTER, QUARTER));
        assert_eq!(taken(&jobs), [vec![1, 2, 3, 4], vec![5, 6]]);
        // Another way, another file, a gap, and an earlier place.
        begin(ToFile, 0, 0, QUARTER);
        begin(ToDevice, 0, QUARTER, QUARTER);
        begin(ToDevice, 1, 2 * QUARTER, QUARTER);
        begin(ToDevice, 1, 4 * QUARTER, QUARTER);
        begin(ToDevice, 1, 3 * QUARTER, QUARTER);
        begin(ToDevice, 1, 4 * QUARTER, 3 * QUARTER);
        begin(ToDevice, 1, 7 * QUARTER, 1);
        assert_eq!(taken(&jobs), [vec![7], vec![8], vec![9], vec![10], vec![11, 12], vec![13]]);
        // More than a chunk is cut, and the last part goes together with the next job.
        begin(ToFile, 0, 5 * QUARTER, 2 * CHUNK + QUARTER);
        begin(ToFile, 0, 5 * QUARTER + 2 * CHUNK + QUARTER, QUARTER);
        assert_eq!(taken(&jobs), [vec![14], vec![15], vec![16, 17]]);
    }

    #[test]
    fn a_wait_ends_with_the_last_job_that_it_is_for() {
        let (jobs, file) = (FileJobs::default(), file());
        jobs.wait(5);
        jobs.begin(FileWay::ToFile, &file, 0, DevicePtr(0), CHUNK);
        jobs.begin(FileWay::ToFile, &file, CHUNK, DevicePtr(0), CHUNK);
        let first = jobs.take(|| false).expect("not dismissed");
        jobs.wait(0);
        let waits = |last, end: &dyn Fn()| {
            std::thread::scope(|scope| {
                let wait = scope.spawn(|| jobs.wait(last));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!wait.is_finished(), "{last}");
                end();
                wait.join().expect("no panic");
            });
        };
        let first = std::cell::Cell::new(Some(first));
        waits(1, &|| jobs.end(first.take().expect("once"), Ok(())));
        assert!(!jobs.is_idle());
        // Neither a job that no thread has started nor one that a thread does has ended.
        waits(2, &|| {
            let second = jobs.take(|| false).expect("not dismissed");
            jobs.change(|| {});
            std::thread::sleep(Duration::from_millis(20));
            jobs.end(second, Ok(()));
        });
        assert!(jobs.is_idle());
        jobs.wait(2);
    }

    #[test]
    fn a_failure_is_kept_until_it_was_told_to_every_mark_before_the_news() {
        let (jobs, file) = (FileJobs::default(), file());
        let error = CuResult::UNKNOWN.error();
        let begin = |result: Result<(), Failed>| {
            jobs.begin(FileWay::ToFile, &file, 0, DevicePtr(0), CHUNK);
            let job = jobs.take(|| false).expect("not dismissed");
            jobs.end(job, result);
            jobs.span()
        };
        let before = begin(Ok(()));
        let of_failure = begin(Err(error.into()));
        assert_eq!((jobs.failure_in(before), jobs.failure_in(of_failure)), (None, Some(error)));
        jobs.tell(of_failure);
        jobs.tell(before);
        let behind = begin(Ok(()));
        assert_eq!(jobs.failure_in(behind), None, "the failure was told");
        jobs.forget_failures(Some(of_failure));
        assert_eq!(jobs.failure_in(of_failure), Some(error), "another mark is to hear of it");
        jobs.forget_failures(Some(behind));
        assert_eq!(jobs.failure_in(of_failure), None);
        let next = begin(Err(error.into()));
        jobs.forget_failures(None);
        assert_eq!((jobs.failure_in(next), jobs.failure_in(behind)), (Some(error), None), "not told yet");
        jobs.tell(next);
        jobs.forget_failures(None);
        assert_eq!(jobs.failure_in(next), None);
    }
}
