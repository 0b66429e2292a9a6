//! A problem as the algorithms take it: chains of buffers that lie in each other's place, in an order that depends on
//! nothing but what they are.

use super::colocations::Colocations;
use super::overwrites::{NONE, Overwrites};
use super::problem::align_up;
use super::{Plan, Problem};
use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

/// The buffers of one place: one that overwrites nobody, and those that are written over it in turn; then the same of each
/// buffer that is colocated with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The first step of its first member.
    pub start: u64,
    /// The last end of any member.
    pub end: u64,
    /// The length of its largest member in bytes; the others lie inside it.
    pub size: u64,
    /// What its offset is a multiple of.
    pub alignment: u64,
    /// Where it must lie, if that is settled.
    pub fixed: Option<u64>,
    /// Whether it has colocated members, so that there may be steps in between at which nobody lives, or bytes that nobody holds.
    pub gaps: bool,
    /// Its first member, in [`Chains::members`].
    first: u32,
    /// How many members it has.
    count: u32,
}

/// A buffer as a part of its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in the problem.
    pub buffer: u32,
    /// The first step at which it lives.
    pub start: u64,
    /// The step before which it has ended.
    pub end: u64,
    /// From when on its bytes are this member's alone: its start, or the end of the one that it overwrites. Not below `end`
    /// in a member that ends together with that one.
    pub since: u64,
    /// Where in its chain it lies, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// The chains of a problem.
///
/// In the order of their content (start, end, size, alignment, fixed offset, then their members'), whatever the order of the
/// buffers: chains that are equal in all of that are interchangeable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chains {
    chains: Vec<Chain>,
    members: Vec<Member>,
}

impl Chains {
    /// The chains of a problem that has been checked. (Of another one too, but they may make no sense.)
    pub fn of(problem: &Problem) -> Self {
        let (overwrites, colocations) = (Overwrites::of(problem), Colocations::of(problem));
        let mut raw = Self { chains: Vec::new(), members: Vec::with_capacity(problem.buffers.len()) };
        let leader = |root: u32| colocations.leader[root as usize];
        let mut roots: Vec<u32> = (0..problem.buffers.len() as u32).collect();
        roots.retain(|&root| overwrites.target[root as usize] == NONE);
        roots.sort_by_key(|&root| (leader(root), problem.buffers[root as usize].start));
        for group in roots.chunk_by(|&one, &other| leader(one) == leader(other)) {
            raw.gather(problem, &overwrites, group, colocations.alignment[group[0] as usize]);
        }
        let mut chains = raw.chains.clone();
        // Equal chains differ in the numbers of their buffers alone; a stable sort keeps those ascending.
        chains.sort_by(|one, other| raw.compare(problem, one, other));
        let mut members = Vec::with_capacity(raw.members.len());
        for chain in &mut chains {
            let range = chain.range();
            chain.first = members.len() as u32;
            members.extend_from_slice(&raw.members[range]);
        }
        Self { chains, members }
    }

    /// Adds the chain of a group of buffers that overwrite nobody, in the order of their lives.
    fn gather(&mut self, problem: &Problem, overwrites: &Overwrites, group: &[u32], alignment: u64) {
        let first = self.members.len();
        let of = |buffer: u32| &problem.buffers[buffer as usize];
        for &root in group {
            let (mut buffer, mut since, mut offset) = (root, of(root).start, 0);
            while buffer != NONE {
                let own = of(buffer);
                offset += overwrites.offset[buffer as usize];
                self.members.push(Member { buffer, start: own.start, end: own.end, since, offset, size: own.size });
                since = own.end;
                buffer = overwrites.writer[buffer as usize];
            }
        }
        let ends = self.members[first..].iter().map(|member| member.end);
        self.chains.push(Chain {
            start: of(group[0]).start,
            end: ends.fold(0, u64::max),
            size: group.iter().map(|&root| of(root).size).fold(0, u64::max),
            alignment,
            fixed: group.iter().find_map(|&root| of(root).fixed),
            gaps: group.len() > 1,
            first: first as u32,
            count: (self.members.len() - first) as u32,
        });
    }

    fn compare(&self, problem: &Problem, one: &Chain, other: &Chain) -> Ordering {
        let whole = |chain: &Chain| (chain.start, chain.end, chain.size, chain.alignment, chain.fixed);
        let part = |member: &Member| {
            let buffer = &problem.buffers[member.buffer as usize];
            (member.start, member.end, member.offset, member.size, buffer.alignment, buffer.fixed)
        };
        let parts = |chain: &Chain| self.members[chain.range()].iter().map(part);
        whole(one).cmp(&whole(other)).then_with(|| parts(one).cmp(parts(other)))
    }

    /// The same chains, in the same order, without gaps: where one has them, a single member holds all of its bytes all the time.
    pub(super) fn solid(&self) -> Cow<'_, Self> {
        if self.chains.iter().all(|chain| !chain.gaps) {
            return Cow::Borrowed(self);
        }
        let mut solid = Self { chains: Vec::with_capacity(self.len()), members: Vec::new() };
        for chain in &self.chains {
            let first = solid.members.len();
            let members = self.members_of(chain);
            if chain.gaps {
                let (start, end, size) = (chain.start, chain.end, chain.size);
                solid.members.push(Member { start, end, since: start, offset: 0, size, ..members[0] });
            } else {
                solid.members.extend_from_slice(members);
            }
            let count = (solid.members.len() - first) as u32;
            solid.chains.push(Chain { gaps: false, first: first as u32, count, ..*chain });
        }
        Cow::Owned(solid)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.chains.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Chain] {
        &self.chains
    }

    /// Every member, those of a chain one behind the other, each written over the one before or colocated with the first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The members of a chain, one that overwrites nobody first.
    pub fn members_of(&self, chain: &Chain) -> &[Member] {
        &self.members[chain.range()]
    }

    /// The plan in which each chain lies at its offset.
    pub fn plan(&self, offsets: &[u64]) -> Plan {
        let mut plan = Plan { offsets: vec![0; self.members.len()], peak: self.peak(offsets) };
        for (chain, &offset) in self.chains.iter().zip(offsets) {
            for member in self.members_of(chain) {
                plan.offsets[member.buffer as usize] = offset + member.offset;
            }
        }
        plan
    }

    /// How many bytes the chains need at these offsets.
    pub fn peak(&self, offsets: &[u64]) -> u64 {
        let end = |(chain, &offset): (&Chain, &u64)| align_up(offset + chain.size, chain.alignment);
        self.chains.iter().zip(offsets).map(end).max().unwrap_or(0)
    }

    /// Where a plan puts each chain.
    pub fn offsets(&self, plan: &Plan) -> Vec<u64> {
        self.chains.iter().map(|chain| plan.offsets[self.members[chain.first as usize].buffer as usize]).collect()
    }
}

impl Chain {
    /// Its members, in [`Chains::members`].
    pub fn range(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }

    /// How long it lives, in steps.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }
}
