//! Allocators of others, each over one arena, as they come: no lock, no statistics, no streams, no segments, and the
//! caller keeps what each needs to free a block. What they do is less than what [`Cachalot`](crate::cachalot) does;
//! their times say how far away the floor is.
//!
//! Two of them keep their bookkeeping inside the memory they manage, which a device's memory does not allow. They get
//! host memory, [`SCALE`] times smaller than the arena stands for, so that it lies as densely as their authors meant it to.

use crate::subject::Subject;
use buddy_system_allocator::{FrameAllocator, Heap};
use cachalot_core::UNIT;
use memmap2::{MmapMut, MmapOptions};
use offset_allocator::{Allocation, Allocator};
use rlsf::Tlsf;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Bytes of device memory that one byte of host memory stands for: a unit becomes the least block that `rlsf` has.
pub const SCALE: u64 = UNIT / rlsf::GRANULARITY as u64;

/// Host memory that is not there until it is touched.
fn map(bytes: u64) -> MmapMut {
    let bytes = usize::try_from(bytes).expect("addresses have 64 bits");
    MmapOptions::new().len(bytes).no_reserve_swap().map_anon().expect("there is address space left")
}

/// The layout of a request, scaled to host memory.
fn layout(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(bytes.div_ceil(SCALE) as usize, 8).ok()
}

/// `rlsf`: two-level segregated fit, constant time, a good fit rather than the best.
pub struct Rlsf {
    tlsf: Tlsf<'static, u64, u32, 40, 32>,
    /// What `tlsf` manages, and points into.
    _memory: MmapMut,
}

impl Rlsf {
    /// Over an arena that stands for `bytes`.
    ///
    /// # Panics
    /// If there is no address space for it.
    pub fn new(bytes: u64) -> Self {
        let mut memory = map(bytes / SCALE);
        let mut tlsf = Tlsf::new();
        // SAFETY: the mapping does not move, is used through `tlsf` alone, and lives as long as that: they share an owner
        // that hands out neither, and `tlsf` touches nothing when it is dropped.
        let pool = unsafe { tlsf.insert_free_block_ptr(NonNull::from(&mut *memory)) };
        assert!(pool.is_some(), "the arena is large enough for a block");
        Self { tlsf, _memory: memory }
    }
}

impl Subject for Rlsf {
    type Handle = NonNull<u8>;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, _stream: u64) -> Option<NonNull<u8>> {
        self.tlsf.allocate(layout(bytes)?)
    }

    #[inline(never)]
    fn free(&mut self, block: NonNull<u8>) {
        // SAFETY: by the contract of `Subject`, `malloc` returned the block, which is held still; its alignment was 8.
        unsafe { self.tlsf.deallocate(block, 8) }
    }
}

/// `offset-allocator`: two-level bins by size, constant time, a good fit; the bookkeeping is outside, in units.
pub struct Offset(Allocator<u32>);

/// The most blocks of an [`Offset`], free or not: its tables have a fixed length.
const MAX_BLOCKS: u32 = 1 << 18;

impl Offset {
    /// Over an arena of `bytes`; `None` if that is more than 2³² units. (Of 2³² exactly it lacks the last.)
    pub fn new(bytes: u64) -> Option<Self> {
        let units = u32::try_from((bytes / UNIT).saturating_sub(1)).ok()?;
        Some(Self(Allocator::with_max_allocs(units, MAX_BLOCKS)))
    }
}

impl Subject for Offset {
    type Handle = Allocation<u32>;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, _stream: u64) -> Option<Allocation<u32>> {
        self.0.allocate(u32::try_from(bytes.div_ceil(UNIT)).ok()?)
    }

    #[inline(never)]
    fn free(&mut self, block: Allocation<u32>) {
        self.0.free(block);
    }
}

/// `buddy_system_allocator`'s allocator of frames: powers of two, free ones in one `BTreeSet` an order.
pub struct BuddyFrames(FrameAllocator<48>);

impl BuddyFrames {
    /// Over an arena of `bytes`.
    pub fn new(bytes: u64) -> Self {
        let mut frames = FrameAllocator::new();
        frames.add_frame(0, (bytes / UNIT) as usize);
        Self(frames)
    }
}

impl Subject for BuddyFrames {
    type Handle = (usize, usize);

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, _stream: u64) -> Option<(usize, usize)> {
        let count = bytes.div_ceil(UNIT) as usize;
        Some((self.0.alloc(count)?, count))
    }

    #[inline(never)]
    fn free(&mut self, (start, count): (usize, usize)) {
        self.0.dealloc(start, count);
    }
}

/// `buddy_system_allocator`'s heap: powers of two, free ones in one list an order, linked through themselves.
pub struct BuddyHeap {
    heap: Heap<48>,
    /// What `heap` manages, and points into.
    _memory: MmapMut,
}

impl BuddyHeap {
    /// Over an arena that stands for `bytes`, a power of two.
    ///
    /// # Panics
    /// If there is no address space for it.
    pub fn new(bytes: u64) -> Self {
        // Twice the length holds one block of the length, aligned to it, wherever the mapping begins.
        let (memory, bytes) = (map(bytes / SCALE * 2), (bytes / SCALE) as usize);
        let start = (memory.as_ptr() as usize).next_multiple_of(bytes);
        let mut heap = Heap::new();
        // SAFETY: the range is inside the mapping, which does not move, is used through `heap` alone, and lives as long as
        // that: they share an owner that hands out neither, and `heap` touches nothing when it is dropped.
        unsafe { heap.init(start, bytes) };
        Self { heap, _memory: memory }
    }
}

impl Subject for BuddyHeap {
    type Handle = (NonNull<u8>, Layout);

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, _stream: u64) -> Option<(NonNull<u8>, Layout)> {
        let layout = layout(bytes)?;
        Some((self.heap.alloc(layout).ok()?, layout))
    }

    #[inline(never)]
    fn free(&mut self, (block, layout): (NonNull<u8>, Layout)) {
        // SAFETY: by the contract of `Subject`, `malloc` returned the block for this layout, and it is held still.
        unsafe { self.heap.dealloc(block, layout) }
    }
}
