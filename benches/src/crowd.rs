//! A pair, `malloc` and `free` of a cached block, with any number of free blocks around it.
//!
//! ```text
//! | free | held | free | held | free | held | …      the held ones keep the free ones apart
//! ```

use crate::subject::Subject;
use crate::workload::Workload;
use cachalot_core::rounding::{SMALL_MAX, SMALL_SEGMENT};
use cachalot_core::{MIB, UNIT};
use std::hint::black_box;

/// The requests of the pairs that are measured, in bytes.
pub const SIZES: [u64; 5] = [512, 4 << 10, MIB, 8 * MIB, 64 * MIB];

/// The sizes of the free blocks around a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Equal, Self::Distinct, Self::Mixture, Self::Drawn];

    /// What the tables call it.
    pub fn name(self) -> &'static str {
        match self {
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
    /// What is allocated to make the crowd, in the order in which it lies.
    members: Vec<Member>,
    /// Whether they come out of one segment, not of many of the small pool's.
    one_segment: bool,
}

/// A block of a crowd.
#[derive(Clone, Copy, Debug)]
struct Member {
    bytes: u64,
    /// Whether it is one of the free ones, not one of those between them.
    free: bool,
}

/// The members that lie between two free blocks and keep them apart, such that in the small pool each segment is full:
/// nothing else is left free that a member might be put into.
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
    /// Pairs of `request` bytes among `count` free blocks. `None` if the pool has not so many sizes.
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
        random.shuffle(&mut free);
        let small = request <= SMALL_MAX;
        Some(Self { requests, members: members(free, least * UNIT, small), one_segment: !small })
    }

    /// Pairs in a fresh allocator, which splits the block off and makes it one with the rest again.
    pub fn alone(request: u64) -> Self {
        Self { requests: vec![request], members: Vec::new(), one_segment: false }
    }

    /// Bytes of all members.
    fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).sum()
    }

    /// Makes the crowd; false if the subject cannot hold it.
    fn gather<S: Subject>(&self, subject: &mut S) -> bool {
        // Sizes would be rounded up to those of segments otherwise.
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
        self.members.len() <= 20_000
    }

    fn arena(&self) -> u64 {
        // Room for the rest of the largest request, and for headers inside the memory.
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

    /// The sizes of the free blocks, in order.
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
                assert!(crowd.gather(&mut subject) && crowd.pairs(&mut subject, 10_000));
                let before = free_sizes(&subject);
                let mut left = before.clone();
                for member in crowd.members.iter().filter(|member| member.free) {
                    left.remove(left.binary_search(&member.bytes).expect("a block of this size is free"));
                }
                assert_eq!(before.len() - left.len(), count as usize);
                // Beside them there is the end of the last segment, and one for drawn requests that no member can serve.
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
