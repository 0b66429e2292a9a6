//! Virtual memory: reserved addresses and physical memory, joined by mappings.
//!
//! A mapping alone gives no device access. `cuMemSetAccess` maps the memory into the named device's
//! view of the addresses (see `space`), where the device's kernels look. Memory created for export
//! can be mapped in another process, too (see `sharing`).

use crate::backing::handed::{self, Handed};
use crate::backing::pages::{Extent, PAGE, POISON_NEW, Pages};
use crate::backing::sharing::{self, Imported};
use crate::backing::space::{DeviceAccess, Space};
use crate::call::Call;
use crate::state::devices::{self, HANDLE_TYPE_POSIX_FD, HOST_MEMORY, HOST_NUMA_MEMORY, VIRTUAL_MEMORY_MANAGEMENT};
use crate::state::driver::State;
use crate::state::physical;
use crate::tables::virtual_memory::{Home, Mapping, Physical};
use crate::values::code::{Answer, Code};
use crate::values::pointers::{In, Out};
use crate::values::structs::{Access, FABRIC, IpcMemory, POSIX_FD, Properties};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

/// Page size of the host. A reservation may have any multiple of `HOST_PAGE`.
const HOST_PAGE: u64 = 4096;
/// No device has addresses above.
const END_OF_ADDRESSES: u64 = 1 << 56;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const TYPE_PINNED: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`.
const LOCATION_HOST: i32 = 2;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
const LOCATION_HOST_NUMA: i32 = 3;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`.
const LOCATION_HOST_NUMA_CURRENT: i32 = 4;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`, of CUDA 13.4.
const LOCATION_LOCALITY_DOMAIN: i32 = 6;
/// The NUMA node of the emulated host, the only one.
const NODE: i32 = 0;
/// `CU_MEM_HANDLE_TYPE_NONE`.
const HANDLE_NONE: i32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
const ACCESS_NONE: i32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
const ACCESS_READ: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const ACCESS_READ_WRITE: i32 = 3;

/// `cuMemGetAllocationGranularity`.
pub(crate) fn cuMemGetAllocationGranularity(
    call: &mut Call,
    bytes: Out<usize>,
    properties: In<Properties>,
    option: c_int,
) -> Answer<()> {
    call.answer(bytes, |call| {
        let properties = properties.read()?;
        if !(0..=1).contains(&option) {
            return Err(Code::INVALID_VALUE);
        }
        supported(call)?;
        // Here, any node of the host will do.
        let named = match properties.location_kind {
            LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => {
                Properties { location_kind: LOCATION_HOST_NUMA, location: NODE, ..properties }
            }
            _ => properties,
        };
        checked(call, &named).map(|_| PAGE as usize)
    })
}

/// `cuMemAddressReserve`.
pub(crate) fn cuMemAddressReserve(
    call: &mut Call,
    address: Out<u64>,
    bytes: u64,
    alignment: u64,
    hint: u64,
    flags: u64,
) -> Answer<()> {
    call.answer(address, |call| reserve(call, bytes, alignment, hint, flags))
}

/// Reserves addresses.
fn reserve(call: &mut Call, bytes: u64, alignment: u64, hint: u64, flags: u64) -> Answer<u64> {
    supported(call)?;
    let bad_alignment = alignment != 0 && !alignment.is_power_of_two();
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(HOST_PAGE) || bad_alignment {
        return Err(Code::INVALID_VALUE);
    }
    if !hint.is_multiple_of(alignment.max(PAGE)) {
        return Err(Code::INVALID_VALUE);
    }
    if hint >= END_OF_ADDRESSES {
        return Err(Code::OUT_OF_MEMORY);
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
pub(crate) fn cuMemAddressFree(call: &mut Call, base: u64, bytes: u64) -> Answer<()> {
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
pub(crate) fn cuMemCreate(
    call: &mut Call,
    handle: Out<u64>,
    bytes: u64,
    properties: In<Properties>,
    flags: u64,
) -> Answer<()> {
    call.answer(handle, |call| create(call, bytes, &properties.read()?, flags))
}

/// Creates physical memory.
fn create(call: &mut Call, bytes: u64, properties: &Properties, flags: u64) -> Answer<u64> {
    supported(call)?;
    let home = checked(call, properties)?;
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(PAGE) {
        return Err(Code::INVALID_VALUE);
    }
    let handle_types = properties.handle_types;
    let state = &mut *call.state;
    if let Some(code) = state.devices[home.device()].lost {
        return Err(code);
    }
    physical::collect(state);
    let State { devices, virtual_memory, config, .. } = state;
    let pages = match home {
        Home::Device(device) if !devices[device].has_room(bytes) => return Err(Code::OUT_OF_MEMORY),
        Home::Device(device) => &mut devices[device].pages,
        Home::Host => virtual_memory.host.get_or_insert_with(|| Pages::new(config.host_bytes, config.poison)),
    };
    let extents = pages.take(bytes).ok_or(Code::OUT_OF_MEMORY)?;
    pages.poison(&extents, 0, bytes, POISON_NEW);
    let file = Arc::clone(pages.file());
    Ok(add(call, Physical { handle_types, ..physical_of(home, bytes, file, extents) }))
}

/// Returns physical memory that nobody else has or can get.
fn physical_of(home: Home, bytes: u64, file: Arc<File>, extents: Vec<Extent>) -> Physical {
    let (exports, handle_types) = (Vec::new(), HANDLE_NONE);
    Physical { home, bytes, file, extents, imported: None, handle_types, offer: None, exports, held: true, mappings: 0 }
}

/// Adds physical memory. Returns the handle.
fn add(call: &mut Call, physical: Physical) -> u64 {
    let memory = &mut call.state.virtual_memory;
    memory.made += 1;
    memory.physical.insert(memory.made, physical);
    let handle = memory.handles.add(memory.made);
    call.made("physical memory", handle);
    handle
}

/// `cuMemExportToShareableHandle`.
pub(crate) fn cuMemExportToShareableHandle(
    call: &mut Call,
    descriptor: Out<c_int>,
    handle: u64,
    kind: c_int,
    flags: u64,
) -> Answer<()> {
    descriptor.check()?;
    if kind == FABRIC {
        let handle = export_to_fabric(call, handle, flags)?;
        call.later(move || descriptor.cast::<IpcMemory>().write(handle));
        return Ok(());
    }
    // Closed unless the call is a success.
    let exported = export(call, handle, kind, flags)?;
    call.later(move || descriptor.write(exported.into_raw_fd()));
    Ok(())
}

/// Makes a descriptor of physical memory.
fn export(call: &mut Call, handle: u64, kind: i32, flags: u64) -> Answer<OwnedFd> {
    supported(call)?;
    if kind != POSIX_FD || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let State { virtual_memory, answers, .. } = &mut *call.state;
    let number = virtual_memory.handles.get(handle).ok().copied();
    let Some(physical) = number.and_then(|number| virtual_memory.physical.get_mut(&number)) else {
        answers.outcome("export_unknown")?;
        return Err(Code::INVALID_VALUE);
    };
    if physical.handle_types & POSIX_FD == 0 {
        answers.outcome("export_untyped")?;
    }
    let (export, descriptor) = sharing::export(physical.home.device(), &physical.extents, physical.file.as_fd())?;
    physical.exports.push(export);
    call.out = Some(descriptor.as_raw_fd() as u64);
    Ok(descriptor)
}

/// Names physical memory for processes on other nodes: any process of this machine stands for one.
/// The same name each time, until the memory ends.
fn export_to_fabric(call: &mut Call, handle: u64, flags: u64) -> Answer<IpcMemory> {
    supported(call)?;
    let memory = &mut call.state.virtual_memory;
    let number = *memory.handles.get(handle).map_err(|_| Code::INVALID_VALUE)?;
    let physical = memory.physical.get_mut(&number).ok_or(Code::INVALID_VALUE)?;
    if flags != 0 || physical.handle_types & FABRIC == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if let Some((name, _)) = &physical.offer {
        return Ok(*name);
    }
    let (device, extents) = (physical.home.device(), physical.extents.clone());
    let (name, description) =
        handed::offer(&Handed { device, extents, offset: 0, bytes: physical.bytes }, &physical.file)?;
    physical.offer = Some((name, description));
    Ok(name)
}

/// `cuMemImportFromShareableHandle`. The descriptor is a number in the shape of a pointer.
pub(crate) fn cuMemImportFromShareableHandle(
    call: &mut Call,
    handle: Out<u64>,
    descriptor: u64,
    kind: c_int,
) -> Answer<()> {
    call.answer(handle, |call| {
        if kind == FABRIC {
            let name = In::<IpcMemory>::from_caller(std::ptr::with_exposed_provenance(descriptor as usize)).read()?;
            return import_from_fabric(call, &name);
        }
        let descriptor = i32::try_from(descriptor.cast_signed()).map_err(|_| Code::INVALID_VALUE)?;
        import(call, descriptor, kind)
    })
}

/// Imports physical memory.
fn import(call: &mut Call, descriptor: i32, kind: i32) -> Answer<u64> {
    supported(call)?;
    if kind != POSIX_FD {
        return Err(Code::INVALID_VALUE);
    }
    let Some(import) = sharing::import(descriptor) else {
        call.state.answers.outcome("import_unknown")?;
        return Err(Code::INVALID_VALUE);
    };
    let device = devices::index(&call.state, import.device)?;
    let bytes = import.extents.iter().map(|extent| extent.bytes).sum();
    // A real driver exports no imported memory again.
    let physical = physical_of(Home::Device(device), bytes, Arc::new(import.file), import.extents);
    Ok(add(call, Physical { imported: Some(import.source), ..physical }))
}

/// Imports physical memory by its name in the fabric.
fn import_from_fabric(call: &mut Call, name: &IpcMemory) -> Answer<u64> {
    supported(call)?;
    let (Handed { device, extents, bytes, .. }, file) = handed::open(name).ok_or(Code::INVALID_VALUE)?;
    let device = devices::index(&call.state, device as i32)?;
    let imported = Some(Imported::by_name(&file)?);
    let physical = physical_of(Home::Device(device), bytes, Arc::new(file), extents);
    Ok(add(call, Physical { imported, ..physical }))
}

/// `cuMemRelease`.
pub(crate) fn cuMemRelease(call: &mut Call, handle: u64) -> Answer<()> {
    supported(call)?;
    let Ok(number) = call.state.virtual_memory.handles.remove(handle) else {
        return call.state.answers.outcome("release_unknown");
    };
    if let Some(physical) = call.state.virtual_memory.physical.get_mut(&number) {
        physical.held = false;
    }
    physical::drop_unused(&mut call.state, number);
    Ok(())
}

/// `cuMemMap`.
pub(crate) fn cuMemMap(call: &mut Call, at: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Answer<()> {
    supported(call)?;
    let state = &mut *call.state;
    let id = state.next_id();
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
    memory.mappings.insert(at, Mapping { bytes, physical: number, users: BTreeMap::new(), host_uses: false, id });
    if let Some(physical) = memory.physical.get_mut(&number) {
        physical.mappings += 1;
    }
    Ok(())
}

/// `cuMemUnmap`. Does not wait: work that still uses the range is killed.
pub(crate) fn cuMemUnmap(call: &mut Call, at: u64, bytes: u64) -> Answer<()> {
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
        if mapping.host_uses {
            Space::forbid_host(start, mapping.bytes);
        }
        if let Some(physical) = state.virtual_memory.physical.get_mut(&mapping.physical) {
            physical.mappings -= 1;
        }
        physical::drop_unused(state, mapping.physical);
    }
    Ok(())
}

/// `cuMemSetAccess`: checks all descriptors before applying the first.
pub(crate) fn cuMemSetAccess(
    call: &mut Call,
    at: u64,
    bytes: u64,
    descriptors: In<Access>,
    count: usize,
) -> Answer<()> {
    let wanted = descriptors.list(count)?;
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
        let user = match descriptor.location_kind {
            // An absent device is an invalid value here, although `cuMemCreate` has a special code
            // for an absent device.
            LOCATION_DEVICE => {
                Home::Device(devices::index(state, descriptor.location).map_err(|_| Code::INVALID_VALUE)?)
            }
            LOCATION_HOST | LOCATION_HOST_NUMA => Home::Host,
            _ => return Err(Code::INVALID_VALUE),
        };
        let access = match descriptor.flags {
            ACCESS_NONE => None,
            ACCESS_READ => Some(DeviceAccess::Read),
            ACCESS_READ_WRITE => Some(DeviceAccess::ReadWrite),
            _ => return Err(Code::INVALID_VALUE),
        };
        changes.push((user, access));
    }
    if changes.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let memory = &state.virtual_memory;
    let is_host = |start: &u64| memory.physical[&memory.mappings[start].physical].home == Home::Host;
    if changes.iter().any(|change| change.0 == Home::Host) && !found.iter().all(is_host) {
        return Err(Code::INVALID_VALUE);
    }
    for start in found {
        for &(user, access) in &changes {
            match user {
                Home::Device(device) => change_access(state, start, device, access)?,
                Home::Host => change_host_access(state, start, access.is_some())?,
            }
        }
    }
    Ok(())
}

/// Gives the host access to a mapping of its own memory, or takes the access away.
fn change_host_access(state: &mut State, start: u64, uses: bool) -> Answer<()> {
    let memory = &mut state.virtual_memory;
    let mapping = memory.mappings.get_mut(&start).ok_or(Code::INVALID_VALUE)?;
    let physical = &memory.physical[&mapping.physical];
    if uses {
        Space::map_host(start, physical.file.as_raw_fd(), &physical.extents)?;
    } else if mapping.host_uses {
        Space::forbid_host(start, mapping.bytes);
    }
    mapping.host_uses = uses;
    Ok(())
}

/// Sets one device's access to a mapping. `None` removes the access.
fn change_access(state: &mut State, start: u64, device: usize, access: Option<DeviceAccess>) -> Answer<()> {
    let State { virtual_memory, space, .. } = state;
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
    let descriptor = physical.file.as_raw_fd();
    let mapped = space.map(device, start, descriptor, &physical.extents, access);
    if mapped.is_err() {
        mapping.users.remove(&device);
    }
    mapped
}

/// Checks that the devices have virtual memory.
fn supported(call: &Call) -> Answer<()> {
    let has = devices::all_have(&call.state, VIRTUAL_MEMORY_MANAGEMENT);
    if has { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Returns where memory with these properties lies, if they are valid.
fn checked(call: &Call, properties: &Properties) -> Answer<Home> {
    if properties.kind != TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    match (properties.handle_types, properties.location_kind) {
        (HANDLE_NONE, _) => {}
        // Memory of no certain node is for one process alone.
        (_, LOCATION_HOST) => return Err(Code::INVALID_VALUE),
        (kinds, _) => {
            let posix = kinds & POSIX_FD == 0 || devices::all_have(&call.state, HANDLE_TYPE_POSIX_FD);
            let fabric = kinds & FABRIC == 0 || devices::have_fabric(&call.state);
            if kinds & !(POSIX_FD | FABRIC) != 0 || !posix || !fabric {
                return Err(Code::NOT_SUPPORTED);
            }
        }
    }
    match properties.location_kind {
        LOCATION_DEVICE => devices::index(&call.state, properties.location).map(Home::Device),
        LOCATION_LOCALITY_DOMAIN => devices::of_locality_domain(&call.state, properties.location).map(Home::Device),
        LOCATION_HOST if devices::all_have(&call.state, HOST_MEMORY) => Ok(Home::Host),
        LOCATION_HOST_NUMA if devices::all_have(&call.state, HOST_NUMA_MEMORY) => {
            if properties.location == NODE {
                Ok(Home::Host)
            } else {
                Err(Code::INVALID_VALUE)
            }
        }
        LOCATION_HOST | LOCATION_HOST_NUMA => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}
