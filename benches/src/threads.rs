//! Several threads at once, on streams of their own or all on one: which lock a heap should have.

use crate::btree::BTree;
use crate::cachalot::Cachalot;
use crate::locks::{Futex, Yielding};
use crate::measure::{Clock, Lane};
use crate::settings::Settings;
use crate::subject::Subject;
use cachalot_core::Lock;
use std::hint::black_box;

/// How many threads are measured together.
pub const THREADS: [u64; 3] = [1, 2, 4];

/// How many blocks each thread holds.
const SLOTS: usize = 64;

/// How many requests a thread makes, and frees, when the work is done once.
const STEPS: usize = 1024;

/// Which streams the threads work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Streams {
    /// Each on its own: they share nothing but the allocator.
    Own,
    /// All on the same: they share a heap, and its lock.
    Shared,
}

/// Threads that work together.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    /// How many.
    pub threads: u64,
    /// On which streams.
    pub streams: Streams,
    /// What counts as their time.
    pub clock: Clock,
}

/// One thread's work: it fills its slots in turn with blocks of 512 bytes to 64 KiB, freeing what was there.
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

/// A lane for every lock, and one for the yardstick. An operation's time is that of all threads together.
///
/// # Panics
/// Never: the yardstick knows the default configuration.
pub fn lanes(team: Team) -> Vec<Lane> {
    let yardstick = BTree::new(&Settings::default()).expect("the default configuration is known");
    vec![
        ours::<::cachalot::HeapLock>("of the C ABI", team),
        ours::<parking_lot::RawMutex>("parking_lot", team),
        ours::<Futex>("futex", team),
        ours::<usync::RawMutex>("usync", team),
        ours::<spin::mutex::SpinMutex<()>>("spin", team),
        ours::<spin::mutex::SpinMutex<(), Yielding>>("spin, yielding", team),
        lane_of("BTreeSet, of the C ABI", &yardstick, team),
    ]
}
