//! Snapshot of one device: every segment and every block.

use crate::arena::Arena;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::heap::Heap;
use crate::heap::block::{Block, State};
use crate::pool::PoolId;
use crate::snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::tables::slot_table::NONE;
use crate::units::{DeviceIndex, DevicePtr};
use alloc::vec::Vec;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Appends every segment of the device to `segments`. Heaps are locked in turn, so the
    /// snapshot shows no single moment of the whole device while threads allocate.
    pub(crate) fn snapshot(&self, segments: &mut Vec<SnapshotSegment>) {
        for slot in self.slot_numbers() {
            let heap = self.lock(slot);
            let sub_blocks = self.snapshot_sub_blocks(&heap);
            let mut segment = heap.newest;
            while segment != NONE {
                if heap.suballocator.is_some() {
                    self.snapshot_suballocated(&heap, heap.rules.kind, segment, &sub_blocks, segments);
                } else {
                    self.snapshot_segment(&heap, heap.rules.kind, segment, segments);
                }
                segment = heap.segments[segment].next;
            }
            let pool = heap.pool as usize;
            drop(heap);
            // The registry is locked before heaps, so the pool's name is filled in afterwards.
            let id = self.registry.lock().pools.get(pool).map_or(PoolId::DEFAULT, |pool| pool.id);
            for segment in segments.iter_mut().rev().take_while(|segment| segment.pool == UNNAMED) {
                segment.pool = id;
            }
        }
    }

    /// Returns the live and pending sub-blocks of a sub-allocated heap, ordered by address. Returns
    /// an empty list for a heap without a sub-allocator.
    fn snapshot_sub_blocks(&self, heap: &Heap<S>) -> Vec<SnapshotBlock> {
        if heap.suballocator.is_none() {
            return Vec::new();
        }
        let mut sub_blocks: Vec<SnapshotBlock> = heap
            .pieces()
            .map(|(_, &Block { addr, size, requested, state, .. })| {
                let live = state == State::Allocated;
                let state = if live { BlockState::ActiveAllocated } else { BlockState::ActivePendingFree };
                let address = DevicePtr(addr);
                SnapshotBlock { address, size, requested_size: requested, state, site: self.site_of(address) }
            })
            .collect();
        sub_blocks.sort_by_key(|block| block.address);
        sub_blocks
    }

    /// Appends a segment of a sub-allocated heap, with the free ranges and the sub-blocks inside.
    fn snapshot_suballocated(
        &self,
        heap: &Heap<S>,
        kind: PoolKind,
        segment: u32,
        sub_blocks: &[SnapshotBlock],
        segments: &mut Vec<SnapshotSegment>,
    ) {
        let Some(suballocator) = &heap.suballocator else { return };
        let entry = &heap.segments[segment];
        // `sub_blocks` covers the whole heap in address order: the segment's part is one range.
        let [from, to] = [entry.base, entry.base + entry.bytes]
            .map(|addr| sub_blocks.partition_point(|block| block.address < DevicePtr(addr)));
        let mut blocks = sub_blocks[from..to].to_vec();
        suballocator.visit_free(segment, &mut |addr, size| {
            let address = DevicePtr(addr);
            blocks.push(SnapshotBlock { address, size, requested_size: 0, state: BlockState::Inactive, site: 0 });
        });
        blocks.sort_by_key(|block| block.address);
        segments.push(SnapshotSegment {
            device: DeviceIndex(self.number),
            address: DevicePtr(entry.base),
            total_size: entry.bytes,
            stream: heap.stream,
            kind,
            pool: UNNAMED,
            is_expandable: false,
            site: self.segment_site(DevicePtr(entry.base)),
            blocks,
        });
    }

    /// Appends a segment whose blocks the heap manages. Each mapped part of an expandable segment
    /// becomes a separate segment of the snapshot.
    fn snapshot_segment(&self, heap: &Heap<S>, kind: PoolKind, segment: u32, segments: &mut Vec<SnapshotSegment>) {
        // True ⟺ the next mapped block starts a new segment of the snapshot.
        let mut apart = true;
        let mut at = heap.segments[segment].first;
        while at != NONE {
            let Block { addr, size, requested, state, expandable, next, .. } = heap.blocks[at];
            at = next;
            let state = match state {
                State::Allocated => BlockState::ActiveAllocated,
                State::Pending => BlockState::ActivePendingFree,
                State::Free => BlockState::Inactive,
                State::Unmapped | State::Held | State::Mapping | State::Mapped | State::Lost => {
                    apart = true;
                    continue;
                }
            };
            let address = DevicePtr(addr);
            if core::mem::take(&mut apart) {
                segments.push(SnapshotSegment {
                    device: DeviceIndex(self.number),
                    address,
                    total_size: 0,
                    stream: heap.stream,
                    kind,
                    pool: UNNAMED,
                    is_expandable: expandable,
                    site: self.segment_site(address),
                    blocks: Vec::new(),
                });
            }
            if let Some(segment) = segments.last_mut() {
                segment.total_size += size;
                let site = if state == BlockState::Inactive { 0 } else { self.site_of(address) };
                segment.blocks.push(SnapshotBlock { address, size, requested_size: requested, state, site });
            }
        }
    }
}

/// Placeholder for the pool's name while a heap is locked. The registry must not be locked under a
/// heap's lock.
const UNNAMED: PoolId = PoolId(u64::MAX, u64::MAX);
