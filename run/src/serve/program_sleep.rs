//! Memory that the program maps by itself, parked and woken.
//!
//! ```text
//! park   contents to the host ─ all complete ─▶ unmapped, released
//! wake   created, mapped, access given, contents on the way ─ all complete ─▶ the host's contents forgotten
//!        each step for a piece, and then for the next
//! ```
//!
//! A single allocation may be all that a program has, as the pool of JAX is: the driver takes some
//! 40 ms to create 16 GiB whole where another process has just given them back, before the first
//! byte moves. In pieces, the driver creates one while the contents of those before are copied.
//!
//! Until the end of a wake the host keeps the contents, so a wake that fails in the middle gives
//! the memory back without copies. Each step is noted in the records as soon as the driver has done
//! the step: a later try goes on from there.

use crate::charge::Holding;
use crate::control::{ControlRefusal, RefusalKind};
use crate::ledger::Kind;
use crate::serve::process::Process;
use crate::serve::program_memory::{MappedPart, ProgramContents, ProgramItem, ProgramMapping, ProgramSums};
use crate::serve::program_pieces::Piece;
use crate::serve::served::Served;
use cachalot_core::{Contents, DeviceError, DevicePtr, DeviceResult, ErrorKind, Saved};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuDevicePtr, CuMemHandle};
use std::sync::Arc;

/// Memory to park, and the allocator whose device copies.
struct Parting {
    item: ProgramItem,
    served: Arc<Served>,
    /// The address at which the memory is read.
    from: CuDevicePtr,
}

/// Why memory is not parked.
pub(super) struct NotParked {
    /// The allocator whose device was asked.
    pub(super) served: Arc<Served>,
    pub(super) error: DeviceError,
    /// Whether the host, and not the device, does not have memory.
    is_host: bool,
}

impl NotParked {
    /// Returns the refusal for the error, unless a file has a better one.
    pub(super) fn refusal(&self) -> ControlRefusal {
        let (kind, what) = match self.error.kind {
            ErrorKind::OutOfMemory if self.is_host => (RefusalKind::NoHostMemory, "the host has no room"),
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
    /// The reason. Some of the memory may be parked then, and
    /// [`start_to_wake`](Self::start_to_wake) wakes the part.
    pub(super) fn park_program(&self) -> Result<(), NotParked> {
        let mut partings = Vec::new();
        for mut item in self.program.items(|physical| !physical.pieces.is_parked()) {
            let Some(served) = self.served_on(item.physical.recipe.device()) else { continue };
            let opened = item.copy_address().map_or_else(|| self.open_window(&mut item, &served), Ok);
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

    /// Creates and maps the parked memory again, and starts the copies.
    ///
    /// # Errors
    /// The first error. [`park_again`](Self::park_again) gives back what is there.
    pub(super) fn start_to_wake(&self) -> DeviceResult<()> {
        self.kept_items().into_iter().try_for_each(|(item, kept)| self.take_memory(item, &kept))
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
        // A copy must not meet the end of the mapping. After a failure the device has lost its
        // context, and the copies.
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
    pub(super) fn served_on(&self, device: CuDevice) -> Option<Arc<Served>> {
        self.contexts.all().into_iter().find(|served| served.ordinal() == device)
    }

    /// Maps memory at addresses of the library's own, where the memory's device reads.
    fn open_window(&self, item: &mut ProgramItem, served: &Served) -> DeviceResult<CuDevicePtr> {
        let address = self.window(item, served)?;
        for piece in item.physical.pieces.all() {
            self.map_piece(item, served, &piece, piece.handle.unwrap_or_default())?;
        }
        Ok(address)
    }

    /// Returns addresses of the library's own, where the memory's device reads and writes once the
    /// memory is mapped there. The addresses stay until the memory ends.
    fn window(&self, item: &mut ProgramItem, served: &Served) -> DeviceResult<CuDevicePtr> {
        if let Some(address) = item.physical.window {
            return Ok(address);
        }
        let (recipe, mut address) = (item.physical.recipe, 0);
        served.device().cuda().with_context(|driver| {
            // SAFETY: `address` outlives the call, which writes one address to it.
            unsafe { driver.mem_address_reserve(&raw mut address, recipe.bytes as usize, 0, 0, 0) }
        })?;
        let access = vec![recipe.own_access()];
        let mapping = ProgramMapping { token: item.token, bytes: recipe.bytes, offset: 0, access, mapped: 0 };
        self.program.open_window(item.token, address, mapping.clone());
        item.physical.window = Some(address);
        item.mappings.push((address, mapping));
        Ok(address)
    }

    /// Unmaps memory and gives it back to the driver.
    fn give_memory(&self, item: &ProgramItem, served: &Served) -> DeviceResult<()> {
        let cuda = served.device().cuda();
        for (address, mapping) in item.mappings.iter().filter(|(_, mapping)| mapping.mapped > 0) {
            cuda.with_context(|driver| {
                // SAFETY: takes no host pointers; all work is complete, and calls that use memory
                // wait for the wake.
                unsafe { driver.mem_unmap(*address, mapping.mapped as usize) }
            })?;
            self.program.set_mapped(*address, 0);
        }
        let mut pieces = item.physical.pieces.clone();
        if pieces.is_parked() {
            return Ok(());
        }
        self.charge.holdings().give(&[Kind::Pages], item.token, || {
            while let Some(handle) = pieces.last() {
                cuda.with_context(|driver| {
                    // SAFETY: takes no host pointers; the handle is the library's own.
                    unsafe { driver.mem_release(handle) }
                })?;
                pieces.pop();
                self.program.take_piece(item.token);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Creates a piece of parked memory anew. The charge of the memory starts with the first piece,
    /// and ends with the release of all: a wake that the limit allows to start can end.
    fn create_again(&self, item: &ProgramItem, kept: &ProgramContents, piece: &Piece) -> DeviceResult<CuMemHandle> {
        let recipe = &item.physical.recipe;
        let create = || {
            let (mut handle, properties) = (CuMemHandle::default(), recipe.properties());
            kept.served.device().cuda().with_context(|driver| {
                // SAFETY: both variables outlive the call, which reads `properties` and writes one
                // handle to `handle`.
                unsafe { driver.mem_create(&raw mut handle, piece.bytes as usize, &raw const properties, 0) }
            })?;
            Ok(handle)
        };
        let handle = if piece.offset == 0 {
            let charge = self.charge.of_device(self.real, recipe.device());
            let memory = Holding { charge, kind: Kind::Pages, bytes: recipe.bytes, context: CuContext::NULL };
            let refused = |code: CuResult| DeviceError::new(ErrorKind::OutOfMemory, code.0);
            self.charge.holdings().take(memory, create, |_| item.token, refused)?
        } else {
            create()?
        };
        self.program.add_piece(item.token, handle);
        Ok(handle)
    }

    /// Wakes a parked allocation piece by piece: creates each piece that the driver does not have,
    /// maps the piece at its place in every mapping of the allocation, and starts to copy the
    /// piece's contents.
    fn take_memory(&self, mut item: ProgramItem, kept: &ProgramContents) -> DeviceResult<()> {
        let cuda = kept.served.device().cuda();
        // The program may have unmapped the memory while it was parked.
        let to = item.copy_address().map_or_else(|| self.window(&mut item, &kept.served), Ok)?;
        let each = self.sleeping.as_ref().map_or(0, |sleeping| sleeping.options.piece);
        for piece in self.program.divide(item.token, each) {
            let handle = piece.handle.map_or_else(|| self.create_again(&item, kept, &piece), Ok)?;
            self.map_piece(&item, &kept.served, &piece, handle)?;
            cuda.restore_part(kept.saved, piece.offset, DevicePtr(to + piece.offset), piece.bytes)?;
        }
        Ok(())
    }

    /// Maps a piece at its part of every mapping of the memory, unless it is there, and gives the
    /// devices their access.
    fn map_piece(&self, item: &ProgramItem, served: &Served, piece: &Piece, handle: CuMemHandle) -> DeviceResult<()> {
        for (address, mapping) in &item.mappings {
            let Some(part) = mapping.part_on(*address, piece) else { continue };
            if mapping.mapped < part.end {
                map(served, &part, handle)?;
                self.program.set_mapped(*address, part.end);
            }
            // Also where an earlier try has failed right here.
            open(served, &part, mapping)?;
        }
        Ok(())
    }
}

/// Maps a piece of memory at a part of a mapping.
fn map(served: &Served, part: &MappedPart, handle: CuMemHandle) -> DeviceResult<()> {
    served.device().cuda().with_context(|driver| {
        // SAFETY: takes no host pointers; the program, or the library, has reserved the addresses.
        unsafe { driver.mem_map(part.address, part.bytes as usize, part.offset as usize, handle, 0) }
    })
}

/// Gives devices the access of a mapping to a part of it.
fn open(served: &Served, part: &MappedPart, mapping: &ProgramMapping) -> DeviceResult<()> {
    if mapping.access.is_empty() {
        return Ok(());
    }
    served.device().cuda().with_context(|driver| {
        let (access, count) = (mapping.access.as_ptr(), mapping.access.len());
        // SAFETY: the list outlives the call, which reads its entries.
        unsafe { driver.mem_set_access(part.address, part.bytes as usize, access, count) }
    })
}

/// Copies the contents of memory to the host, and waits for the copies.
///
/// # Errors
/// The first error. No contents are kept then.
fn save(partings: &[Parting]) -> Result<Vec<Saved>, NotParked> {
    let savers = distinct(partings.iter().map(|parting| &parting.served));
    let mut saved = Vec::new();
    let copied = save_all(partings, &savers, &mut saved);
    if copied.is_err() {
        // No copy goes on when its contents are forgotten.
        let _ = finish(savers.iter().copied());
        for (parting, saved) in partings.iter().zip(saved.drain(..)) {
            parting.served.device().cuda().forget(saved);
        }
    }
    savers.iter().for_each(|served| served.device().cuda().end_saves());
    copied.map(|()| saved)
}

/// Copies the contents of memory to the host, up to the first error.
fn save_all(partings: &[Parting], savers: &[&Arc<Served>], saved: &mut Vec<Saved>) -> Result<(), NotParked> {
    let failed = |served: &Arc<Served>, error, is_host| NotParked { served: Arc::clone(served), error, is_host };
    for &served in savers {
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
    for &served in savers {
        finish([served]).map_err(|error| failed(served, error, false))?;
    }
    Ok(())
}

/// Waits for the copies of the allocators' devices.
///
/// # Errors
/// The first error, after all copies have ended.
fn finish<'a>(savers: impl IntoIterator<Item = &'a Arc<Served>>) -> DeviceResult<()> {
    let mut result = Ok(());
    for served in distinct(savers) {
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
