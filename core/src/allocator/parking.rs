//! Parking: memory of a device that the program does not need for a while.

use crate::allocator::{Allocator, On};
use crate::arena::OnDevice;
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkReport, ParkTarget, Parker, Remaining};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::split_rules::PoolMemory;
use crate::pool::{PoolId, Tag};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, StreamId};

view! {
    /// Memory that is parked for a while and woken at the same addresses: a view of an
    /// [`Allocator`].
    ///
    /// This is for programs in which several parts take turns using the device, for example a model
    /// that generates and a model that is trained: the memory of the idle part is *parked*, and
    /// *wakes* before this part runs again. Pointers to blocks, and captured graphs, remain valid,
    /// but must not be used while the memory is parked.
    ///
    /// Blocks in parked memory remain valid, and may be freed. A request for memory of a parked
    /// pool is refused with [`Error::Parked`], unless such requests are
    /// [served elsewhere](Self::serve_elsewhere), and so is a pin of a parked block. Statistics
    /// count the blocks as allocated, but not as reserved.
    ///
    /// Threads: any. If another thread's call is parking or waking memory of the device, the call
    /// is refused. Requests and frees outside the target never wait for these calls.
    Parking,
    /// Returns the operations that park memory of `device`.
    parking
}

impl<D: DeviceMemory, R: Lock, S: Storage> Parking<'_, D, R, S> {
    /// Sets the tag under which the memory of a private pool is parked. `None` removes the tag.
    /// Existing segments do not change, so tag a pool before its first request. New segments of a
    /// tagged pool are mapped, even under the caching policy. Only mapped memory can be parked:
    /// under the caching and the stitched policy, and under best fit with coalescing with
    /// expandable segments.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], also for the default pool.
    /// * [`Error::Parked`]: the pool, or another pool with the tag, is parked, or the pool is lent.
    /// * [`Error::ParkingRefused`]: the policy maps no memory, or the host supplies the pool's
    ///   segments.
    /// * [`Error::TableFull`].
    pub fn tag_pool(&self, pool: PoolId, tag: Option<Tag>) -> Result<(), Error> {
        let device = self.begin("tag_pool");
        device.heaps.tag_pool(pool, tag, device.settings.uses_pages(PoolMemory::Paged))
    }

    /// Sets whether the default pool serves requests for parked pools with `tag`. By default it
    /// does not, and the requests are refused. The choice applies to all pools with the tag,
    /// present and future. Blocks that are served in this way are ordinary blocks of the default
    /// pool. Requests of a capture are refused in any case, because the memory of a graph must be
    /// in the graph's pool.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownTag`].
    pub fn serve_elsewhere(&self, tag: Tag, on: bool) -> Result<(), Error> {
        let known = self.arena.heaps.registry.lock().set_elsewhere(tag, on);
        if known { Ok(()) } else { Err(Error::UnknownTag(tag)) }
    }

    /// Parks the memory of `target`: gives the memory of its pages, and its cached memory, back to
    /// the device. Pinned pages and ordinary segments remain on the device;
    /// [`report`](Self::report) says how much. Memory of the host (`spill`) remains where it is. If
    /// the memory is already parked, this parks the pages that an earlier call left on the device,
    /// because it failed or because they were pinned then. Does nothing if no pages are left.
    /// Memory that remains keeps its contents in every mode.
    ///
    /// Stream order: waits as `order` says. Work that is queued later must not use the memory
    /// before it wakes.
    ///
    /// Device: called. With [`ParkMode::Keep`], the contents are copied to host memory.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`].
    /// * [`Error::ParkingRefused`]: see the text.
    /// * [`Error::NoHostMemory`]: with [`ParkMode::Keep`], the host does not have enough memory for
    ///   the contents.
    /// * [`Error::Device`], with
    ///   [`ErrorKind::NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while a
    ///   graph is captured.
    ///
    /// After an error, all memory is awake, with two exceptions. If the device fails in the middle,
    /// and then fails to map again what was parked by then, this part remains parked, with all
    /// contents. If no contents have to be kept, all pages that the device has unmapped remain
    /// parked. Another call parks the rest.
    pub fn park(&self, target: ParkTarget, mode: ParkMode, order: ParkOrder) -> Result<(), Error> {
        let _begun = self.begin("park");
        let device = self.healthy()?;
        Parker::of(device, target, false)?.park(device, mode, order)
    }

    /// Wakes the memory of `target`, at the same addresses: calls [`wake_start`](Self::wake_start)
    /// and [`wake_wait`](Self::wake_wait). Does nothing if the memory is awake.
    ///
    /// Stream order: the contents are complete when the call returns, for work on every stream.
    ///
    /// Device: called.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], [`Error::ParkingRefused`], [`Error::Device`].
    /// * [`Error::OutOfMemory`]: the limit or the device does not allow it, even after everything
    ///   cached was released.
    ///
    /// After an error, all memory is parked, and the contents are kept. If the device fails to
    /// unmap pages, the next call takes care of them.
    pub fn wake(&self, target: ParkTarget) -> Result<(), Error> {
        self.wake_wait(target)
    }

    /// Starts to wake the memory of `target`: maps all pages, and starts to copy the contents.
    /// Targets wake in the order of these calls.
    ///
    /// Stream order: no work may use the memory before [`wake_wait`](Self::wake_wait) has returned.
    ///
    /// Device: called; does not wait for copies.
    ///
    /// # Errors
    /// The errors of [`wake`](Self::wake).
    pub fn wake_start(&self, target: ParkTarget) -> Result<(), Error> {
        let _begun = self.begin("wake_start");
        let device = self.healthy()?;
        Parker::of(device, target, false)?.wake_start(device)
    }

    /// Waits until the contents of `target` are complete, and lets the memory serve requests again.
    /// Starts to wake the memory first, if [`wake_start`](Self::wake_start) has not.
    ///
    /// # Errors
    /// The errors of [`wake`](Self::wake).
    pub fn wake_wait(&self, target: ParkTarget) -> Result<(), Error> {
        let _begun = self.begin("wake_wait");
        let device = self.healthy()?;
        Parker::of(device, target, false)?.wake_wait(device)
    }

    /// Lends the pages of the free blocks of private pools, a [`Pool`](ParkTarget::Pool) or those
    /// with a [`Tag`](ParkTarget::Tag), until [`reclaim`](Self::reclaim). A request elsewhere that
    /// needs memory of the device takes lent pages first. This is for the pool of a captured graph,
    /// which needs the memory of its free blocks only while the graph runs.
    ///
    /// Live blocks are not lent, and keep their contents. Blocks may be freed; their pages stay
    /// until the next loan. A request in the pool is refused with [`Error::Parked`], and no graph
    /// with memory of the pool may run. Does nothing for pools that lend already.
    ///
    /// Stream order: no page leaves before the work so far on the streams of the pool, and on those
    /// of [`reclaim`](Self::reclaim), is complete. The call waits for it only if no `reclaim` has
    /// said where the pool's graphs run. The request that takes the first page waits.
    ///
    /// Threads: any. Waits for a call that parks, wakes, lends or reclaims memory of the device.
    /// Device: called, but no memory moves.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], [`Error::UnknownPool`].
    /// * [`Error::ParkingRefused`]: the memory is that of the default pool or is not on pages, or
    ///   another call took five seconds.
    /// * [`Error::Parked`]: the memory is parked.
    /// * [`Error::Device`], with
    ///   [`ErrorKind::NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while a
    ///   graph is captured.
    ///
    /// After an error the call has lent nothing.
    pub fn lend(&self, target: ParkTarget) -> Result<(), Error> {
        let _begun = self.begin("lend");
        let device = self.healthy()?;
        Parker::of(device, target, true)?.lend(&device.settings, device.waiting())
    }

    /// Maps the pages that others have taken of lent memory again, at their addresses and with
    /// undefined contents, and lets the pools serve requests. Takes spare pages first, then pages
    /// that other pools lend, then free pages of the caches, and new ones at last. Afterwards the
    /// graphs of the pools may run on `stream`. Call this before every replay, whether or not the
    /// memory is lent: the next loan then knows which work to follow.
    ///
    /// Stream order: if an earlier call named another stream, orders `stream` after the work of
    /// that stream. Waits for the work of others in the pages that come back.
    ///
    /// Threads: as for [`lend`](Self::lend). Device: called if pages were taken.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], [`Error::UnknownPool`], [`Error::ParkingRefused`],
    ///   [`Error::Parked`], [`Error::Device`].
    /// * [`Error::OutOfMemory`]: the limit or the device does not allow it, even after everything
    ///   cached was released.
    ///
    /// After an error, everything is lent as before, and another call continues.
    pub fn reclaim(&self, target: ParkTarget, stream: StreamId) -> Result<(), Error> {
        let _begun = self.begin("reclaim");
        let device = self.healthy()?;
        Parker::of(device, target, true)?.reclaim(device, stream)
    }

    /// Returns the device, unless its context is lost.
    fn healthy(&self) -> Result<OnDevice<'_, On<D, R, S>>, Error> {
        let device = self.on();
        device.driver.health()?;
        Ok(device)
    }

    /// Returns where the memory of `target` is. Heaps are read in turn, so the sums may disagree
    /// slightly while threads allocate.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownTag`].
    pub fn report(&self, target: ParkTarget) -> Result<ParkReport, Error> {
        let arena = self.arena;
        target.check(&arena.heaps)?;
        Ok(ParkReport::of(&arena.heaps, &arena.paging, target))
    }

    /// Returns what uses the memory of the device, by name, for example after everything was
    /// parked. Heaps are read in turn, so the sums may disagree slightly while threads allocate.
    ///
    /// Device: called, to get the free memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn remaining(&self) -> Result<Remaining, Error> {
        Remaining::on(self.on())
    }
}
