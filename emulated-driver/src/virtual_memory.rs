//! Virtual memory: reserved addresses and physical memory, joined by mappings.
//!
//! A mapping alone gives no device access. `cuMemSetAccess` maps the memory into the named device's
//! view of the addresses (see `space`), where the device's kernels look. Memory created for export can
//! be mapped in another process, too (see `sharing`).

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::device::{self, Device, HANDLE_TYPE_POSIX_FD, VIRTUAL_MEMORY_MANAGEMENT};
use crate::driver::State;
use crate::handles::Handles;
use crate::pages::{self, Extent, PAGE, POISON_NEW};
use crate::sharing::{self, Export, Imported};
use crate::space::Access;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Page size of the host. A reservation may have any multiple of `HOST_PAGE`.
const HOST_PAGE: u64 = 4096;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const TYPE_PINNED: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_NONE`.
const HANDLE_NONE: i32 = 0;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const HANDLE_POSIX_FD: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
const ACCESS_NONE: i32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
const ACCESS_READ: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const ACCESS_READ_WRITE: i32 = 3;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    kind: i32,
    id: i32,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescriptor {
    location: Location,
    flags: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: i32,
    handle_types: i32,
    location: Location,
    metadata: u64,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<AccessDescriptor>() == 12 && size_of::<Properties>() == 32);

/// Physical memory created with `cuMemCreate`, or imported. Alive while the handle is live, a mapping
/// exists, or another process may use the memory.
#[derive(Debug)]
struct Physical {
    device: usize,
    bytes: u64,
    extents: Vec<Extent>,
    /// The memory of another process. `None`: the memory of the device.
    imported: Option<Imported>,
    /// Whether the memory can be exported.
    exportable: bool,
    exports: Vec<Export>,
    /// Whether the handle is live.
    held: bool,
    mappings: u64,
}

impl Physical {
    /// Returns the file with the memory.
    fn file<'a>(&'a self, devices: &'a [Device]) -> &'a File {
        self.imported.as_ref().map_or_else(|| devices[self.device].pages.file(), |imported| &imported.file)
    }

    /// Returns whether this process uses the memory.
    fn is_used_here(&self) -> bool {
        self.held || self.mappings > 0
    }
}

/// A mapping. An unmap removes the whole mapping or nothing.
#[derive(Debug)]
struct Mapping {
    bytes: u64,
    /// Number of the physical memory.
    physical: u64,
    /// Devices with access, and the kind of access.
    users: BTreeMap<usize, Access>,
}

/// All reservations, physical memory and mappings.
#[derive(Debug)]
pub(crate) struct VirtualMemory {
    /// Requested size of each reservation, by base.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    /// Live handles, each of a number of physical memory.
    pub(crate) handles: Handles<u64>,
    physical: BTreeMap<u64, Physical>,
    made: u64,
}

impl VirtualMemory {
    /// Creates an empty state.
    pub(crate) fn new() -> Self {
        Self {
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            handles: Handles::new(7),
            physical: BTreeMap::new(),
            made: 0,
        }
    }

    /// Returns base and size of the mapping that contains an address.
    pub(crate) fn containing(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping.bytes))
    }

    /// Returns base and size of the mapping that contains an address, if a device has access to the
    /// mapping.
    pub(crate) fn accessible_containing(&self, address: u64) -> Option<(u64, u64)> {
        self.containing(address).filter(|(start, _)| !self.mappings[start].users.is_empty())
    }

    /// Returns whether a device has the needed access to all of `[start, end)`.
    pub(crate) fn is_accessible(&self, start: u64, end: u64, device: usize, needed: Access) -> bool {
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
    pub(crate) fn peek(&self, devices: &[Device], address: u64, into: &mut [u8]) -> Answer<()> {
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
            pages::read(physical.file(devices), &physical.extents, at - base, &mut into[done..done + now]);
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
    fn inside(&self, start: u64, bytes: u64) -> Result<(Vec<u64>, bool), Cut> {
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
    fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let reservation = self.reservations.range(..=start).next_back();
        let end = start.checked_add(bytes);
        reservation.zip(end).is_some_and(|((&base, &its), end)| end <= base + its)
    }

    /// Returns whether a mapping overlaps `[start, end)`.
    fn is_taken(&self, start: u64, end: u64) -> bool {
        self.mappings.range(..end).next_back().is_some_and(|(&base, mapping)| base + mapping.bytes > start)
    }
}

/// Error of a range that begins or ends inside a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut;

/// `cuMemGetAllocationGranularity`.
pub(crate) fn granularity(call: &Call, properties: &Properties) -> Answer<u64> {
    supported(call)?;
    checked(call, properties).map(|_| PAGE)
}

/// `cuMemAddressReserve`.
pub(crate) fn reserve(call: &mut Call, bytes: u64, alignment: u64, hint: u64, flags: u64) -> Answer<u64> {
    supported(call)?;
    let bad_alignment = alignment != 0 && !alignment.is_power_of_two();
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(HOST_PAGE) || bad_alignment {
        return Err(Code::INVALID_VALUE);
    }
    if !bytes.is_multiple_of(PAGE) {
        call.state.answers.outcome("reserve_unaligned")?;
    }
    let taken = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let base = call.state.space().take(taken, alignment.max(1), hint)?;
    call.state.virtual_memory.reservations.insert(base, bytes);
    call.made("reservation", base);
    Ok(base)
}

/// `cuMemAddressFree`.
pub(crate) fn unreserve(call: &mut Call, base: u64, bytes: u64) -> Answer<()> {
    supported(call)?;
    let state = &mut *call.state;
    if state.virtual_memory.reservations.get(&base) != Some(&bytes) {
        return state.answers.outcome("address_free_unknown");
    }
    if state.virtual_memory.is_taken(base, base + bytes) {
        return state.answers.outcome("address_free_mapped");
    }
    state.virtual_memory.reservations.remove(&base);
    state.space().give(base, bytes.next_multiple_of(PAGE));
    Ok(())
}

/// `cuMemCreate`.
pub(crate) fn create(call: &mut Call, bytes: u64, properties: &Properties, flags: u64) -> Answer<u64> {
    supported(call)?;
    let device = checked(call, properties)?;
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(PAGE) {
        return Err(Code::INVALID_VALUE);
    }
    let exportable = properties.handle_types == HANDLE_POSIX_FD;
    let state = &mut *call.state;
    if let Some(code) = state.devices[device].lost {
        return Err(code);
    }
    collect(state);
    if !state.devices[device].has_room(bytes) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let extents = state.devices[device].pages.take(bytes).ok_or(Code::OUT_OF_MEMORY)?;
    state.devices[device].pages.poison(&extents, 0, bytes, POISON_NEW);
    Ok(add(call, device, extents, None, exportable))
}

/// Adds physical memory. Returns the handle.
fn add(call: &mut Call, device: usize, extents: Vec<Extent>, imported: Option<Imported>, exportable: bool) -> u64 {
    let bytes = extents.iter().map(|extent| extent.bytes).sum();
    let exports = Vec::new();
    let physical = Physical { device, bytes, extents, imported, exportable, exports, held: true, mappings: 0 };
    let memory = &mut call.state.virtual_memory;
    memory.made += 1;
    memory.physical.insert(memory.made, physical);
    let handle = memory.handles.add(memory.made);
    call.made("physical memory", handle);
    handle
}

/// `cuMemExportToShareableHandle`.
pub(crate) fn export(call: &mut Call, handle: u64, kind: i32, flags: u64) -> Answer<OwnedFd> {
    supported(call)?;
    if kind != HANDLE_POSIX_FD || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let State { virtual_memory, devices, answers, .. } = &mut *call.state;
    let number = virtual_memory.handles.get(handle).ok().copied();
    let Some(physical) = number.and_then(|number| virtual_memory.physical.get_mut(&number)) else {
        answers.outcome("export_unknown")?;
        return Err(Code::INVALID_VALUE);
    };
    if !physical.exportable {
        answers.outcome("export_untyped")?;
    }
    let (export, descriptor) = sharing::export(physical.device, &physical.extents, physical.file(devices).as_fd())?;
    physical.exports.push(export);
    call.out = Some(descriptor.as_raw_fd() as u64);
    Ok(descriptor)
}

/// `cuMemImportFromShareableHandle`.
pub(crate) fn import(call: &mut Call, descriptor: i32, kind: i32) -> Answer<u64> {
    supported(call)?;
    if kind != HANDLE_POSIX_FD {
        return Err(Code::INVALID_VALUE);
    }
    let Some(import) = sharing::import(descriptor) else {
        call.state.answers.outcome("import_unknown")?;
        return Err(Code::INVALID_VALUE);
    };
    let device = device::index(&call.state, import.device)?;
    // A real driver exports no imported memory again.
    Ok(add(call, device, import.extents, Some(import.source), false))
}

/// `cuMemRelease`.
pub(crate) fn release(call: &mut Call, handle: u64) -> Answer<()> {
    supported(call)?;
    let Ok(number) = call.state.virtual_memory.handles.remove(handle) else {
        return call.state.answers.outcome("release_unknown");
    };
    if let Some(physical) = call.state.virtual_memory.physical.get_mut(&number) {
        physical.held = false;
    }
    drop_unused(&mut call.state, number);
    Ok(())
}

/// `cuMemMap`.
pub(crate) fn map(call: &mut Call, at: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Answer<()> {
    supported(call)?;
    let state = &mut *call.state;
    let memory = &mut state.virtual_memory;
    let number = *memory.handles.get(handle).map_err(|_| Code::INVALID_VALUE)?;
    let physical = memory.physical.get(&number).ok_or(Code::INVALID_VALUE)?;
    let aligned = at.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
    if flags != 0 || bytes == 0 || !aligned || !offset.is_multiple_of(PAGE) {
        return Err(Code::INVALID_VALUE);
    }
    if offset != 0 || bytes != physical.bytes {
        return state.answers.outcome("map_part");
    }
    if !memory.is_reserved(at, bytes) || memory.is_taken(at, at + bytes) {
        return state.answers.outcome("map_taken");
    }
    memory.mappings.insert(at, Mapping { bytes, physical: number, users: BTreeMap::new() });
    if let Some(physical) = memory.physical.get_mut(&number) {
        physical.mappings += 1;
    }
    Ok(())
}

/// `cuMemUnmap`. Does not wait: work that still uses the range is killed.
pub(crate) fn unmap(call: &mut Call, at: u64, bytes: u64) -> Answer<()> {
    supported(call)?;
    let state = &mut *call.state;
    if bytes == 0 || !at.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
        return Err(Code::INVALID_VALUE);
    }
    if !state.virtual_memory.is_reserved(at, bytes) {
        return state.answers.outcome("unmap_unreserved");
    }
    let Ok((found, covered)) = state.virtual_memory.inside(at, bytes) else {
        return state.answers.outcome("unmap_partial");
    };
    if !covered {
        state.answers.outcome("unmap_gap")?;
    }
    for start in found {
        let Some(mapping) = state.virtual_memory.mappings.remove(&start) else { continue };
        for &user in mapping.users.keys() {
            state.space().unmap(user, start, mapping.bytes);
        }
        state.space().unmap_host(start, mapping.bytes);
        if let Some(physical) = state.virtual_memory.physical.get_mut(&mapping.physical) {
            physical.mappings -= 1;
        }
        drop_unused(state, mapping.physical);
    }
    Ok(())
}

/// `cuMemSetAccess`: checks all descriptors before applying the first.
pub(crate) fn set_access(call: &mut Call, at: u64, bytes: u64, wanted: &[AccessDescriptor]) -> Answer<()> {
    supported(call)?;
    let state = &mut *call.state;
    let Ok((found, covered)) = state.virtual_memory.inside(at, bytes) else {
        return state.answers.outcome("access_partial");
    };
    if !covered || bytes == 0 {
        return state.answers.outcome("access_gap");
    }
    let mut changes = Vec::new();
    for descriptor in wanted {
        if descriptor.location.kind != LOCATION_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        // An absent device is an invalid value here, although `cuMemCreate` has a special code
        // for an absent device.
        let device = device::index(state, descriptor.location.id).map_err(|_| Code::INVALID_VALUE)?;
        let access = match descriptor.flags {
            ACCESS_NONE => None,
            ACCESS_READ => Some(Access::Read),
            ACCESS_READ_WRITE => Some(Access::ReadWrite),
            _ => return Err(Code::INVALID_VALUE),
        };
        changes.push((device, access));
    }
    if changes.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    for start in found {
        for &(device, access) in &changes {
            change_access(state, start, device, access)?;
        }
    }
    Ok(())
}

/// Sets one device's access to a mapping. `None` removes the access.
fn change_access(state: &mut State, start: u64, device: usize, access: Option<Access>) -> Answer<()> {
    let State { virtual_memory, devices, space, .. } = state;
    let (Some(space), Some(mapping)) = (space, virtual_memory.mappings.get_mut(&start)) else {
        return Err(Code::INVALID_VALUE);
    };
    let Some(access) = access else {
        if mapping.users.remove(&device).is_some() {
            space.unmap(device, start, mapping.bytes);
        }
        return Ok(());
    };
    if mapping.users.insert(device, access) == Some(access) {
        return Ok(());
    }
    let physical = &virtual_memory.physical[&mapping.physical];
    let descriptor = physical.file(devices).as_raw_fd();
    let mapped = space.map(device, start, descriptor, &physical.extents, access);
    if mapped.is_err() {
        mapping.users.remove(&device);
    }
    mapped
}

/// Releases physical memory without a handle and without mappings, unless another process may use it.
fn drop_unused(state: &mut State, number: u64) {
    let memory = &mut state.virtual_memory;
    let unused = |physical: &Physical| !physical.is_used_here() && !physical.exports.iter().any(Export::is_in_use);
    if memory.physical.get(&number).is_some_and(unused)
        && let Some(physical) = memory.physical.remove(&number)
        && physical.imported.is_none()
    {
        state.devices[physical.device].pages.give(&physical.extents);
    }
}

/// Releases physical memory that other processes have used alone, and use no longer.
pub(crate) fn collect(state: &mut State) {
    let left = state.virtual_memory.physical.iter().filter(|(_, physical)| !physical.is_used_here());
    for number in left.map(|(&number, _)| number).collect::<Vec<_>>() {
        drop_unused(state, number);
    }
}

/// Checks that the devices have virtual memory.
fn supported(call: &Call) -> Answer<()> {
    let has = device::all_have(&call.state, VIRTUAL_MEMORY_MANAGEMENT);
    if has { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Returns the device of properties, if valid.
fn checked(call: &Call, properties: &Properties) -> Answer<usize> {
    if properties.kind != TYPE_PINNED || properties.location.kind != LOCATION_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    match properties.handle_types {
        HANDLE_NONE => {}
        HANDLE_POSIX_FD if device::all_have(&call.state, HANDLE_TYPE_POSIX_FD) => {}
        _ => return Err(Code::NOT_SUPPORTED),
    }
    device::index(&call.state, properties.location.id)
}
