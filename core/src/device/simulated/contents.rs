//! The contents of a simulated device: a number for each physical handle, and the numbers that the
//! host saves while memory is parked.

use super::{Call, DeviceState, INVALID, NO_MEMORY, SimulatedDevice};
use crate::device::{Contents, CopyMark, DeviceError, DeviceResult, Saved};
use crate::units::{DevicePtr, NO_STREAM, StreamId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::ops::Range;

/// The contents that the host saved, and the copies that are running.
#[derive(Clone, Debug)]
pub(super) struct HostMemory {
    /// The most bytes that the host saves.
    capacity: u64,
    /// The bytes prepared for the saves that follow. `None` unless `prepare` was called and its
    /// saves have not ended.
    prepared: Option<u64>,
    /// The saved contents, by name: bytes and number.
    kept: BTreeMap<u64, (u64, u64)>,
    /// The latest name.
    names: u64,
    /// The number of the latest copy.
    copies: u64,
    /// The copies that nobody has waited for: number and device addresses.
    in_progress: Vec<(u64, Range<u64>)>,
    /// The addresses that were filled with a value, in the order of the fills.
    filled: Vec<(Range<u64>, u8)>,
    /// The error that every fill returns, if any.
    fill_error: Option<DeviceError>,
}

impl Default for HostMemory {
    fn default() -> Self {
        Self {
            capacity: u64::MAX,
            prepared: None,
            kept: BTreeMap::new(),
            names: 0,
            copies: 0,
            in_progress: Vec::new(),
            filled: Vec::new(),
            fill_error: None,
        }
    }
}

impl HostMemory {
    /// Returns how many bytes are saved.
    fn bytes(&self) -> u64 {
        self.kept.values().map(|(bytes, _)| bytes).sum()
    }

    /// Returns whether a running copy uses some of the addresses.
    pub(super) fn copies(&self, addresses: &Range<u64>) -> bool {
        self.in_progress.iter().any(|(_, copied)| copied.start < addresses.end && addresses.start < copied.end)
    }

    /// Returns the value with which an address was last filled, or 0 if it never was.
    fn byte(&self, address: u64) -> u8 {
        self.filled.iter().rev().find(|(range, _)| range.contains(&address)).map_or(0, |(_, value)| *value)
    }

    fn begin(&mut self, addresses: Range<u64>) {
        self.copies += 1;
        self.in_progress.push((self.copies, addresses));
    }
}

impl DeviceState {
    /// Returns the handle that is mapped at exactly the `bytes` from `at` on.
    fn mapped_whole(&self, at: u64, bytes: u64) -> DeviceResult<u64> {
        let mapping = self.mappings.get(&at).filter(|mapping| mapping.0 == bytes && mapping.2);
        mapping.map(|mapping| mapping.1).ok_or(INVALID)
    }

    fn contents_of(&mut self, handle: u64) -> Option<&mut u64> {
        self.physical.get_mut(&handle).map(|physical| &mut physical.contents)
    }
}

impl SimulatedDevice {
    /// Sets how many bytes of contents the host can save.
    #[must_use]
    pub fn with_host_memory(self, bytes: u64) -> Self {
        self.0.lock().host.capacity = bytes;
        self
    }

    /// Writes a number to the physical memory at `at`, as its whole contents. Returns false if
    /// there is no accessible memory at the address.
    pub fn write(&self, at: DevicePtr, contents: u64) -> bool {
        let mut state = self.0.lock();
        let Some(handle) = state.pieces(at.0..at.0 + 1).map(|pieces| pieces[0].0) else { return false };
        state.contents_of(handle).is_some_and(|found| {
            *found = contents;
            true
        })
    }

    /// Returns the contents of the physical memory at `at`. New memory has a value that no test
    /// writes. `None` if there is no accessible memory at the address.
    pub fn read(&self, at: DevicePtr) -> Option<u64> {
        let mut state = self.0.lock();
        let handle = state.pieces(at.0..at.0 + 1)?[0].0;
        state.contents_of(handle).map(|contents| *contents)
    }

    /// Returns the byte at an address, as written by the fills of the allocator and by
    /// [`overwrite`](Self::overwrite).
    pub fn byte(&self, at: DevicePtr) -> u8 {
        self.0.lock().host.byte(at.0)
    }

    /// Writes a byte, as a kernel would.
    pub fn overwrite(&self, at: DevicePtr, value: u8) {
        self.0.lock().host.filled.push((at.0..at.0 + 1, value));
    }

    /// Makes every later fill fail with this error. After `None`, fills succeed again.
    pub fn fail_fills(&self, error: impl Into<Option<DeviceError>>) {
        self.0.lock().host.fill_error = error.into();
    }

    /// Returns and forgets the addresses of the overwritten bytes that the allocator reported.
    pub fn take_damage(&self) -> Vec<DevicePtr> {
        core::mem::take(&mut self.0.lock().damage)
    }

    /// Returns how many bytes of contents the host has saved.
    pub fn kept(&self) -> u64 {
        self.0.lock().host.bytes()
    }

    /// Returns how many bytes of the host are prepared for the saves that follow. `None` while no
    /// saves are announced.
    pub fn prepared(&self) -> Option<u64> {
        self.0.lock().host.prepared
    }
}

impl Contents for SimulatedDevice {
    fn lie_elsewhere(&self) -> bool {
        true
    }

    fn prepare(&self, bytes: u64, largest: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Prepare, bytes)?;
        let fits = largest <= bytes && bytes <= state.host.capacity - state.host.bytes();
        if !fits {
            return Err(NO_MEMORY);
        }
        state.host.prepared = Some(bytes);
        Ok(())
    }

    fn end_saves(&self) {
        self.0.lock().host.prepared = None;
    }

    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        let mut state = self.0.lock();
        state.enter(Call::Save, bytes)?;
        let handle = state.mapped_whole(at.0, bytes)?;
        // The copy could miss what the work still writes.
        if state.streams.uses(&(at.0..at.0 + bytes)) {
            return Err(INVALID);
        }
        let contents = state.contents_of(handle).map(|contents| *contents).ok_or(INVALID)?;
        let prepared = state.host.prepared.and_then(|prepared| prepared.checked_sub(bytes)).ok_or(NO_MEMORY)?;
        state.host.prepared = Some(prepared);
        state.host.names += 1;
        let name = state.host.names;
        state.host.kept.insert(name, (bytes, contents));
        state.host.begin(at.0..at.0 + bytes);
        NonZeroU64::new(name).map(Saved).ok_or(INVALID)
    }

    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Restore, bytes)?;
        let handle = state.mapped_whole(at.0, bytes)?;
        let (_, kept) = *state.host.kept.get(&saved.0.get()).filter(|kept| kept.0 == bytes).ok_or(INVALID)?;
        *state.contents_of(handle).ok_or(INVALID)? = kept;
        state.host.begin(at.0..at.0 + bytes);
        Ok(())
    }

    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Zero, bytes)?;
        let handle = state.mapped_whole(at.0, bytes)?;
        *state.contents_of(handle).ok_or(INVALID)? = 0;
        state.host.begin(at.0..at.0 + bytes);
        Ok(())
    }

    fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Copy, bytes)?;
        let handles = (state.mapped_whole(from.0, bytes)?, state.mapped_whole(to.0, bytes)?);
        // The copy could miss what the work still writes.
        if state.streams.uses(&(from.0..from.0 + bytes)) {
            return Err(INVALID);
        }
        let contents = state.contents_of(handles.0).map(|contents| *contents).ok_or(INVALID)?;
        *state.contents_of(handles.1).ok_or(INVALID)? = contents;
        state.host.begin(from.0..from.0 + bytes);
        state.host.begin(to.0..to.0 + bytes);
        Ok(())
    }

    /// Writes at once, because the work of a simulated device does not write contents. The fill
    /// also counts as work of the stream until the stream reaches it. If a handle is filled as a
    /// whole, its contents become the value, repeated eight times.
    fn fill(&self, stream: StreamId, at: DevicePtr, bytes: u64, value: u8) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        state.host.fill_error.map_or(Ok(()), Err)?;
        let pieces = state.pieces(at.0..at.0 + bytes).ok_or(INVALID)?;
        // If no stream is named, the call waits for the fill. A graph fills when it is launched.
        if stream != NO_STREAM && !state.streams.is_capturing(stream) {
            state.streams.launch(stream, at.0..at.0 + bytes, pieces.clone())?;
        }
        for (handle, part) in pieces {
            let physical = state.physical.get_mut(&handle).filter(|physical| part == (0..physical.bytes));
            if let Some(physical) = physical {
                physical.contents = u64::from_ne_bytes([value; 8]);
            }
        }
        state.host.filled.push((at.0..at.0 + bytes, value));
        Ok(())
    }

    fn read(&self, at: DevicePtr, into: &mut [u8]) -> DeviceResult<()> {
        let state = self.0.lock();
        state.pieces(at.0..at.0 + into.len() as u64).ok_or(INVALID)?;
        for (address, byte) in (at.0..).zip(into) {
            *byte = state.host.byte(address);
        }
        Ok(())
    }

    fn mark(&self) -> DeviceResult<CopyMark> {
        let mut state = self.0.lock();
        state.enter(Call::Mark, 0)?;
        Ok(CopyMark(state.host.copies))
    }

    /// Waits for the copies. If this fails, they are still running.
    fn finish(&self, mark: CopyMark) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Finish, 0)?;
        state.host.in_progress.retain(|&(number, _)| number > mark.0);
        Ok(())
    }

    fn forget(&self, saved: Saved) {
        self.0.lock().host.kept.remove(&saved.0.get());
    }
}
