//! A crew: the threads that copy between the device and files, each with its chunk of pinned
//! memory.
//!
//! ```text
//! save    ─▶ job ┐            ┌─ thread ─ chunk 0:  device ─▶ chunk ─▶ file
//! save    ─▶ job ┼─▶ queue ─▶ ┼─ thread ─ chunk 1:  file ─▶ chunk ─▶ device
//! restore ─▶ job ┘            └─ …
//! ```
//!
//! A thread does one step at a time, but the threads overlap: while some wait for the file, others
//! copy. Jobs for neighbouring bytes of a file become one read or write.

use crate::contents_file::{ContentsFile, IO_ALIGNMENT};
use crate::context::Context;
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::CuStream;
use crate::file_jobs::{CHUNK, Failed, FileJobs, FileWay, Job};
use crate::own_stream::OwnStream;
use crate::region::Region;
use cachalot_core::DeviceResult;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The greatest number of threads. There are fewer if the bytes do not fill as many chunks.
const THREADS: u64 = 4;

/// The number of times that a device that fails is asked whether a copy has ended.
const ASKED: u32 = 16;

/// The threads, and the pinned memory of their chunks.
#[derive(Debug)]
pub(crate) struct Crew {
    staging: Arc<Region>,
    shared: Arc<CrewState>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that a crew and its threads share.
#[derive(Default, Debug)]
struct CrewState {
    /// Whether the threads must end after the jobs that they have taken. Changed under the lock of
    /// the queue.
    dismissed: AtomicBool,
    /// Whether a copy may still be in progress in a chunk. If so, no thread uses any chunk, and the
    /// memory remains pinned forever.
    in_doubt: AtomicBool,
}

impl Crew {
    /// Pins memory for the chunks, and starts the threads for `bytes` bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`](cachalot_core::ErrorKind::OutOfMemory) if the host does not have the memory
    /// of the chunks; errors of the driver and the system.
    pub(crate) fn start(
        context: &Arc<Context>,
        bytes: u64,
        node: Option<u32>,
        jobs: &Arc<FileJobs>,
    ) -> DeviceResult<Self> {
        let chunks = bytes.div_ceil(CHUNK).clamp(1, THREADS);
        let staging = Region::new(CHUNK * chunks, node)?;
        if let Err(error) = staging.each_part(context, 0, staging.bytes, |_, _, _| Ok(())) {
            let _ = staging.give_back(context);
            return Err(error);
        }
        let staging = Arc::new(staging);
        let shared = Arc::<CrewState>::default();
        let mut threads = Vec::new();
        for chunk in 0..chunks {
            let carrier = Carrier {
                context: Arc::clone(context),
                staging: Arc::clone(&staging),
                chunk,
                stream: OwnStream::default(),
                crew: Arc::clone(&shared),
            };
            let jobs = Arc::clone(jobs);
            // If some threads do not start, the copies are only slower.
            threads.extend(Builder::new().name("cachalot file".into()).spawn(move || carrier.work(&jobs)));
        }
        if threads.is_empty() {
            if let Some(staging) = Arc::into_inner(staging) {
                let _ = staging.give_back(context);
            }
            return Err(CuResult::OPERATING_SYSTEM.error());
        }
        Ok(Self { staging, shared, threads })
    }

    /// Ends the threads, and gives their memory back.
    pub(crate) fn end(self, context: &Context, jobs: &FileJobs) {
        let Self { staging, shared, threads } = self;
        join(&shared, threads, jobs);
        // Memory in doubt remains pinned forever, and memory that could not be given back is lost.
        // No caller could change this.
        if !shared.in_doubt.load(Ordering::Acquire)
            && let Some(staging) = Arc::into_inner(staging)
        {
            let _ = staging.give_back(context);
        }
    }

    /// Ends the threads without a driver call by the calling thread. The memory remains pinned
    /// forever.
    pub(crate) fn abandon(self, jobs: &FileJobs) {
        join(&self.shared, self.threads, jobs);
    }
}

/// Ends threads after the jobs that they have taken.
fn join(crew: &CrewState, threads: Vec<JoinHandle<()>>, jobs: &FileJobs) {
    jobs.change(|| crew.dismissed.store(true, Ordering::Relaxed));
    for thread in threads {
        // The threads do not panic.
        let _ = thread.join();
    }
}

/// The parts of one thread: its chunk, and its stream for the copies.
struct Carrier {
    context: Arc<Context>,
    staging: Arc<Region>,
    /// The number of the chunk.
    chunk: u64,
    stream: OwnStream,
    crew: Arc<CrewState>,
}

impl Carrier {
    /// Does jobs until the crew is dismissed.
    fn work(self, all: &FileJobs) {
        // Relaxed, because it is changed and read under the lock of the jobs.
        while let Some(jobs) = all.take(|| self.crew.dismissed.load(Ordering::Relaxed)) {
            let result = match jobs.first().map(|job| job.way) {
                Some(FileWay::ToFile) => self.save(&jobs),
                Some(FileWay::ToDevice) => self.restore(&jobs),
                None => Ok(()),
            };
            all.end(jobs, result);
        }
        // A stream that the driver does not destroy is lost. No caller could change this.
        let _ = self.stream.destroy(&self.context);
    }

    /// Copies neighbouring bytes from the device to their file.
    fn save(&self, jobs: &[Job]) -> Result<(), Failed> {
        self.copy(jobs, |driver, chunk, job, stream| {
            // SAFETY: the chunk is pinned, and is this thread's until `copy` has waited for the
            // stream.
            unsafe { driver.memcpy_dtoh_async(chunk, job.at.0, job.bytes as usize, stream) }
        })?;
        self.with_bytes(jobs, |file, bytes, offset| file.write(bytes, offset))
    }

    /// Copies neighbouring bytes from their file to the device.
    fn restore(&self, jobs: &[Job]) -> Result<(), Failed> {
        self.with_bytes(jobs, ContentsFile::read)?;
        self.copy(jobs, |driver, chunk, job, stream| {
            // SAFETY: the chunk is pinned, and is this thread's until `copy` has waited for the
            // stream.
            unsafe { driver.memcpy_htod_async(job.at.0, chunk, job.bytes as usize, stream) }
        })
    }

    /// Returns the address of a byte of the chunk.
    fn at(&self, offset: u64) -> NonNull<c_void> {
        self.staging.at(self.chunk * CHUNK + offset)
    }

    /// Calls `act` with the file, the bytes of the chunk for the jobs, and their offset in the
    /// file.
    fn with_bytes(
        &self,
        jobs: &[Job],
        act: impl FnOnce(&ContentsFile, &mut [u8], u64) -> io::Result<()>,
    ) -> Result<(), Failed> {
        self.check_chunk()?;
        let Some(first) = jobs.first() else { return Ok(()) };
        let bytes = jobs.iter().map(|job| job.bytes).sum::<u64>().next_multiple_of(IO_ALIGNMENT);
        // SAFETY: the chunk is mapped and touched, this thread's own, and no copy is in progress in
        // it.
        let bytes = unsafe { core::slice::from_raw_parts_mut(self.at(0).cast().as_ptr(), bytes as usize) };
        act(&first.file, bytes, first.offset).map_err(Failed::from)
    }

    /// Starts a copy for each job, and waits for all.
    fn copy(
        &self,
        jobs: &[Job],
        mut act: impl FnMut(&Driver, *mut c_void, &Job, CuStream) -> CuResult,
    ) -> Result<(), Failed> {
        self.check_chunk()?;
        let stream = self.stream.get(&self.context)?;
        let mut offset = 0;
        let begun = jobs.iter().try_for_each(|job| {
            let chunk = self.at(offset).as_ptr();
            offset += job.bytes;
            self.context.call(|driver| act(driver, chunk, job, stream))
        });
        let mut ended = self.stream.synchronize(&self.context);
        let failed = ended;
        for _ in 1..ASKED {
            if ended.is_ok() || self.context.health().is_err() {
                break;
            }
            ended = self.stream.synchronize(&self.context);
        }
        if ended.is_err() && self.context.health().is_ok() {
            self.crew.in_doubt.store(true, Ordering::Release);
        }
        Ok(begun.and(failed)?)
    }

    /// Refuses to use the chunk if a copy may be in progress there.
    fn check_chunk(&self) -> DeviceResult<()> {
        if self.crew.in_doubt.load(Ordering::Acquire) { Err(CuResult::UNKNOWN.error()) } else { Ok(()) }
    }
}
