//! Memory that the program maps by itself, parked and woken.
//!
//! ```text
//! park   contents to the host ─ all complete ─▶ unmapped, released
//! wake   created, mapped, access given, contents on the way ─ all complete ─▶ the host's contents forgotten
//! ```
//!
//! Until the end of a wake the host keeps the contents, so a wake that fails in the middle gives the memory back without copies.
//! Each step is noted in the records as soon as the driver has done the step: a later try goes on from there.

use crate::charge::Holding;
use crate::control::{ControlRefusal, RefusalKind};
use crate::ledger::Kind;
use crate::serve::process::Process;
use crate::serve::program_memory::{ProgramContents, ProgramItem, ProgramMapping, ProgramSums};
use crate::serve::served::Served;
use cachalot_core::{Contents, DeviceError, DevicePtr, DeviceResult, ErrorKind, Saved};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuDevicePtr, CuMemHandle};
use std::sync::Arc;

/// Memory to park, and the allocator whose device copies.
struct Parting {
    item: ProgramItem,
    served: Arc<Served>,
    /// Where the memory is read.
    from: CuDevicePtr,
}

/// Why memory is not parked.
pub(super) struct NotParked {
    /// The allocator whose device was asked.
    pub(super) served: Arc<Served>,
    pub(super) error: DeviceError,
    /// Whether the host, and not the device, lacks memory.
    is_host: bool,
}

impl NotParked {
    /// Returns the refusal for the error, unless a file has a better one.
    pub(super) fn refusal(&self) -> ControlRefusal {
        let (kind, what) = match self.error.kind {
            ErrorKind::OutOfMemory if self.is_host => (RefusalKind::NoHostMemory, "the host lacks room"),
            ErrorKind::NotPermittedInCapture => (RefusalKind::Capturing, "a stream captures a graph"),
            _ => (RefusalKind::Driver, "the driver refuses"),
        };
        ControlRefusal::new(kind, format!("memory that the program maps by itself: {what}: {}", self.error))
    }
}

impl Process {
    /// Parks the memory that the program maps by itself on devices with a served context.
    ///
    /// # Errors
    /// The reason. Some of the memory may be parked then, and [`start_to_wake`](Self::start_to_wake) wakes the part.
    pub(super) fn park_program(&self) -> Result<(), NotParked> {
        let mut partings = Vec::new();
        for item in self.program.items(|physical| physical.handle.is_some()) {
            let Some(served) = self.served_on(item.physical.recipe.device()) else { continue };
            let handle = item.physical.handle.unwrap_or_default();
            let opened = item.copy_address().map_or_else(|| self.open_window(&item, &served, handle), Ok);
            let from = opened.map_err(|error| NotParked { served: Arc::clone(&served), error, is_host: false })?;
            partings.push(Parting { item, served, from });
        }
        let saved = save(&partings)?;
        for (parting, saved) in partings.iter().zip(saved) {
            let contents = ProgramContents { served: Arc::clone(&parting.served), saved };
            self.program.set_contents(parting.item.token, Some(contents));
        }
        // A window has a mapping more than the program.
        for item in self.program.items(|physical| physical.contents.is_some()) {
            let Some(served) = item.physical.contents.as_ref().map(|kept| Arc::clone(&kept.served)) else { continue };
            self.give_memory(&item, &served).map_err(|error| NotParked { served, error, is_host: false })?;
        }
        Ok(())
    }

    /// Creates and maps the parked memory again, and begins the copies.
    ///
    /// # Errors
    /// The first error. [`park_again`](Self::park_again) gives back what is there.
    pub(super) fn start_to_wake(&self) -> DeviceResult<()> {
        self.kept_items().iter().try_for_each(|(item, kept)| self.take_memory(item, kept))
    }

    /// Waits for the copies of a wake.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn finish_to_wake(&self) -> DeviceResult<()> {
        finish(self.kept_items().iter().map(|(_, kept)| &kept.served))
    }

    /// Forgets the contents on the host, after a wake of all memory.
    pub(super) fn end_to_wake(&self) {
        for (item, kept) in self.kept_items() {
            self.program.set_contents(item.token, None);
            kept.served.device().cuda().forget(kept.saved);
        }
    }

    /// Gives the memory back after a failed wake. What the driver keeps is there at the next wake.
    pub(super) fn park_again(&self) {
        // A copy must not meet the end of the mapping. After a failure the device has lost its context, and the copies.
        let _ = self.finish_to_wake();
        for (item, kept) in self.kept_items() {
            let _ = self.give_memory(&item, &kept.served);
        }
    }

    /// Returns the sums of the memory on devices with a served context.
    pub(super) fn program_sums(&self) -> ProgramSums {
        let contexts = self.contexts.all();
        self.program.sums(|device| contexts.iter().any(|served| served.ordinal() == device))
    }

    /// Returns the memory with contents on the host.
    fn kept_items(&self) -> Vec<(ProgramItem, ProgramContents)> {
        let items = self.program.items(|physical| physical.contents.is_some());
        items.into_iter().filter_map(|item| item.physical.contents.clone().map(|kept| (item, kept))).collect()
    }

    /// Returns the allocator of the first served context of a device.
    fn served_on(&self, device: CuDevice) -> Option<Arc<Served>> {
        self.contexts.all().into_iter().find(|served| served.ordinal() == device)
    }

    /// Maps memory at addresses of the library's own, where the memory's device reads and writes. The addresses stay until the memory
    /// ends.
    fn open_window(&self, item: &ProgramItem, served: &Served, handle: CuMemHandle) -> DeviceResult<CuDevicePtr> {
        let recipe = &item.physical.recipe;
        let (cuda, bytes) = (served.device().cuda(), recipe.bytes as usize);
        let mut address = 0;
        cuda.with_context(|driver| {
            // SAFETY: `address` outlives the call, which writes one address to it.
            unsafe { driver.mem_address_reserve(&raw mut address, bytes, 0, 0, 0) }
        })?;
        let mapping = ProgramMapping {
            token: item.token,
            bytes: recipe.bytes,
            offset: 0,
            access: vec![recipe.own_access()],
            is_mapped: true,
        };
        let opened = map(served, address, &mapping, handle).and_then(|()| open(served, address, &mapping));
        if let Err(error) = opened {
            let _ = cuda.with_context(|driver| {
                // SAFETY: takes no host pointers; the addresses are new, and no work has them.
                let _ = unsafe { driver.mem_unmap(address, bytes) };
                // SAFETY: as above. The driver keeps addresses that are still mapped.
                unsafe { driver.mem_address_free(address, bytes) }
            });
            return Err(error);
        }
        self.program.open_window(item.token, address, mapping);
        Ok(address)
    }

    /// Unmaps memory and gives it back to the driver.
    fn give_memory(&self, item: &ProgramItem, served: &Served) -> DeviceResult<()> {
        let cuda = served.device().cuda();
        for (address, mapping) in item.mappings.iter().filter(|(_, mapping)| mapping.is_mapped) {
            cuda.with_context(|driver| {
                // SAFETY: takes no host pointers; all work is complete, and calls that use memory wait for the wake.
                unsafe { driver.mem_unmap(*address, mapping.bytes as usize) }
            })?;
            self.program.set_mapped(*address, false);
        }
        let Some(handle) = item.physical.handle else { return Ok(()) };
        self.charge.holdings().give(&[Kind::Pages], item.token, || {
            cuda.with_context(|driver| {
                // SAFETY: takes no host pointers; the handle is the library's own.
                unsafe { driver.mem_release(handle) }
            })
        })?;
        self.program.set_handle(item.token, None);
        Ok(())
    }

    /// Creates parked memory anew.
    fn create_again(&self, item: &ProgramItem, kept: &ProgramContents) -> DeviceResult<CuMemHandle> {
        let recipe = &item.physical.recipe;
        let charge = self.charge.of_device(self.real, recipe.device());
        let memory = Holding { charge, kind: Kind::Pages, bytes: recipe.bytes, context: CuContext::NULL };
        let create = || {
            let (mut handle, properties) = (CuMemHandle::default(), recipe.properties());
            kept.served.device().cuda().with_context(|driver| {
                // SAFETY: both variables outlive the call, which reads `properties` and writes one handle to `handle`.
                unsafe { driver.mem_create(&raw mut handle, recipe.bytes as usize, &raw const properties, 0) }
            })?;
            Ok(handle)
        };
        let refused = |code: CuResult| DeviceError::new(ErrorKind::OutOfMemory, code.0);
        let handle = self.charge.holdings().take(memory, create, |_| item.token, refused)?;
        self.program.set_handle(item.token, Some(handle));
        Ok(handle)
    }

    /// Creates memory anew unless it is there, maps it where it was, and begins to copy the contents.
    fn take_memory(&self, item: &ProgramItem, kept: &ProgramContents) -> DeviceResult<()> {
        let handle = item.physical.handle.map_or_else(|| self.create_again(item, kept), Ok)?;
        for (address, mapping) in &item.mappings {
            if !mapping.is_mapped {
                map(&kept.served, *address, mapping, handle)?;
                self.program.set_mapped(*address, true);
            }
            // Also where an earlier try has failed right here.
            open(&kept.served, *address, mapping)?;
        }
        // The program may have unmapped the memory while it was parked.
        let to = item.copy_address().map_or_else(|| self.open_window(item, &kept.served, handle), Ok)?;
        kept.served.device().cuda().restore(kept.saved, DevicePtr(to), item.physical.recipe.bytes)
    }
}

/// Maps memory at an address.
fn map(served: &Served, address: CuDevicePtr, mapping: &ProgramMapping, handle: CuMemHandle) -> DeviceResult<()> {
    served.device().cuda().with_context(|driver| {
        // SAFETY: takes no host pointers; the program, or the library, has reserved the addresses.
        unsafe { driver.mem_map(address, mapping.bytes as usize, mapping.offset as usize, handle, 0) }
    })
}

/// Gives devices the access of a mapping.
fn open(served: &Served, address: CuDevicePtr, mapping: &ProgramMapping) -> DeviceResult<()> {
    if mapping.access.is_empty() {
        return Ok(());
    }
    served.device().cuda().with_context(|driver| {
        let (access, count) = (mapping.access.as_ptr(), mapping.access.len());
        // SAFETY: the list outlives the call, which reads its entries.
        unsafe { driver.mem_set_access(address, mapping.bytes as usize, access, count) }
    })
}

/// Copies the contents of memory to the host, and waits for the copies.
///
/// # Errors
/// The first error. No contents are kept then.
fn save(partings: &[Parting]) -> Result<Vec<Saved>, NotParked> {
    let keepers = distinct(partings.iter().map(|parting| &parting.served));
    let mut saved = Vec::new();
    let copied = save_all(partings, &keepers, &mut saved);
    if copied.is_err() {
        // No copy goes on when its contents are forgotten.
        let _ = finish(keepers.iter().copied());
        for (parting, saved) in partings.iter().zip(saved.drain(..)) {
            parting.served.device().cuda().forget(saved);
        }
    }
    keepers.iter().for_each(|served| served.device().cuda().end_saves());
    copied.map(|()| saved)
}

/// Copies the contents of memory to the host, up to the first error.
fn save_all(partings: &[Parting], keepers: &[&Arc<Served>], saved: &mut Vec<Saved>) -> Result<(), NotParked> {
    let failed = |served: &Arc<Served>, error, is_host| NotParked { served: Arc::clone(served), error, is_host };
    for &served in keepers {
        let own = partings.iter().filter(|parting| Arc::ptr_eq(&parting.served, served));
        let (sum, largest) = own
            .map(|parting| parting.item.physical.recipe.bytes)
            .fold((0, 0), |(sum, largest), bytes| (sum + bytes, bytes.max(largest)));
        served.device().cuda().prepare(sum, largest).map_err(|error| failed(served, error, true))?;
    }
    for Parting { item, served, from } in partings {
        let contents = served.device().cuda().save(DevicePtr(*from), item.physical.recipe.bytes);
        saved.push(contents.map_err(|error| failed(served, error, true))?);
    }
    for &served in keepers {
        finish([served]).map_err(|error| failed(served, error, false))?;
    }
    Ok(())
}

/// Waits for the copies of the allocators' devices.
///
/// # Errors
/// The first error, after all copies have ended.
fn finish<'a>(keepers: impl IntoIterator<Item = &'a Arc<Served>>) -> DeviceResult<()> {
    let mut result = Ok(());
    for served in distinct(keepers) {
        let cuda = served.device().cuda();
        result = result.and(cuda.mark().and_then(|mark| cuda.finish(mark)));
    }
    result
}

/// Returns each allocator once.
fn distinct<'a>(all: impl IntoIterator<Item = &'a Arc<Served>>) -> Vec<&'a Arc<Served>> {
    let mut found: Vec<&Arc<Served>> = Vec::new();
    for served in all {
        if found.iter().all(|known| !Arc::ptr_eq(known, served)) {
            found.push(served);
        }
    }
    found
}
