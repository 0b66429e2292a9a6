//! Memory opened to peers.
//!
//! A program opens memory to a peer in two ways. `cuCtxEnablePeerAccess` opens the memory of a
//! context. `cuMemPoolSetAccess` opens the memory of a pool to a device: served memory of a default
//! pool is in segments of the context, so the context is opened to the device's primary context in
//! the program's place.

use crate::serve::frees::in_context;
use crate::serve::process::Process;
use crate::serve::served::Served;
use cachalot_core::Segments;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{
    CuContext, CuDevice, CuMemAccessDesc, CuMemAccessFlags, CuMemLocationType, CuMemoryPool,
};
use core::ffi::c_uint;
use std::sync::Arc;

/// The answer to a program that enables an access for the second time
/// (`CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`).
const ALREADY_ENABLED: CuResult = CuResult(704);

impl Process {
    /// `cuCtxEnablePeerAccess`: the current context may access the memory of `peer`. Plain segments
    /// are open by the driver's own call. Mapped pages are opened one by one.
    ///
    /// # Safety
    /// The context lives.
    pub unsafe fn ctx_enable_peer_access(&self, peer: CuContext, flags: c_uint) -> CuResult {
        self.awake(|| {
            // SAFETY: the arguments are the caller's.
            let code = unsafe { self.real.ctx_enable_peer_access(peer, flags) };
            let Some(accessor) = self.current() else { return code };
            let (accessor, peer) = (self.contexts.root(accessor), self.contexts.root(peer));
            if code.is_success() {
                self.opened(accessor, peer);
                return code;
            }
            // The program has not enabled the access: a pool's access has.
            let mut opened = self.peers.lock();
            let known = opened.by_pool.iter().position(|pair| *pair == (accessor, peer));
            match known.filter(|_| code == ALREADY_ENABLED) {
                Some(at) => {
                    opened.by_pool.swap_remove(at);
                    CuResult::SUCCESS
                }
                None => code,
            }
        })
    }

    /// `cuMemPoolSetAccess`. Served memory of a default pool follows. Later requests for a default
    /// pool with other access are passed on.
    ///
    /// # Safety
    /// `descriptors` has `count` entries.
    pub unsafe fn mem_pool_set_access(
        &self,
        pool: CuMemoryPool,
        descriptors: *const CuMemAccessDesc,
        count: usize,
    ) -> CuResult {
        self.awake(|| {
            self.pools.shared(pool);
            // SAFETY: the arguments are the caller's.
            let code = unsafe { self.real.mem_pool_set_access(pool, descriptors, count) };
            if !code.is_success() || descriptors.is_null() {
                return code;
            }
            // SAFETY: the driver has read the entries, which the caller vouches for.
            let given = unsafe { core::slice::from_raw_parts(descriptors, count) };
            let opens = |access: &&CuMemAccessDesc| {
                access.location.kind == CuMemLocationType::DEVICE && access.flags == CuMemAccessFlags::READ_WRITE
            };
            let owners = self.contexts.all();
            let owners = owners
                .iter()
                .filter(|served| served.is_ordered() && self.pools.default_of(self.real, served.ordinal()) == pool);
            for owner in owners {
                for access in given.iter().filter(opens) {
                    let device = CuDevice(access.location.id);
                    if device == owner.ordinal() {
                        continue;
                    }
                    let primary = {
                        let _primaries = self.lock_primaries();
                        self.primary(device)
                    };
                    match primary {
                        Some(accessor) => self.open_to(accessor, owner.context()),
                        None => self.peers.lock().waiting.push((device, owner.context())),
                    }
                }
            }
            code
        })
    }

    /// Opens what waits for the primary context of a device, which exists from now on.
    pub(super) fn open_waiting(&self, device: CuDevice, accessor: CuContext) {
        let mut ready = Vec::new();
        self.peers.lock().waiting.retain(|&(waits_for, owner)| {
            let is_ready = waits_for == device;
            if is_ready {
                ready.push(owner);
            }
            !is_ready
        });
        for owner in ready {
            self.open_to(accessor, owner);
        }
    }

    /// Opens the memory of `owner` to `accessor` in the program's place.
    fn open_to(&self, accessor: CuContext, owner: CuContext) {
        let code = in_context(self.real, accessor, || {
            // SAFETY: both contexts are the program's, and live.
            let code = unsafe { self.real.ctx_enable_peer_access(owner, 0) };
            // Pages are opened from the accessor's allocator.
            if code.is_success() || code == ALREADY_ENABLED {
                let _ = self.with_current(|_| ());
            }
            code
        });
        if code.is_success() {
            self.peers.lock().by_pool.push((accessor, owner));
        }
        if code.is_success() || code == ALREADY_ENABLED {
            self.opened(accessor, owner);
        }
    }

    /// Notes an access that the driver has given, and opens the pages.
    fn opened(&self, accessor: CuContext, owner: CuContext) {
        {
            let mut opened = self.peers.lock();
            if !opened.pairs.contains(&(accessor, owner)) {
                opened.pairs.push((accessor, owner));
            }
        }
        if let (Some(accessor), Some(owner)) = (self.contexts.of(accessor), self.contexts.of(owner)) {
            open_pages(&owner, &accessor);
        }
    }

    /// Opens the pages of a context that is served from now on to the peers that were enabled
    /// before, and those of the peers to the context.
    pub(super) fn open_peers(&self, served: &Arc<Served>) {
        let pairs = self.peers.lock().pairs.clone();
        for (accessor, owner) in pairs {
            if accessor != served.context() && owner != served.context() {
                continue;
            }
            if let (Some(accessor), Some(owner)) = (self.contexts.of(accessor), self.contexts.of(owner)) {
                open_pages(&owner, &accessor);
            }
        }
    }
}

/// Lets `accessor` use the mapped pages of `owner`. Plain memory needs nothing.
fn open_pages(owner: &Served, accessor: &Served) {
    let cuda = owner.device().cuda();
    if cuda.virtual_memory().is_some() {
        // The driver's own call has succeeded: a failure here concerns pages that no program has
        // asked to be placed on.
        let _ = cuda.allow_access_from(accessor.device().cuda());
    }
}
