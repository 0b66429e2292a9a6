//! `cuMemCreate`, `cuMemMap` and related calls: memory that the program creates and maps by itself.
//!
//! Where memory can be parked, and for memory of the host in the place of a device's (`spill`), the
//! program gets tokens in place of the driver's handles ([`ProgramMemory`]), and the calls change a
//! token into the handles of the moment. Calls that end memory wake nothing. A call that the driver
//! would answer otherwise for memory in pieces makes the memory whole first (`program_whole`).

use crate::charge::Holding;
use crate::ledger::Kind;
use crate::serve::device::PHYSICAL;
use crate::serve::followed::ReleasedHandle;
use crate::serve::parking::{ProcessPhase, is_parked};
use crate::serve::passed::{code_of, result_of};
use crate::serve::process::Process;
use crate::serve::program_memory::{Ended, ParkedRange, ProgramMemory, Released};
use crate::serve::program_pieces::Pieces;
use crate::serve::program_recipe::Recipe;
use crate::sleep::AwakeGuard;
use cachalot_core::{Contents, VirtualMemory};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{
    CuContext, CuDevice, CuDevicePtr, CuMemAccessDesc, CuMemAllocationProp, CuMemHandle, CuMemHandleType,
    CuMemLocationType,
};
use core::ffi::{c_int, c_void};
use std::sync::Arc;

impl Process {
    /// `cuMemCreate`. Memory on a device is charged until the driver has it back.
    ///
    /// # Safety
    /// `handle` is null or writable, and `properties` is null or readable.
    pub unsafe fn mem_create(
        &self,
        handle: *mut CuMemHandle,
        bytes: usize,
        properties: *const CuMemAllocationProp,
        flags: u64,
    ) -> CuResult {
        self.pass();
        let inside = match self.enter() {
            Ok(inside) => inside,
            Err(code) => return code,
        };
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.mem_create(handle, bytes, properties, flags) };
        if properties.is_null() || handle.is_null() {
            return call();
        }
        // SAFETY: the caller vouches for non-null properties.
        let wanted = unsafe { properties.read() };
        if wanted.location.kind != CuMemLocationType::DEVICE {
            return call();
        }
        let recipe = Recipe::of(bytes as u64, &wanted, flags);
        let created = if let Some(recipe) = recipe.filter(|_| self.sleeping.is_some()) {
            self.create(recipe, inside)
        } else {
            let (device, name) = (CuDevice(wanted.location.id), self.program.new_token());
            let code = self.try_to_hold(device, Kind::Pages, bytes as u64, CuContext::NULL, call, || name);
            if code.is_success() {
                // SAFETY: the driver has written the handle.
                self.followed.add_handle(unsafe { handle.read() }, name);
                return code;
            }
            let instead = recipe.filter(|_| code == CuResult::OUT_OF_MEMORY);
            instead.and_then(|recipe| self.create_at_host(recipe)).ok_or_else(|| self.refused(code, device))
        };
        match created {
            Ok(token) => {
                // SAFETY: `handle` is not null, and the caller vouches for it.
                unsafe { handle.write(token) };
                CuResult::SUCCESS
            }
            Err(code) => code,
        }
    }

    /// Creates memory that a park moves, and returns the token. A member of a group that parks its
    /// members waits for its turn.
    fn create(&self, recipe: Recipe, inside: AwakeGuard) -> Result<CuMemHandle, CuResult> {
        self.serve_device(recipe.device());
        let (token, mut inside, mut turn) = (self.program.new_token(), inside, None);
        loop {
            let (mut handle, properties) = (CuMemHandle::default(), recipe.properties());
            let call = || {
                // SAFETY: both variables outlive the call, which reads `properties` and writes one
                // handle to `handle`.
                unsafe { self.real.mem_create(&raw mut handle, recipe.bytes as usize, &raw const properties, 0) }
            };
            let code = self.try_to_hold(recipe.device(), Kind::Pages, recipe.bytes, CuContext::NULL, call, || token);
            if code.is_success() {
                self.program.add(token, recipe, handle, false);
                return Ok(CuMemHandle(token));
            }
            if code != CuResult::OUT_OF_MEMORY {
                return Err(code);
            }
            if let Some(token) = self.create_at_host(recipe) {
                return Ok(token);
            }
            if turn.is_none() {
                turn = self.begin_turn();
            }
            let charge = self.charge.of_device(self.real, recipe.device());
            let Some(turn) = &mut turn else {
                charge.tell_refusal();
                return Err(code);
            };
            inside = self.wait_in_turn(turn, inside, &charge, recipe.bytes)?.ok_or(code)?;
        }
    }

    /// Creates memory of the host in the place of a device's, if `spill` allows the bytes, and
    /// returns a token for it. Such memory cannot be exported, and no park moves it.
    fn create_at_host(&self, recipe: Recipe) -> Option<CuMemHandle> {
        let charge = self.charge.of_device(self.real, recipe.device());
        if !charge.has_host() {
            return None;
        }
        self.serve_device(recipe.device());
        let (served, token) = (self.served_on(recipe.device())?, self.program.new_token());
        let take = || {
            let memory = Holding {
                charge: Arc::clone(&charge),
                kind: Kind::Spilled,
                bytes: recipe.bytes,
                context: CuContext::NULL,
            };
            let create = || served.device().cuda().create_at_host(recipe.bytes).map_err(|error| CuResult(error.code));
            self.charge.holdings().take(memory, create, |_| token, |code| code).ok()
        };
        let handle = take().or_else(|| {
            // What the allocators keep for later counts, too.
            let _ = self.frees.wait(self.real);
            self.empty_caches(recipe.device(), CuContext::NULL);
            take()
        })?;
        self.program.add(token, recipe, CuMemHandle(handle.0), true);
        Some(CuMemHandle(token))
    }

    /// Opens the allocator of the thread's context if no context of a device is served: a park
    /// copies with an allocator's device.
    fn serve_device(&self, device: CuDevice) {
        if self.contexts.all().iter().all(|served| served.ordinal() != device) {
            let _ = self.with_current(|_| ());
        }
    }

    /// `cuMemRelease`. The driver frees the memory when the last handle and the last mapping are
    /// gone.
    ///
    /// # Safety
    /// None beyond the driver's.
    pub unsafe fn mem_release(&self, handle: CuMemHandle) -> CuResult {
        self.pass();
        if !ProgramMemory::is_token(handle) {
            return self.release_followed(handle);
        }
        let _phase = self.hold_phase();
        match self.program.release(handle.0) {
            Released::Unknown => CuResult::INVALID_VALUE,
            Released::Lives => CuResult::SUCCESS,
            Released::Last(ended) => self.end_memory(ended, true),
        }
    }

    /// Releases a handle of the driver's.
    fn release_followed(&self, handle: CuMemHandle) -> CuResult {
        // SAFETY: takes no host pointers; the argument is the caller's.
        let call = || result_of(unsafe { self.real.mem_release(handle) });
        match self.followed.release(handle) {
            ReleasedHandle::Unknown => code_of(call()),
            ReleasedHandle::Lives(name) => code_of(call().inspect_err(|_| self.followed.add_handle(handle, name))),
            ReleasedHandle::Last(name) => {
                code_of(self.give_pages(name, call).inspect_err(|_| self.followed.add_handle(handle, name)))
            }
        }
    }

    /// Makes a call by which memory named `name` goes back to the driver, and ends the charge.
    fn give_pages(&self, name: u64, call: impl FnOnce() -> Result<(), CuResult>) -> Result<(), CuResult> {
        self.charge.holdings().give(&PHYSICAL, name, call).map(drop)
    }

    /// Ends a use of followed memory, which the driver has freed with the last.
    fn end_followed(&self, name: u64) {
        if self.followed.end_use(name) {
            let _ = self.give_pages(name, || Ok(()));
        }
    }

    /// Gives memory back to the driver, with the library's own addresses of the memory. After a
    /// failure the memory stays in the records, and the program holds the token again if `held`.
    fn end_memory(&self, ended: Ended, held: bool) -> CuResult {
        let (token, mut physical) = ended;
        if let Some(window) = physical.window.take() {
            let mapped = self.program.close_window(window);
            if mapped > 0 {
                // SAFETY: takes no host pointers; no code but the copies of a park has the
                // addresses.
                let _ = unsafe { self.real.mem_unmap(window, mapped as usize) };
            }
            // SAFETY: as above. The driver keeps addresses that are still mapped.
            let _ = unsafe { self.real.mem_address_free(window, physical.recipe.bytes as usize) };
        }
        if let Some(contents) = physical.contents.take() {
            contents.served.device().cuda().forget(contents.saved);
        }
        if physical.pieces.is_parked() {
            return CuResult::SUCCESS;
        }
        let mut call = || {
            while let Some(handle) = physical.pieces.last() {
                // SAFETY: takes no host pointers; the handle is the library's own.
                result_of(unsafe { self.real.mem_release(handle) })?;
                physical.pieces.pop();
            }
            Ok(())
        };
        // A handle that was imported again keeps the memory, and the charge.
        let given = if self.followed.has(token) { call() } else { self.give_pages(token, call) };
        let code = code_of(given);
        if !code.is_success() {
            self.program.put_back((token, physical), held);
        }
        code
    }

    /// `cuMemMap`.
    ///
    /// # Safety
    /// None beyond the driver's.
    pub unsafe fn mem_map(
        &self,
        address: CuDevicePtr,
        bytes: usize,
        offset: usize,
        handle: CuMemHandle,
        flags: u64,
    ) -> CuResult {
        let is_token = ProgramMemory::is_token(handle);
        let is_part = |recipe: Recipe| offset != 0 || bytes as u64 != recipe.bytes;
        if is_token
            && self.program.recipe(handle.0).is_some_and(is_part)
            && let Err(code) = self.make_whole(&[handle.0])
        {
            return code;
        }
        self.awake(|| {
            if !is_token {
                let name = self.followed.begin_use(handle);
                // SAFETY: the arguments are the caller's.
                let code = unsafe { self.real.mem_map(address, bytes, offset, handle, flags) };
                match name {
                    Some(name) if code.is_success() => self.followed.mapped(address, bytes as u64, name),
                    Some(name) => self.end_followed(name),
                    None => {}
                }
                return code;
            }
            let Some(pieces) = self.program.begin_use(handle.0) else { return CuResult::INVALID_VALUE };
            let code = match pieces.single() {
                // SAFETY: the arguments are the caller's, and the handle is that of the token.
                Some(known) => unsafe { self.real.mem_map(address, bytes, offset, known, flags) },
                None => self.map_all(address, &pieces, flags),
            };
            if code.is_success() {
                self.program.mapped(address, handle.0, bytes as u64, offset as u64);
            } else if let Some(ended) = self.program.end_use(handle.0) {
                let _ = self.end_memory(ended, false);
            }
            code
        })
    }

    /// Maps every piece of memory. After a failure none is mapped.
    fn map_all(&self, address: CuDevicePtr, pieces: &Pieces, flags: u64) -> CuResult {
        for piece in pieces.all() {
            let handle = piece.handle.unwrap_or_default();
            // SAFETY: takes no host pointers; the program has reserved the addresses, and the
            // handle is the library's own.
            let code = unsafe { self.real.mem_map(address + piece.offset, piece.bytes as usize, 0, handle, flags) };
            if !code.is_success() {
                if piece.offset > 0 {
                    // SAFETY: takes no host pointers; no work has the addresses yet.
                    let _ = unsafe { self.real.mem_unmap(address, piece.offset as usize) };
                }
                return code;
            }
        }
        CuResult::SUCCESS
    }

    /// `cuMemUnmap`. Parked memory is unmapped without a wake.
    ///
    /// # Safety
    /// No work uses the range.
    pub unsafe fn mem_unmap(&self, address: CuDevicePtr, bytes: usize) -> CuResult {
        if let Err(code) = self.make_whole(&self.program.tokens_cut_by(address, bytes as u64)) {
            return code;
        }
        let mut phase = self.hold_phase();
        if is_parked(&phase) {
            match self.program.take_parked(address, bytes as u64) {
                ParkedRange::Absent => {}
                ParkedRange::Whole(ended) => {
                    for ended in ended {
                        // The addresses are free in any case.
                        let _ = self.end_memory(ended, false);
                    }
                    return CuResult::SUCCESS;
                }
                ParkedRange::Mixed => {
                    drop(phase);
                    phase = match self.enter() {
                        Ok(inside) => ProcessPhase::Awake(inside),
                        Err(code) => return code,
                    };
                }
            }
        }
        // Taken out before the call: another thread may map the addresses at once.
        let taken = self.program.take_mappings(address, bytes as u64);
        let followed = self.followed.take_mappings(address, bytes as u64);
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.mem_unmap(address, bytes) };
        if code.is_success() {
            for (_, mapping) in taken {
                if let Some(ended) = self.program.end_use(mapping.token) {
                    let _ = self.end_memory(ended, false);
                }
            }
            followed.into_iter().for_each(|(_, mapping)| self.end_followed(mapping.name));
        } else {
            self.program.put_mappings_back(taken);
            self.followed.put_mappings_back(followed);
        }
        drop(phase);
        code
    }

    /// `cuMemAddressFree`. The driver refuses addresses with mappings, which are awake then.
    ///
    /// # Safety
    /// None beyond the driver's.
    pub unsafe fn mem_address_free(&self, address: CuDevicePtr, bytes: usize) -> CuResult {
        let mut phase = self.hold_phase();
        if is_parked(&phase) && self.program.has_parked(address, bytes as u64) {
            drop(phase);
            phase = match self.enter() {
                Ok(inside) => ProcessPhase::Awake(inside),
                Err(code) => return code,
            };
        }
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.mem_address_free(address, bytes) };
        drop(phase);
        code
    }

    /// `cuMemSetAccess`.
    ///
    /// # Safety
    /// `descriptors` has `count` entries.
    pub unsafe fn mem_set_access(
        &self,
        address: CuDevicePtr,
        bytes: usize,
        descriptors: *const CuMemAccessDesc,
        count: usize,
    ) -> CuResult {
        if let Err(code) = self.make_whole(&self.program.tokens_cut_by(address, bytes as u64)) {
            return code;
        }
        self.awake(|| {
            // SAFETY: the arguments are the caller's.
            let code = unsafe { self.real.mem_set_access(address, bytes, descriptors, count) };
            if code.is_success() && self.sleeping.is_some() && !descriptors.is_null() {
                // SAFETY: the driver has read the entries, which the caller vouches for.
                let given = unsafe { core::slice::from_raw_parts(descriptors, count) };
                self.program.set_access(address, bytes as u64, given);
                given.iter().for_each(|access| self.serve_device(CuDevice(access.location.id)));
            }
            code
        })
    }

    /// `cuMemRetainAllocationHandle`.
    ///
    /// # Safety
    /// `handle` is null or writable.
    pub unsafe fn mem_retain_allocation_handle(&self, handle: *mut CuMemHandle, address: *mut c_void) -> CuResult {
        self.awake(|| {
            if let Some(token) = self.program.retain(address as CuDevicePtr).filter(|_| !handle.is_null()) {
                // SAFETY: `handle` is not null, and the caller vouches for it.
                unsafe { handle.write(CuMemHandle(token)) };
                return CuResult::SUCCESS;
            }
            let name = self.followed.name_at(address as CuDevicePtr);
            // SAFETY: the arguments are the caller's.
            let code = unsafe { self.real.mem_retain_allocation_handle(handle, address) };
            if let Some(name) = name.filter(|_| code.is_success()) {
                // SAFETY: the driver has written the handle.
                self.followed.add_handle(unsafe { handle.read() }, name);
            }
            code
        })
    }

    /// `cuMemGetAllocationPropertiesFromHandle`. Wakes nothing.
    ///
    /// # Safety
    /// `properties` is null or writable.
    pub unsafe fn mem_get_allocation_properties_from_handle(
        &self,
        properties: *mut CuMemAllocationProp,
        handle: CuMemHandle,
    ) -> CuResult {
        if !ProgramMemory::is_token(handle) {
            // SAFETY: the arguments are the caller's.
            return unsafe { self.real.mem_get_allocation_properties_from_handle(properties, handle) };
        }
        match self.program.recipe(handle.0).filter(|_| !properties.is_null()) {
            Some(recipe) => {
                // SAFETY: `properties` is not null, and the caller vouches for it.
                unsafe { properties.write(recipe.properties()) };
                CuResult::SUCCESS
            }
            None => CuResult::INVALID_VALUE,
        }
    }

    /// `cuMemExportToShareableHandle`. Exported memory stays on the device from then on.
    ///
    /// # Safety
    /// `shareable` is null, or writable for the kind of handle.
    pub unsafe fn mem_export_to_shareable_handle(
        &self,
        shareable: *mut c_void,
        handle: CuMemHandle,
        kind: CuMemHandleType,
        flags: u64,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = self.shared(handle, |handle| unsafe { self.real.mem_export(shareable, handle, kind, flags) });
        let name = if ProgramMemory::is_token(handle) { Some(handle.0) } else { self.followed.name_of(handle) };
        if let Some(name) = name.filter(|_| code.is_success() && kind == CuMemHandleType::POSIX_FD) {
            // SAFETY: the driver has written a descriptor, which is an `int`.
            self.followed.exported(unsafe { shareable.cast::<c_int>().read_unaligned() }, name);
        }
        code
    }

    /// `cuMemImportFromShareableHandle`. Memory that the process itself has exported has a handle
    /// more then. Memory of another process is charged to that process, once.
    ///
    /// # Safety
    /// `handle` is null or writable, and `shareable` is a handle of the kind.
    pub unsafe fn mem_import_from_shareable_handle(
        &self,
        handle: *mut CuMemHandle,
        shareable: *mut c_void,
        kind: CuMemHandleType,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.mem_import(handle, shareable, kind) };
        if code.is_success()
            && kind == CuMemHandleType::POSIX_FD
            && let Some(name) = self.followed.export(shareable.addr() as i32)
        {
            // SAFETY: the driver has written the handle.
            self.followed.add_handle(unsafe { handle.read() }, name);
        }
        code
    }

    /// `cuMulticastBindMem`. Bound memory stays on the device from then on.
    ///
    /// # Safety
    /// None beyond the driver's.
    pub unsafe fn multicast_bind_mem(
        &self,
        multicast: CuMemHandle,
        at: usize,
        memory: CuMemHandle,
        offset: usize,
        bytes: usize,
        flags: u64,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        self.shared(memory, |memory| unsafe {
            self.real.multicast_bind_mem(multicast, at, memory, offset, bytes, flags)
        })
    }

    /// Makes a call that shares the memory of a handle with other devices or processes.
    fn shared(&self, handle: CuMemHandle, call: impl FnOnce(CuMemHandle) -> CuResult) -> CuResult {
        if !ProgramMemory::is_token(handle) {
            return call(handle);
        }
        if let Err(code) = self.make_whole(&[handle.0]) {
            return code;
        }
        self.awake(|| {
            let Some(known) = self.program.handle(handle.0) else { return CuResult::INVALID_VALUE };
            let code = call(known);
            if code.is_success() {
                self.program.share(handle.0);
            }
            code
        })
    }

    /// `cuMulticastBindAddr`. Bound memory stays on the device from then on.
    ///
    /// # Safety
    /// None beyond the driver's.
    pub unsafe fn multicast_bind_addr(
        &self,
        multicast: CuMemHandle,
        at: usize,
        address: CuDevicePtr,
        bytes: usize,
        flags: u64,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        self.shared_range(address, bytes, || unsafe {
            self.real.multicast_bind_addr(multicast, at, address, bytes, flags)
        })
    }

    /// `cuMemGetHandleForAddressRange`. Memory with such a handle stays on the device from then on.
    ///
    /// # Safety
    /// `handle` is null, or writable for the kind of handle.
    pub unsafe fn mem_get_handle_for_address_range(
        &self,
        handle: *mut c_void,
        address: CuDevicePtr,
        bytes: usize,
        kind: u32,
        flags: u64,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        self.shared_range(address, bytes, || unsafe {
            self.real.mem_get_handle_for_address_range(handle, address, bytes, kind, flags)
        })
    }

    /// Makes a call that shares the memory of a range with other devices or processes.
    fn shared_range(&self, address: CuDevicePtr, bytes: usize, call: impl FnOnce() -> CuResult) -> CuResult {
        if let Err(code) = self.make_whole(&self.program.tokens_in(address, bytes as u64)) {
            return code;
        }
        self.awake(|| {
            let code = call();
            if code.is_success() {
                self.program.share_range(address, bytes as u64);
            }
            code
        })
    }
}
