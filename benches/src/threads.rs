//! Concurrent threads, on their own streams or on one shared stream: a comparison of locks for a
//! heap.

use crate::btree::BTree;
use crate::cachalot::Cachalot;
use crate::locks::{Futex, Yielding};
use crate::measure::{Clock, Lane};
use crate::settings::Settings;
use crate::subject::Subject;
use cachalot_core::Lock;
use std::hint::black_box;

/// Numbers of concurrent threads in the measurements.
pub const THREADS: [u64; 3] = [1, 2, 4];

/// Number of live blocks of each thread.
const SLOTS: usize = 64;

/// Requests, and frees, of a thread in one execution of the work.
const STEPS: usize = 1024;

/// The streams of the threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Streams {
    /// Each thread uses its own stream: the threads share the allocator only.
    Own,
    /// All threads use one stream: the threads share a heap and the heap's lock.
    Shared,
}

/// A group of concurrent threads.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    /// Number of threads.
    pub threads: u64,
    /// The streams of the threads.
    pub streams: Streams,
    /// The clock of the measurement.
    pub clock: Clock,
}

/// One thread's work: fills the slots in turn with blocks of 512 bytes to 64 KiB, and frees the
/// earlier block of each slot.
struct Worker<S: Subject> {
    subject: S,
    stream: u64,
    sizes: Vec<u64>,
    slots: Vec<Option<S::Handle>>,
}

impl<S: Subject> Worker<S> {
    fn new(subject: S, thread: u64, streams: Streams) -> Self {
        let mut random = fastrand::Rng::with_seed(thread);
        let sizes = (0..STEPS).map(|_| random.u64(1..=128) * 512).collect();
        let stream = if streams == Streams::Own { thread } else { 0 };
        Self { subject, stream, sizes, slots: vec![None; SLOTS] }
    }

    fn work(&mut self, times: u64) {
        for _ in 0..times {
            for (step, &bytes) in self.sizes.iter().enumerate() {
                let slot = &mut self.slots[step % SLOTS];
                if let Some(block) = slot.take() {
                    self.subject.free(block);
                }
                *slot = self.subject.malloc(black_box(bytes), self.stream);
            }
        }
    }
}

fn lane_of<S>(name: &'static str, subject: &S, team: Team) -> Lane
where
    S: Subject<Handle: Send> + Clone + Send + 'static,
{
    let Team { threads, streams, clock } = team;
    let mut workers: Vec<_> = (0..threads).map(|thread| Worker::new(subject.clone(), thread, streams)).collect();
    let run = move |times| {
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(move || worker.work(times));
            }
        });
    };
    Lane { name, operations: threads * STEPS as u64 * 2, clock, run: Box::new(run) }
}

fn ours<R: Lock>(name: &'static str, team: Team) -> Lane {
    lane_of(name, &Cachalot::<R>::new(&Settings::default()), team)
}

/// Creates a lane for every lock, and a lane for the baseline. The time of an operation covers all
/// threads together.
///
/// # Panics
/// Never: the baseline supports the default configuration.
pub fn lanes(team: Team) -> Vec<Lane> {
    let baseline = BTree::new(&Settings::default()).expect("the default configuration is known");
    vec![
        ours::<::cachalot::HeapLock>("of the C ABI", team),
        ours::<parking_lot::RawMutex>("parking_lot", team),
        ours::<Futex>("futex", team),
        ours::<usync::RawMutex>("usync", team),
        ours::<spin::mutex::SpinMutex<()>>("spin", team),
        ours::<spin::mutex::SpinMutex<(), Yielding>>("spin, yielding", team),
        lane_of("BTreeSet, of the C ABI", &baseline, team),
    ]
}
