//! Taking a snapshot: every segment and block of one device.

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
    /// Appends every segment of this device. Each heap is locked while it is read; the heaps are not locked together.
    pub(crate) fn snapshot(&self, segments: &mut Vec<SnapshotSegment>) {
        for slot in self.slot_numbers() {
            let heap = self.lock(slot);
            let pieces = self.snapshot_sub_blocks(&heap);
            let mut segment = heap.newest;
            while segment != NONE {
                if heap.suballocator.is_some() {
                    self.snapshot_suballocated(&heap, heap.rules.kind, segment, &pieces, segments);
                } else {
                    self.snapshot_segment(&heap, heap.rules.kind, segment, segments);
                }
                segment = heap.segments[segment].next;
            }
            let pool = heap.pool as usize;
            drop(heap);
            let id = self.registry.lock().pools.get(pool).map_or(PoolId::DEFAULT, |pool| pool.id);
            for segment in segments.iter_mut().rev().take_while(|segment| segment.pool == UNNAMED) {
                segment.pool = id;
            }
        }
    }

    /// The taken pieces of a heap whose segments a suballocator cuts, by address.
    fn snapshot_sub_blocks(&self, heap: &Heap<S>) -> Vec<SnapshotBlock> {
        if heap.suballocator.is_none() {
            return Vec::new();
        }
        let mut pieces: Vec<SnapshotBlock> = heap
            .pieces()
            .map(|(_, &Block { addr, size, requested, state, .. })| {
                let held = state == State::Allocated;
                let state = if held { BlockState::ActiveAllocated } else { BlockState::ActivePendingFree };
                let address = DevicePtr(addr);
                SnapshotBlock { address, size, requested_size: requested, state, site: self.site_of(address) }
            })
            .collect();
        pieces.sort_by_key(|piece| piece.address);
        pieces
    }

    fn snapshot_suballocated(
        &self,
        heap: &Heap<S>,
        kind: PoolKind,
        segment: u32,
        pieces: &[SnapshotBlock],
        segments: &mut Vec<SnapshotSegment>,
    ) {
        let Some(suballocator) = &heap.suballocator else { return };
        let entry = &heap.segments[segment];
        let [from, to] = [entry.base, entry.base + entry.bytes]
            .map(|addr| pieces.partition_point(|piece| piece.address < DevicePtr(addr)));
        let mut blocks = pieces[from..to].to_vec();
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

    fn snapshot_segment(&self, heap: &Heap<S>, kind: PoolKind, segment: u32, segments: &mut Vec<SnapshotSegment>) {
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

/// Stands for the pool's name until the heap's lock is released: the registry is not locked under it.
const UNNAMED: PoolId = PoolId(u64::MAX, u64::MAX);
