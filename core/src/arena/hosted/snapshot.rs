//! The snapshot of a device: every segment and every block.

use crate::arena::Platform;
use crate::arena::heaps::Heaps;
use crate::heap::Heap;
use crate::heap::block::{Backing, BlockEntry, Segment, State};
use crate::pool::PoolId;
use crate::snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;
use crate::units::{DeviceIndex, DevicePtr};
use alloc::vec::Vec;

impl<P: Platform> Heaps<P> {
    /// Appends every segment of the device to `segments`. Heaps are locked one after the other, so
    /// while threads allocate, the snapshot does not show a single moment of the whole device.
    pub(crate) fn snapshot(&self, sites: &CallSites<P::Lock>, segments: &mut Vec<SnapshotSegment>) {
        for slot in self.slot_numbers() {
            // Lock order: registry, then a heap. The number of a pool that ends may name another
            // one, unless the registry is locked until the heap is copied.
            let registry = self.registry.lock();
            let heap = self.lock(slot);
            let pool = registry.pools.get(heap.pool as usize).map_or(PoolId::DEFAULT, |pool| pool.id);
            let mut copied = Copied { device: DeviceIndex(self.device()), pool, sites, segments: &mut *segments };
            let sub_blocks = copied.sub_blocks(&heap);
            for (number, segment) in heap.segments() {
                if heap.suballocator.is_some() {
                    copied.add_suballocated(&heap, number, &sub_blocks);
                } else {
                    let first = copied.segments.len();
                    copied.add_segment(&heap, segment);
                    if heap.sets.pages.are_of_host() {
                        copied.segments[first..].iter_mut().for_each(|segment| note_spilled(&heap, segment));
                    }
                }
            }
        }
    }
}

/// Notes how many bytes of a segment of `heap` and of each of its blocks lie on the host.
fn note_spilled<S: Storage>(heap: &Heap<S>, segment: &mut SnapshotSegment) {
    for block in &mut segment.blocks {
        let (begin, end) = (block.address.0, block.address.0 + block.size);
        let pages = heap.sets.pages.on_host(begin, end);
        block.spilled = pages.map(|page| page.end().min(end) - page.at.max(begin)).sum();
        segment.spilled += block.spilled;
    }
}

/// The segments of a device that have been copied into a snapshot so far, and the pool of the next
/// ones.
struct Copied<'a, R: Lock> {
    device: DeviceIndex,
    pool: PoolId,
    sites: &'a CallSites<R>,
    segments: &'a mut Vec<SnapshotSegment>,
}

impl<R: Lock> Copied<'_, R> {
    /// Returns the live and pending sub-blocks of a sub-allocated heap, ordered by address. Returns
    /// an empty list for a heap without a sub-allocator.
    fn sub_blocks<S: Storage>(&self, heap: &Heap<S>) -> Vec<SnapshotBlock> {
        if heap.suballocator.is_none() {
            return Vec::new();
        }
        let mut sub_blocks: Vec<SnapshotBlock> = heap
            .sub_blocks()
            .map(|(_, &BlockEntry { addr, size, requested, state, .. })| {
                let live = state == State::Allocated;
                let state = if live { BlockState::ActiveAllocated } else { BlockState::ActivePendingFree };
                let address = DevicePtr(addr);
                SnapshotBlock {
                    address,
                    size,
                    spilled: 0,
                    requested_size: requested,
                    state,
                    site: self.sites.block(address),
                }
            })
            .collect();
        sub_blocks.sort_by_key(|block| block.address);
        sub_blocks
    }

    /// Appends a segment of a sub-allocated heap, with the free ranges and the sub-blocks in it.
    fn add_suballocated<S: Storage>(&mut self, heap: &Heap<S>, segment: u32, sub_blocks: &[SnapshotBlock]) {
        let Some(suballocator) = &heap.suballocator else { return };
        let entry = &heap.segments[segment];
        // `sub_blocks` covers the whole heap in address order, so the segment's part is one range.
        let [from, to] = [entry.base, entry.base + entry.bytes]
            .map(|addr| sub_blocks.partition_point(|block| block.address < DevicePtr(addr)));
        let mut blocks = sub_blocks[from..to].to_vec();
        suballocator.visit_free(segment, &mut |addr, size| {
            let address = DevicePtr(addr);
            blocks.push(SnapshotBlock {
                address,
                size,
                spilled: 0,
                requested_size: 0,
                state: BlockState::Inactive,
                site: 0,
            });
        });
        blocks.sort_by_key(|block| block.address);
        self.segments.push(SnapshotSegment {
            device: self.device,
            address: DevicePtr(entry.base),
            total_size: entry.bytes,
            parked: 0,
            spilled: 0,
            stream: heap.stream,
            kind: heap.rules.kind,
            pool: self.pool,
            is_expandable: false,
            site: self.sites.segment(DevicePtr(entry.base)),
            blocks,
        });
    }

    /// Appends a segment whose blocks the heap manages. Each mapped part of an expandable segment
    /// becomes a separate segment of the snapshot.
    fn add_segment<S: Storage>(&mut self, heap: &Heap<S>, segment: &Segment) {
        // True ⟺ the next mapped block starts a new segment of the snapshot.
        let mut apart = true;
        let first = self.segments.len();
        for (_, &BlockEntry { addr, size, requested, state, backing, .. }) in heap.tiles(segment) {
            let state = match state {
                State::Allocated => BlockState::ActiveAllocated,
                State::Pending => BlockState::ActivePendingFree,
                State::Free => BlockState::Inactive,
                State::Unmapped | State::Detached | State::Mapping | State::Stale | State::Lost => {
                    apart = true;
                    continue;
                }
            };
            let address = DevicePtr(addr);
            if core::mem::take(&mut apart) {
                self.segments.push(SnapshotSegment {
                    device: self.device,
                    address,
                    total_size: 0,
                    parked: 0,
                    spilled: 0,
                    stream: heap.stream,
                    kind: heap.rules.kind,
                    pool: self.pool,
                    is_expandable: backing != Backing::Ordinary,
                    site: self.sites.segment(address),
                    blocks: Vec::new(),
                });
            }
            if let Some(segment) = self.segments.last_mut() {
                segment.total_size += size;
                let site = if state == BlockState::Inactive { 0 } else { self.sites.block(address) };
                segment.blocks.push(SnapshotBlock {
                    address,
                    size,
                    spilled: 0,
                    requested_size: requested,
                    state,
                    site,
                });
            }
        }
        for segment in &mut self.segments[first..] {
            let DevicePtr(from) = segment.address;
            segment.parked = heap.sets.pages.asleep(from, from + segment.total_size);
        }
    }
}
