//! Chains: the normal form of a problem. A chain joins buffers that have offsets which depend on
//! each other. The order of chains depends only on their content.

use super::colocations::Colocations;
use super::overwrites::{NONE, Overwrites};
use super::{Plan, Problem};
use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

/// The buffers that are at one place: a root, which overwrites no buffer, followed by the chain of
/// writers over it. Colocated roots follow, each with its chain of writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The first step of the first member.
    pub start: u64,
    /// The largest end of a member.
    pub end: u64,
    /// The length in bytes of the largest member. All members are inside it.
    pub size: u64,
    /// The offset of the chain is a multiple of this power of two.
    pub alignment: u64,
    /// The offset, if the problem fixes it.
    pub fixed: Option<u64>,
    /// Whether the chain has colocated members. Only a chain with gaps can have steps without a
    /// live member, or bytes that no live member uses.
    pub gaps: bool,
    /// The number of the first member in [`Chains::members`].
    first: u32,
    /// The number of members.
    count: u32,
}

/// A buffer as part of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The number of the buffer in the problem.
    pub buffer: u32,
    /// The first step at which the buffer is live.
    pub start: u64,
    /// The first step at which the buffer is no longer live.
    pub end: u64,
    /// The first step at which the bytes belong only to this member: the start of the buffer, or
    /// the end of the target. At least `end` for a writer that ends no later than its target.
    pub since: u64,
    /// The distance in bytes from the start of the chain.
    pub offset: u64,
    /// The length in bytes.
    pub size: u64,
}

/// The chains of a problem, sorted by content, whatever the order of the buffers.
///
/// Chains are sorted by start, end, size, alignment and fixed offset, then by the same values of
/// the members. Chains with the same content are interchangeable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chains {
    chains: Vec<Chain>,
    members: Vec<Member>,
}

impl Chains {
    /// Builds the chains of a problem. If [`Problem::check`] rejects the problem, its chains may
    /// have no meaning.
    pub fn of(problem: &Problem) -> Self {
        let (overwrites, colocations) = (Overwrites::of(problem), Colocations::of(problem));
        let mut raw = Self { chains: Vec::new(), members: Vec::with_capacity(problem.buffers.len()) };
        let leader = |root: u32| colocations.leader[root as usize];
        let mut roots: Vec<u32> = (0..problem.buffers.len() as u32).collect();
        // A buffer that overwrites no other one is the root of a list of writers. Roots with the
        // same leader form one chain, in the order of their lives.
        roots.retain(|&root| overwrites.target[root as usize] == NONE);
        roots.sort_by_key(|&root| (leader(root), problem.buffers[root as usize].start));
        for group in roots.chunk_by(|&one, &other| leader(one) == leader(other)) {
            raw.gather(problem, &overwrites, group, colocations.alignment[group[0] as usize]);
        }
        let mut chains = raw.chains.clone();
        // Chains with the same content differ only in buffer numbers. The sort is stable, so these
        // numbers ascend.
        chains.sort_by(|one, other| raw.compare(problem, one, other));
        let mut members = Vec::with_capacity(raw.members.len());
        for chain in &mut chains {
            let range = chain.range();
            chain.first = members.len() as u32;
            members.extend_from_slice(&raw.members[range]);
        }
        Self { chains, members }
    }

    /// Appends one chain: a group of roots in the order of their lives, each followed by its
    /// writers.
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

    /// Compares two chains by content, without the buffer numbers.
    fn compare(&self, problem: &Problem, one: &Chain, other: &Chain) -> Ordering {
        let whole = |chain: &Chain| (chain.start, chain.end, chain.size, chain.alignment, chain.fixed);
        let part = |member: &Member| {
            let buffer = &problem.buffers[member.buffer as usize];
            (member.start, member.end, member.offset, member.size, buffer.alignment, buffer.fixed)
        };
        let parts = |chain: &Chain| self.members[chain.range()].iter().map(part);
        whole(one).cmp(&whole(other)).then_with(|| parts(one).cmp(parts(other)))
    }

    /// Returns the chains without gaps: a chain with gaps gets a single member, which uses all
    /// bytes during the whole life of the chain.
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

    /// Returns the number of chains.
    pub fn len(&self) -> usize {
        self.chains.len()
    }

    /// Returns whether the problem has no buffers.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Returns all chains in order.
    pub fn all(&self) -> &[Chain] {
        &self.chains
    }

    /// Returns all members. The members of one chain are adjacent. Each is written over the member
    /// before it, or is colocated with the first one.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the members of a chain. The first is a root.
    pub fn members_of(&self, chain: &Chain) -> &[Member] {
        &self.members[chain.range()]
    }

    /// Makes the plan in which each chain is at the given offset.
    pub fn plan(&self, offsets: &[u64]) -> Plan {
        let mut plan = Plan { offsets: vec![0; self.members.len()], peak: self.peak(offsets) };
        for (chain, &offset) in self.chains.iter().zip(offsets) {
            for member in self.members_of(chain) {
                plan.offsets[member.buffer as usize] = offset + member.offset;
            }
        }
        plan
    }

    /// Returns the bytes that the chains need at the given offsets.
    pub fn peak(&self, offsets: &[u64]) -> u64 {
        let end = |(chain, &offset): (&Chain, &u64)| offset + chain.size;
        self.chains.iter().zip(offsets).map(end).max().unwrap_or(0)
    }

    /// Returns the offset of each chain in a plan.
    pub fn offsets(&self, plan: &Plan) -> Vec<u64> {
        self.chains.iter().map(|chain| plan.offsets[self.members[chain.first as usize].buffer as usize]).collect()
    }
}

impl Chain {
    /// Returns the range of the members in [`Chains::members`].
    pub fn range(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }

    /// Returns the number of steps from the start of the chain to its end.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }
}
