//! Pairs (`malloc` and `free` of a cached block) among any number of free blocks.
//!
//! ```text
//! | free | held | free | held | free | held | …      the held blocks keep the free blocks apart
//! ```

use crate::subject::Subject;
use crate::workload::Workload;
use cachalot_core::rounding::{SMALL_MAX, SMALL_SEGMENT};
use cachalot_core::{MIB, UNIT};
use std::hint::black_box;

/// Request sizes of the measured pairs, in bytes.
pub const SIZES: [u64; 5] = [512, 4 << 10, MIB, 8 * MIB, 64 * MIB];

/// Distribution of the sizes of the free blocks around a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// All free blocks have the requested size: a block is allocated and freed whole.
    Equal,
    /// All free blocks have different sizes, with the requested size in the middle.
    Distinct,
    /// Sizes are random between the bounds of the pool, with all orders of magnitude equally
    /// likely.
    Mixture,
    /// As [`Mixture`](Self::Mixture), and the requested sizes are random too.
    Drawn,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 4] = [Self::Equal, Self::Distinct, Self::Mixture, Self::Drawn];

    /// Returns the name used in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Distinct => "distinct",
            Self::Mixture => "mixture",
            Self::Drawn => "mixture, drawn",
        }
    }
}

/// Returns the bounds of the sizes, in units: the sizes of the small pool, or the sizes above up to
/// 64 MiB.
fn bounds(request: u64) -> (u64, u64) {
    if request <= SMALL_MAX { (1, SMALL_MAX / UNIT) } else { (SMALL_MAX / UNIT + 1, 64 * MIB / UNIT) }
}

/// A workload of pairs among free blocks.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Request sizes, used in turn; the length is a power of two.
    requests: Vec<u64>,
    /// The blocks allocated to build the crowd, in address order.
    members: Vec<Member>,
    /// Whether all members are in a single segment, rather than in many segments of the small pool.
    one_segment: bool,
}

/// A block of a crowd.
#[derive(Clone, Copy, Debug)]
struct Member {
    bytes: u64,
    /// Whether the block is freed; else the block stays live and separates free blocks.
    free: bool,
}

/// Lists the members of a crowd: a live block of `between` bytes follows each free block. In the
/// small pool each segment is filled completely, so no other free memory could serve a member.
fn members(free: impl IntoIterator<Item = u64>, between: u64, small: bool) -> Vec<Member> {
    let mut members = Vec::new();
    let mut left = SMALL_SEGMENT;
    for bytes in free {
        if small && bytes + between > left {
            if left > 0 {
                members.push(Member { bytes: left, free: false });
            }
            left = SMALL_SEGMENT;
        }
        left = left.saturating_sub(bytes + between);
        members.extend([Member { bytes, free: true }, Member { bytes: between, free: false }]);
    }
    members
}

impl Crowd {
    /// Creates pairs of `request` bytes among `count` free blocks. `None` if the pool has too few
    /// sizes.
    pub fn new(layout: Layout, request: u64, count: u64) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(count ^ request);
        let (least, most) = bounds(request);
        let mut draw = || {
            let log2 = random.f64() * (most as f64 / least as f64).log2();
            ((least as f64 * log2.exp2()) as u64).clamp(least, most) * UNIT
        };
        let mut free: Vec<u64> = match layout {
            Layout::Equal => (0..count).map(|_| request).collect(),
            Layout::Distinct => {
                let first = (request / UNIT).saturating_sub(count / 2).max(least);
                // The small pool has no sizes above its largest request.
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
        random.shuffle(&mut free);
        let small = request <= SMALL_MAX;
        Some(Self { requests, members: members(free, least * UNIT, small), one_segment: !small })
    }

    /// Creates pairs in an empty allocator, which splits the block off and merges the block with
    /// the remainder again.
    pub fn alone(request: u64) -> Self {
        Self { requests: vec![request], members: Vec::new(), one_segment: false }
    }

    /// Returns the bytes of all members.
    fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).sum()
    }

    /// Builds the crowd. Returns false if the subject has too little memory.
    fn build<S: Subject>(&self, subject: &mut S) -> bool {
        // One large segment first: otherwise the sizes of members would be rounded up to sizes of
        // segments.
        if self.one_segment
            && let Some(all) = subject.malloc(self.bytes() + 64 * MIB, 0)
        {
            subject.free(all);
        }
        let mut free = Vec::with_capacity(self.members.len());
        for member in &self.members {
            match subject.malloc(member.bytes, 0) {
                Some(block) if member.free => free.push(block),
                Some(_) => {}
                None => return false,
            }
        }
        fastrand::Rng::with_seed(1).shuffle(&mut free);
        for block in free {
            subject.free(block);
        }
        true
    }

    /// Makes one pair for each request in turn, `times` pairs in all. Returns false if a request
    /// was refused.
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
        let holds = crowd.build(&mut subject) && crowd.pairs(&mut subject, crowd.requests.len() as u64);
        holds.then(|| -> Box<dyn FnMut(u64)> {
            Box::new(move |times| assert!(crowd.pairs(&mut subject, times), "it was served before"))
        })
    }

    fn allows_walks(&self) -> bool {
        // Building the crowd would take minutes.
        self.members.len() <= 20_000
    }

    fn arena(&self) -> u64 {
        // Room for the remainder of the largest request, and for headers inside the memory.
        let headers = self.members.len() as u64 * 2 * UNIT;
        (self.bytes() + headers + 256 * MIB).next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cachalot::Cachalot;
    use crate::settings::Settings;
    use cachalot_core::BlockState;

    type Subject = Cachalot<::cachalot::HeapLock>;

    /// Returns the sorted sizes of the free blocks.
    fn free_sizes(subject: &Subject) -> Vec<u64> {
        let blocks = subject.allocator().snapshot().into_iter().flat_map(|segment| segment.blocks);
        let free = blocks.filter(|block| block.state == BlockState::Inactive);
        let mut sizes: Vec<u64> = free.map(|block| block.size).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn a_crowd_consists_of_the_free_blocks_it_names_and_pairs_leave_it_so() {
        let mut crowds = 0;
        for (request, layout) in [4 << 10, 8 * MIB].into_iter().flat_map(|request| Layout::ALL.map(|of| (request, of)))
        {
            for count in [10, 1_000] {
                let crowd = Crowd::new(layout, request, count).unwrap();
                let mut subject = Subject::new(&Settings::default());
                assert!(crowd.build(&mut subject) && crowd.pairs(&mut subject, 10_000));
                let before = free_sizes(&subject);
                let mut left = before.clone();
                for member in crowd.members.iter().filter(|member| member.free) {
                    left.remove(left.binary_search(&member.bytes).expect("a block of this size is free"));
                }
                assert_eq!(before.len() - left.len(), count as usize);
                // Also free: the end of the last segment, and one segment for drawn requests that
                // no member fits.
                let others = if layout == Layout::Drawn { 2 } else { 1 };
                assert!(left.len() <= others, "{layout:?} of {request}: {left:?} are free as well");
                assert!(crowd.pairs(&mut subject, 10_000));
                assert_eq!(free_sizes(&subject), before, "{layout:?} of {request}");
                crowds += 1;
            }
        }
        assert_eq!(crowds, 16);
    }

    #[test]
    fn the_small_pool_has_too_few_sizes_for_a_large_crowd_of_distinct_ones() {
        assert!(Crowd::new(Layout::Distinct, 4 << 10, 100_000).is_none());
        assert!(Crowd::new(Layout::Distinct, 8 * MIB, 100_000).is_some());
    }
}
