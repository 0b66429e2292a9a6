//! A pair, `malloc` and `free` of a cached block, with any number of free blocks around it.
//!
//! ```text
//! | free | held | free | held | free | held | …      the held ones keep the free ones apart
//! ```

use crate::subject::Subject;
use crate::workload::Workload;
use cachalot_core::rounding::SMALL_MAX;
use cachalot_core::units::{MIB, UNIT};
use std::hint::black_box;

/// The requests of the pairs that are measured, in bytes.
pub const SIZES: [u64; 5] = [512, 4 << 10, MIB, 8 * MIB, 64 * MIB];

/// The sizes of the free blocks around a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// None at all: a fresh allocator, which splits the block off and makes it one with the rest again.
    Alone,
    /// All of the size that is requested: a block is taken whole, and given back whole.
    Equal,
    /// Each another size, the requested one in the middle.
    Distinct,
    /// At random between the bounds of the pool, every order of magnitude alike.
    Mixture,
    /// As [`Mixture`](Self::Mixture), with requests at random as well.
    Drawn,
}

impl Layout {
    /// The layouts with free blocks around.
    pub const CROWDED: [Self; 4] = [Self::Equal, Self::Distinct, Self::Mixture, Self::Drawn];

    /// What the tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Equal => "equal",
            Self::Distinct => "distinct",
            Self::Mixture => "mixture",
            Self::Drawn => "mixture, drawn",
        }
    }
}

/// The sizes that the small pool hands out, or those from just above it up to 64 MiB; in units.
fn bounds(request: u64) -> (u64, u64) {
    if request <= SMALL_MAX { (1, SMALL_MAX / UNIT) } else { (SMALL_MAX / UNIT + 1, 64 * MIB / UNIT) }
}

/// Pairs in a crowd of free blocks.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// The requests, in turn; their number is a power of two.
    requests: Vec<u64>,
    /// The free blocks' sizes in the order in which they lie.
    free: Vec<u64>,
    /// The size of the held blocks between them.
    between: u64,
}

impl Crowd {
    /// Pairs of `request` bytes among `count` free blocks. `None` if the pool has not so many sizes.
    pub fn new(layout: Layout, request: u64, count: u64) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(count ^ request);
        let (least, most) = bounds(request);
        let mut draw = || {
            let log2 = random.f64() * (most as f64 / least as f64).log2();
            ((least as f64 * log2.exp2()) as u64).clamp(least, most) * UNIT
        };
        let free: Vec<u64> = match layout {
            Layout::Alone => Vec::new(),
            Layout::Equal => (0..count).map(|_| request).collect(),
            Layout::Distinct => {
                let first = (request / UNIT).saturating_sub(count / 2).max(least);
                // Blocks above the pool's requests have no size of their own in the small pool.
                if request <= SMALL_MAX && first + count > most {
                    return None;
                }
                (first..first + count).map(|units| units * UNIT).collect()
            }
            Layout::Mixture | Layout::Drawn => (0..count).map(|_| draw()).collect(),
        };
        let requests = match layout {
            Layout::Drawn => (0..4096).map(|_| draw()).collect(),
            _ => vec![request],
        };
        let mut crowd = Self { requests, free, between: least * UNIT };
        random.shuffle(&mut crowd.free);
        Some(crowd)
    }

    /// The pair in a fresh allocator.
    pub fn alone(request: u64) -> Self {
        Self { requests: vec![request], free: Vec::new(), between: 0 }
    }

    /// Bytes of all blocks, free and held.
    fn bytes(&self) -> u64 {
        self.free.iter().map(|free| free + self.between).sum()
    }

    /// Makes the crowd; false if the subject cannot hold it.
    fn gather<S: Subject>(&self, subject: &mut S) -> bool {
        // One segment for all, where there are segments: sizes would be rounded up to those of segments otherwise.
        if self.between > UNIT
            && let Some(all) = subject.malloc(self.bytes() + 64 * MIB, 0)
        {
            subject.free(all);
        }
        let mut gathered = Vec::with_capacity(self.free.len());
        for &free in &self.free {
            let Some(block) = subject.malloc(free, 0) else { return false };
            if subject.malloc(self.between, 0).is_none() {
                return false;
            }
            gathered.push(block);
        }
        fastrand::Rng::with_seed(1).shuffle(&mut gathered);
        gathered.into_iter().for_each(|block| subject.free(block));
        true
    }

    /// One pair for each request in turn, `times` in all; false if one was refused.
    #[inline(never)]
    fn pairs<S: Subject>(&self, subject: &mut S, times: u64) -> bool {
        let mask = self.requests.len() - 1;
        for time in 0..times as usize {
            let Some(block) = subject.malloc(black_box(self.requests[time & mask]), 0) else { return false };
            subject.free(block);
        }
        true
    }
}

impl Workload for Crowd {
    fn lane<S: Subject + 'static>(&self, mut subject: S) -> Option<Box<dyn FnMut(u64)>> {
        let crowd = self.clone();
        let holds = crowd.gather(&mut subject) && crowd.pairs(&mut subject, crowd.requests.len() as u64);
        holds.then(|| -> Box<dyn FnMut(u64)> {
            Box::new(move |times| assert!(crowd.pairs(&mut subject, times), "it was served before"))
        })
    }

    fn allows_walks(&self) -> bool {
        // The crowd alone would take minutes to gather.
        self.free.len() <= 10_000
    }

    fn arena(&self) -> u64 {
        // Room for the rest of the largest request, and for headers inside the memory.
        let headers = self.free.len() as u64 * 4 * UNIT;
        (self.bytes() + headers + 256 * MIB).next_power_of_two()
    }
}
