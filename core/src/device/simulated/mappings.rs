//! The virtual memory of a simulated device: reserved addresses, physical handles, and mappings
//! with access.

use super::{Call, DeviceState, INVALID, NO_MEMORY, SimulatedDevice, UNWRITTEN};
use crate::device::simulated::work::PhysicalPart;
use crate::device::{Descriptor, DeviceError, DeviceResult, ErrorKind, PhysicalHandle, VirtualMemory};
use crate::units::DevicePtr;
use alloc::vec::Vec;
use core::ops::Range;

/// The memory behind a physical handle.
#[derive(Clone, Debug, Default)]
pub(super) struct PhysicalMemory {
    /// The size in bytes.
    pub bytes: u64,
    /// How many mappings it has.
    pub mappings: u32,
    /// Whether the handle was destroyed. The memory is released with the last mapping.
    pub dropped: bool,
    /// The contents, as a number.
    pub contents: u64,
    /// Whether it is memory of the host.
    pub is_host: bool,
}

impl DeviceState {
    /// Returns the physical memory under a range of addresses, or `None` if part of the range is
    /// not accessible.
    pub(super) fn pieces(&self, addresses: Range<u64>) -> Option<Vec<PhysicalPart>> {
        let Range { start: mut at, end } = addresses;
        let mut pieces = Vec::new();
        while at < end {
            let segment = self.segments.range(..=at).next_back().filter(|(base, len)| *base + *len > at);
            let mapping = self.mappings.range(..=at).next_back().filter(|(base, mapping)| *base + mapping.0 > at);
            let (piece, reached) = match (segment, mapping) {
                (Some((base, len)), _) => ((0, at..end.min(base + len)), base + len),
                (None, Some((base, &(len, handle, true)))) => {
                    ((handle, at - base..end.min(base + len) - base), base + len)
                }
                _ => return None,
            };
            pieces.push(piece);
            at = reached;
        }
        Some(pieces)
    }

    /// Records that the program was told about a mapping.
    ///
    /// # Panics
    /// If the mapping is not accessible, or if the program already knows it.
    pub(super) fn tell_mapped(&mut self, at: u64, bytes: u64) {
        let is_mapped = self.mappings.get(&at).is_some_and(|&(len, _, accessible)| accessible && len == bytes);
        assert!(
            is_mapped || self.lost.is_some(),
            "the program is told of {bytes} bytes at {at:#x}, which are not mapped"
        );
        assert_eq!(self.told.insert(at, bytes), None, "the program is told twice of the mapping at {at:#x}");
    }

    /// Records that the program was told about the end of a mapping.
    ///
    /// # Panics
    /// If the program does not know the mapping.
    pub(super) fn tell_unmapped(&mut self, at: u64, bytes: u64) {
        assert_eq!(self.told.remove(&at), Some(bytes), "the program was not told of the mapping at {at:#x}");
    }

    /// Adds memory that is counted as used. Returns the handle.
    fn add_physical(&mut self, bytes: u64, is_host: bool) -> PhysicalHandle {
        self.handles += 1;
        let contents = UNWRITTEN | self.handles;
        self.physical.insert(self.handles, PhysicalMemory { bytes, contents, is_host, ..PhysicalMemory::default() });
        PhysicalHandle(self.handles)
    }

    /// Releases the memory of a handle if it was destroyed and has no mappings left.
    pub(super) fn collect(&mut self, handle: u64) {
        if let Some(physical) = self.physical.get(&handle)
            && physical.dropped
            && physical.mappings == 0
        {
            let used = if physical.is_host { &mut self.used_of_host } else { &mut self.used };
            *used -= physical.bytes;
            self.physical.remove(&handle);
        }
    }
}

impl SimulatedDevice {
    /// Sets how much memory of the host can be mapped. None at first.
    pub fn set_mappable_host_memory(&self, bytes: u64) {
        self.0.lock().capacity_of_host = bytes;
    }

    /// Returns the bytes of the memory of the host that is allocated for the device.
    pub fn used_of_host(&self) -> u64 {
        self.0.lock().used_of_host
    }

    /// Returns whether an address is mapped to memory of the host.
    pub fn is_on_host(&self, at: DevicePtr) -> bool {
        let state = self.0.lock();
        let mapping = state.mappings.range(..=at.0).next_back().filter(|(base, mapping)| *base + mapping.0 > at.0);
        mapping.is_some_and(|(_, mapping)| state.physical[&mapping.1].is_host)
    }

    /// Returns how many of the `bytes` from `at` on are mapped to memory of the host.
    pub fn bytes_on_host(&self, at: DevicePtr, bytes: u64) -> u64 {
        let (state, end) = (self.0.lock(), at.0 + bytes);
        if state.used_of_host == 0 {
            return 0;
        }
        let mappings = state.mappings.range(..end).rev();
        let here = mappings.map(|(base, mapping)| (*base, base + mapping.0, mapping.1));
        let here = here.take_while(|&(_, mapped_end, _)| mapped_end > at.0);
        let of_host = here.filter(|(.., handle)| state.physical[handle].is_host);
        of_host.map(|(base, mapped_end, _)| mapped_end.min(end) - base.max(at.0)).sum()
    }

    /// Returns the bytes of accessible mappings that the program was not told about, or that it was
    /// told will end. No block uses the memory of these mappings.
    pub fn untold(&self) -> u64 {
        let state = self.0.lock();
        let untold = state.mappings.iter().filter(|(at, mapping)| mapping.2 && !state.told.contains_key(at));
        untold.map(|(_, mapping)| mapping.0).sum()
    }
}

impl VirtualMemory for SimulatedDevice {
    fn granularity(&self) -> u64 {
        self.0.lock().granularity
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.0.lock();
        state.enter(Call::Reserve, bytes)?;
        let address = state.take_address(bytes)?;
        state.reservations.insert(address, bytes);
        Ok(DevicePtr(address))
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Unreserve, bytes)?;
        let mapped = state.mappings.range(base.0..base.0 + bytes).next().is_some();
        if mapped || state.reservations.get(&base.0) != Some(&bytes) {
            return Err(INVALID);
        }
        state.reservations.remove(&base.0);
        state.vacant.entry(bytes).or_default().insert(base.0);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let mut state = self.0.lock();
        state.enter(Call::Create, bytes)?;
        if !bytes.is_multiple_of(state.granularity) {
            return Err(INVALID);
        }
        state.use_memory(bytes)?;
        Ok(state.add_physical(bytes, false))
    }

    fn create_at_host(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let mut state = self.0.lock();
        state.enter(Call::CreateAtHost, bytes)?;
        if bytes == 0 || !bytes.is_multiple_of(state.granularity) {
            return Err(INVALID);
        }
        if state.capacity_of_host - state.used_of_host < bytes {
            return Err(NO_MEMORY);
        }
        state.used_of_host += bytes;
        Ok(state.add_physical(bytes, true))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let mut state = self.0.lock();
        let bytes = state.physical.get(&handle.0).map_or(0, |physical| physical.bytes);
        state.enter(Call::Destroy, bytes)?;
        let physical = state.physical.get_mut(&handle.0).filter(|physical| !physical.dropped).ok_or(INVALID)?;
        physical.dropped = true;
        state.collect(handle.0);
        Ok(())
    }

    fn begin_mapping(&self) {}

    fn end_mapping(&self) {}

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Map, bytes)?;
        let end = at.0 + bytes;
        let reserved = state.reservations.range(..=at.0).next_back().is_some_and(|(base, len)| base + len >= end);
        let before = state.mappings.range(..end).next_back();
        let overlaps = before.is_some_and(|(base, mapping)| base + mapping.0 > at.0);
        let physical = state.physical.get(&handle.0).filter(|physical| !physical.dropped && physical.bytes == bytes);
        if !reserved || overlaps || physical.is_none() {
            return Err(INVALID);
        }
        if let Some(physical) = state.physical.get_mut(&handle.0) {
            physical.mappings += 1;
        }
        state.mappings.insert(at.0, (bytes, handle.0, false));
        Ok(())
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        let DeviceState { mappings, meter, .. } = &mut *state;
        // The driver sets the access of each mapping separately.
        meter.charge(Call::SetAccess, mappings.range(at.0..at.0 + bytes).map(|(_, mapping)| mapping.0));
        state.count(Call::SetAccess)?;
        let covered: u64 = state.mappings.range(at.0..at.0 + bytes).map(|(_, mapping)| mapping.0).sum();
        if covered != bytes {
            return Err(INVALID);
        }
        for mapping in state.mappings.range_mut(at.0..at.0 + bytes) {
            mapping.1.2 = true;
        }
        Ok(())
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Unmap, bytes)?;
        let (_, handle, _) = state.mappings.get(&at.0).copied().filter(|mapping| mapping.0 == bytes).ok_or(INVALID)?;
        // Unlike `release`, this does not wait: on a real device, the work would fault.
        let range = at.0..at.0 + bytes;
        if state.streams.uses(&range) || state.host.copies(&range) {
            return Err(INVALID);
        }
        assert!(!state.told.contains_key(&at.0), "the program was not told of the end of the mapping at {at}");
        state.mappings.remove(&at.0);
        if let Some(physical) = state.physical.get_mut(&handle) {
            physical.mappings -= 1;
        }
        state.collect(handle);
        Ok(())
    }

    /// Returns the number of the handle, if the device [exports](SimulatedDevice::with_exports)
    /// memory.
    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> {
        let mut state = self.0.lock();
        state.enter(Call::Export, 0)?;
        if !state.exports {
            return Err(DeviceError::new(ErrorKind::Unsupported, 0));
        }
        let live = state.physical.get(&handle.0).is_some_and(|physical| !physical.dropped);
        i32::try_from(handle.0).ok().filter(|_| live).map(Descriptor).ok_or(INVALID)
    }
}
