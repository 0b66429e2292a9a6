//! Expandable segments of the model.

use super::blocks::{Block, Owner, Segment, State};
use super::{Answer, Model, Request};
use cachalot_core::{DevicePtr, DeviceResult, ErrorKind, PoolKind, Segments, StreamOrder, VirtualMemory};

/// A range to map.
#[derive(Clone, Copy)]
struct Part {
    addr: u64,
    bytes: u64,
}

impl Model {
    fn virtual_memory(&self) -> &dyn VirtualMemory {
        self.device.virtual_memory().expect("only an expanding allocator comes here")
    }

    /// Maps the memory for a request, all or nothing.
    pub(super) fn expand(&mut self, request: &Request) -> Answer<Option<u64>> {
        let first = match self.find_run(request.owner, request.size) {
            Some(first) => first,
            None => match self.reserve(request)? {
                Some(base) => base,
                None => return Ok(None),
            },
        };
        let (parts, granule) = self.plan(first, request.size);
        let mut mapped = 0;
        let mut result = Ok(());
        for &part in &parts {
            result = self.map(part, granule);
            if result.is_err() {
                break;
            }
            mapped += 1;
        }
        if let Err(error) = result {
            for &part in &parts[..mapped] {
                self.unmap(part, granule)?;
            }
            self.unreserve_if_unmapped(first)?;
            return if error.kind == ErrorKind::OutOfMemory { Ok(None) } else { Err(error.into()) };
        }
        for part in parts {
            self.mark_mapped(part, request.owner);
        }
        self.hand_out(first, request);
        Ok(Some(first))
    }

    /// Finds the lowest run of free and unmapped blocks with `size` bytes, at least one of them
    /// unmapped. Returns the address.
    fn find_run(&self, owner: Owner, size: u64) -> Option<u64> {
        let segments = || self.memory.segments.iter().filter(|segment| segment.owner == owner);
        let mut unmapped: Vec<u64> = segments()
            .flat_map(|segment| segment.blocks.iter().filter(|block| block.state == State::Unmapped))
            .map(|block| block.addr)
            .collect();
        unmapped.sort_unstable();
        unmapped.into_iter().find_map(|addr| {
            let (s, b) = self.memory.at(addr);
            let blocks = &self.memory.segments[s].blocks;
            let first = if b > 0 && blocks[b - 1].state == State::Free { b - 1 } else { b };
            let run = blocks[first..].iter().take_while(|b| matches!(b.state, State::Free | State::Unmapped));
            (run.map(|block| block.size).sum::<u64>() >= size).then(|| blocks[first].addr)
        })
    }

    /// Reserves an address range of 9/8 of the device, or of the configured size, if the request
    /// fits.
    fn reserve(&mut self, request: &Request) -> Answer<Option<u64>> {
        let granule = match request.owner.kind {
            PoolKind::Small => 2 << 20,
            PoolKind::Large => self.config.large_segment_size(),
        };
        let granule = granule.next_multiple_of(self.virtual_memory().granularity());
        let total = self.device.memory_info()?.total;
        let most = total + total / 8;
        let wanted = self.config.expandable_segments_reserve().map_or(most, |reserve| reserve.bytes(total).min(most));
        let bytes = wanted.max(1).next_multiple_of(granule);
        if bytes < request.size {
            return Ok(None);
        }
        let base = match self.virtual_memory().reserve(bytes) {
            Ok(base) => base.0,
            Err(error) if error.kind == ErrorKind::OutOfMemory => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let blocks = vec![Block::new(base, bytes, State::Unmapped)];
        self.memory.segments.push(Segment { base, bytes, owner: request.owner, granule: Some(granule), blocks });
        Ok(Some(base))
    }

    /// Lists the ranges to map so that the run from `first` on has `size` bytes.
    fn plan(&self, first: u64, size: u64) -> (Vec<Part>, u64) {
        let (s, b) = self.memory.at(first);
        let granule = self.memory.segments[s].granule.expect("a run is in an expandable segment");
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for block in &self.memory.segments[s].blocks[b..] {
            if bytes >= size {
                break;
            }
            if block.state == State::Free {
                bytes += block.size;
                continue;
            }
            let part = (size - bytes).next_multiple_of(granule).min(block.size);
            parts.push(Part { addr: block.addr, bytes: part });
            bytes += part;
        }
        (parts, granule)
    }

    fn map(&self, part: Part, granule: u64) -> DeviceResult<()> {
        let memory = self.virtual_memory();
        let mut result = Ok(());
        let mut mapped = Vec::new();
        for at in (part.addr..part.addr + part.bytes).step_by(granule as usize).map(DevicePtr) {
            result = memory.create(granule).and_then(|handle| {
                memory.map(at, granule, handle)?;
                memory.destroy(handle)
            });
            if result.is_err() {
                break;
            }
            mapped.push(at);
        }
        result = result.and_then(|()| memory.set_access(DevicePtr(part.addr), part.bytes));
        if result.is_err() {
            for at in mapped {
                memory.unmap(at, granule)?;
            }
        }
        result
    }

    fn unmap(&self, part: Part, granule: u64) -> DeviceResult<()> {
        (part.addr..part.addr + part.bytes)
            .step_by(granule as usize)
            .try_for_each(|at| self.virtual_memory().unmap(DevicePtr(at), granule))
    }

    /// Adds an unmapped block, or its front, to the free block around it.
    fn mark_mapped(&mut self, part: Part, owner: Owner) {
        let born = self.pool(owner.pool).searches[owner.kind as usize];
        let (s, b) = self.memory.at(part.addr);
        let segment = &mut self.memory.segments[s];
        if part.bytes < segment.blocks[b].size {
            segment.split(b, part.bytes);
            segment.blocks[b + 1].requested = 0;
        }
        let (b, ..) = segment.merge(b, State::Free);
        (segment.blocks[b].state, segment.blocks[b].born) = (State::Free, born);
        self.statistics.change("reserved_bytes", owner.kind, part.bytes.cast_signed());
        self.statistics.count("num_device_alloc");
    }

    /// Releases an address range without mapped memory.
    fn unreserve_if_unmapped(&mut self, addr: u64) -> Answer<()> {
        let (s, _) = self.memory.at(addr);
        if matches!(self.memory.segments[s].blocks[..], [Block { state: State::Unmapped, .. }]) {
            let segment = self.memory.segments.remove(s);
            self.virtual_memory().unreserve(DevicePtr(segment.base), segment.bytes)?;
        }
        Ok(())
    }

    /// Unmaps the whole granules in the free expandable blocks of an owner, in free-list order.
    pub(super) fn unmap_free(&mut self, owner: Owner) -> Answer<()> {
        let found: Vec<_> =
            self.memory.free_list_of(owner).into_iter().filter_map(|block| self.whole(block.addr)).collect();
        if found.is_empty() {
            return Ok(());
        }
        if self.device.is_capturing(owner.stream)? {
            return Ok(());
        }
        self.device.synchronize(owner.stream)?;
        for (part, granule) in found {
            self.cut_out(part, owner);
            self.unmap(part, granule)?;
            self.statistics.change("reserved_bytes", owner.kind, -part.bytes.cast_signed());
            self.statistics.count("num_device_free");
            let (s, b) = self.memory.at(part.addr);
            self.memory.segments[s].blocks[b].state = State::Unmapped;
            self.memory.segments[s].merge(b, State::Unmapped);
            self.unreserve_if_unmapped(part.addr)?;
        }
        Ok(())
    }

    /// Returns the whole granules inside a free block, or `None` if there are none.
    fn whole(&self, addr: u64) -> Option<(Part, u64)> {
        let (s, b) = self.memory.at(addr);
        let segment = &self.memory.segments[s];
        let (granule, block) = (segment.granule?, &segment.blocks[b]);
        let granules = (segment.base..segment.base + segment.bytes).step_by(granule as usize);
        let mut inside = granules.filter(|at| block.addr <= *at && at + granule <= block.end());
        let first = inside.next()?;
        let bytes = (1 + inside.count() as u64) * granule;
        Some((Part { addr: first, bytes }, granule))
    }

    /// Cuts a range out of a free block as a block of its own. The parts before and behind are
    /// blocks never allocated.
    fn cut_out(&mut self, part: Part, owner: Owner) {
        let born = self.pool(owner.pool).searches[owner.kind as usize];
        let (s, mut b) = self.memory.at(part.addr);
        let segment = &mut self.memory.segments[s];
        let before = part.addr - segment.blocks[b].addr;
        if before > 0 {
            segment.split(b, before);
            (segment.blocks[b].requested, segment.blocks[b].born) = (0, born);
            b += 1;
        }
        if part.bytes < segment.blocks[b].size {
            segment.split(b, part.bytes);
            (segment.blocks[b + 1].requested, segment.blocks[b + 1].born) = (0, born);
        }
    }
}
