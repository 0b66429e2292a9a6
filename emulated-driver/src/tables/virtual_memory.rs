//! Reserved addresses and physical memory, joined by mappings.

use crate::backing::pages::{self, Extent, Pages};
use crate::backing::sharing::{Export, Imported};
use crate::backing::space::DeviceAccess;
use crate::values::code::{Answer, Code};
use crate::values::handles::Handles;
use crate::values::structs::IpcMemory;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

/// Where physical memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// On the device of this index.
    Device(usize),
    /// In the memory of the host.
    Host,
}

impl Home {
    /// Returns the device whose memory it is: the first one for memory of the host.
    pub(crate) fn device(self) -> usize {
        match self {
            Self::Device(device) => device,
            Self::Host => 0,
        }
    }
}

/// Physical memory created with `cuMemCreate`, or imported. Alive while the handle is live, a
/// mapping exists, or another process may use the memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) home: Home,
    pub(crate) bytes: u64,
    /// The file with the memory, and its parts.
    pub(crate) file: Arc<File>,
    pub(crate) extents: Vec<Extent>,
    /// What keeps memory of another process. `None`: the memory is the process's own.
    pub(crate) imported: Option<Imported>,
    /// The kinds of handles by which the memory can be exported.
    pub(crate) handle_types: i32,
    /// The handle for a fabric, and the description that it names, once exported.
    pub(crate) offer: Option<(IpcMemory, File)>,
    pub(crate) exports: Vec<Export>,
    /// Whether the handle is live.
    pub(crate) held: bool,
    pub(crate) mappings: u64,
}

impl Physical {
    /// Returns whether this process uses the memory.
    pub(crate) fn is_used_here(&self) -> bool {
        self.held || self.mappings > 0
    }
}

/// A mapping. An unmap removes the whole mapping or nothing.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    /// Number of the physical memory.
    pub(crate) physical: u64,
    /// Devices with access, and the kind of access.
    pub(crate) users: BTreeMap<usize, DeviceAccess>,
    /// Whether the host has access, which it can have to its own memory.
    pub(crate) host_uses: bool,
    /// The number that no other memory of the process has or had.
    pub(crate) id: u64,
}

/// All reservations, physical memory and mappings.
#[derive(Debug)]
pub(crate) struct VirtualMemory {
    /// Requested size of each reservation, by base.
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    /// Live handles, each of a number of physical memory.
    pub(crate) handles: Handles<u64>,
    pub(crate) physical: BTreeMap<u64, Physical>,
    /// The memory of the host for `cuMemCreate`. Made when it is first asked for.
    pub(crate) host: Option<Pages>,
    pub(crate) made: u64,
}

impl VirtualMemory {
    /// Creates an empty state.
    pub(crate) fn new() -> Self {
        Self {
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            handles: Handles::new(7),
            physical: BTreeMap::new(),
            host: None,
            made: 0,
        }
    }

    /// Returns base and size of the mapping that contains an address.
    pub(crate) fn containing(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping.bytes))
    }

    /// Returns base and size of the reservation that contains an address.
    pub(crate) fn reservation_of(&self, address: u64) -> Option<(u64, u64)> {
        let (&base, &bytes) = self.reservations.range(..=address).next_back()?;
        (address - base < bytes).then_some((base, bytes))
    }

    /// Returns base and size of the mapping that contains an address, if a device has access to the
    /// mapping.
    pub(crate) fn accessible_containing(&self, address: u64) -> Option<(u64, u64)> {
        self.containing(address).filter(|(start, _)| !self.mappings[start].users.is_empty())
    }

    /// Returns whether a device has the needed access to all of `[start, end)`.
    pub(crate) fn is_accessible(&self, start: u64, end: u64, device: usize, needed: DeviceAccess) -> bool {
        let mut at = start;
        while at < end {
            let Some((&base, mapping)) = self.mappings.range(..=at).next_back() else { return false };
            let access = mapping.users.get(&device);
            if at >= base + mapping.bytes || access.is_none_or(|&access| access < needed) {
                return false;
            }
            at = base + mapping.bytes;
        }
        start < end
    }

    /// Copies the present contents of mapped memory.
    pub(crate) fn peek(&self, address: u64, into: &mut [u8]) -> Answer<()> {
        let mut done = 0;
        while done < into.len() {
            let at = address + done as u64;
            let (&base, mapping) = self.mappings.range(..=at).next_back().ok_or(Code::INVALID_VALUE)?;
            let end = base + mapping.bytes;
            if at >= end {
                return Err(Code::INVALID_VALUE);
            }
            let physical = &self.physical[&mapping.physical];
            let now = (into.len() - done).min((end - at) as usize);
            pages::read(&physical.file, &physical.extents, at - base, &mut into[done..done + now]);
            done += now;
        }
        Ok(())
    }

    /// Returns the numbers of live reservations, mappings and pieces of physical memory.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.reservations.len(), self.mappings.len(), self.physical.len())
    }

    /// Returns the mappings in `[start, start + bytes)`, and whether the mappings cover the whole
    /// range.
    pub(crate) fn inside(&self, start: u64, bytes: u64) -> Result<(Vec<u64>, bool), Cut> {
        let end = start.checked_add(bytes).ok_or(Cut)?;
        if self.containing(start).is_some_and(|(base, _)| base != start) {
            return Err(Cut);
        }
        let (mut covered, mut found) = (0, Vec::new());
        for (&base, mapping) in self.mappings.range(start..end) {
            if base + mapping.bytes > end {
                return Err(Cut);
            }
            covered += mapping.bytes;
            found.push(base);
        }
        Ok((found, covered == bytes))
    }

    /// Returns whether one reservation contains `[start, start + bytes)`.
    pub(crate) fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let reservation = self.reservations.range(..=start).next_back();
        let end = start.checked_add(bytes);
        reservation.zip(end).is_some_and(|((&base, &its), end)| end <= base + its)
    }

    /// Returns whether a mapping overlaps `[start, end)`.
    pub(crate) fn is_taken(&self, start: u64, end: u64) -> bool {
        self.mappings.range(..end).next_back().is_some_and(|(&base, mapping)| base + mapping.bytes > start)
    }
}

/// Error of a range that starts or ends inside a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut;
