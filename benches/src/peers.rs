//! Peers: other allocators, each over an arena and unmodified, without locks, statistics, streams
//! or segments. The caller stores each allocator's data for a free. All peers do less work than
//! [`Cachalot`](crate::cachalot); their times indicate a lower bound.
//!
//! Two allocators store metadata inside the managed memory, which is impossible in device memory.
//! Both get host memory, [`SCALE`] times smaller than the nominal arena, so the density of the
//! metadata is as their authors intended.

use crate::subject::Subject;
use buddy_system_allocator::{FrameAllocator, Heap};
use cachalot_core::UNIT;
use memmap2::{MmapMut, MmapOptions};
use offset_allocator::{Allocation, Allocator};
use rlsf::Tlsf;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Bytes of device memory per byte of host memory: a unit becomes the smallest block of `rlsf`.
pub const SCALE: u64 = UNIT / rlsf::GRANULARITY as u64;

/// Maps host memory that is populated on first access.
fn map(bytes: u64) -> MmapMut {
    let bytes = usize::try_from(bytes).expect("addresses have 64 bits");
    MmapOptions::new().len(bytes).no_reserve_swap().map_anon().expect("there is address space left")
}

/// Returns the layout of a request, scaled to host memory.
fn layout(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(bytes.div_ceil(SCALE) as usize, 8).ok()
}

/// `rlsf`: two-level segregated fit, constant time, good fit rather than best fit.
pub struct Rlsf {
    tlsf: Tlsf<'static, u64, u32, 40, 32>,
    /// The memory managed by `tlsf`, which contains pointers into the memory.
    _memory: MmapMut,
}

impl Rlsf {
    /// Creates an allocator over an arena of nominally `bytes` bytes.
    ///
    /// # Panics
    /// If the address space is exhausted.
    pub fn new(bytes: u64) -> Self {
        let mut memory = map(bytes / SCALE);
        let mut tlsf = Tlsf::new();
        // SAFETY: the mapping does not move and is used through `tlsf` only. Both have one owner,
        // which exposes neither, so the mapping lives as long as `tlsf`; dropping `tlsf` accesses
        // no memory.
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
        // SAFETY: by the contract of `Subject`, `malloc` returned the block, and the block is live;
        // its alignment was 8.
        unsafe { self.tlsf.deallocate(block, 8) }
    }
}

/// `offset-allocator`: two-level bins by size, constant time, good fit; the metadata is outside,
/// in units.
pub struct Offset(Allocator<u32>);

/// Upper bound for the blocks of an [`Offset`], live and free; the tables have a fixed length.
const MAX_BLOCKS: u32 = 1 << 18;

impl Offset {
    /// Creates an allocator over an arena of `bytes` bytes; `None` above 2³² units. (An arena of
    /// exactly 2³² units does not have the last unit.)
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

/// The frame allocator of `buddy_system_allocator`: powers of two, with one `BTreeSet` of free
/// blocks per order.
pub struct BuddyFrames(FrameAllocator<48>);

impl BuddyFrames {
    /// Creates an allocator over an arena of `bytes` bytes.
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

/// The heap of `buddy_system_allocator`: powers of two, with one intrusive list of free blocks per
/// order.
pub struct BuddyHeap {
    heap: Heap<48>,
    /// The memory managed by `heap`, which contains pointers into the memory.
    _memory: MmapMut,
}

impl BuddyHeap {
    /// Creates an allocator over an arena of nominally `bytes` bytes, a power of two.
    ///
    /// # Panics
    /// If the address space is exhausted.
    pub fn new(bytes: u64) -> Self {
        // A mapping of twice the length contains an aligned block of the length, wherever the
        // mapping starts.
        let (memory, bytes) = (map(bytes / SCALE * 2), (bytes / SCALE) as usize);
        let start = (memory.as_ptr() as usize).next_multiple_of(bytes);
        let mut heap = Heap::new();
        // SAFETY: the range is inside the mapping, which does not move and is used through `heap`
        // only. Both have one owner, which exposes neither, so the mapping lives as long as `heap`;
        // dropping `heap` accesses no memory.
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
        // SAFETY: by the contract of `Subject`, `malloc` returned the block for this layout, and
        // the block is live.
        unsafe { self.heap.dealloc(block, layout) }
    }
}
