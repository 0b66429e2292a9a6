//! Parked memory of a device.

use crate::allocator::{Allocator, On};
use crate::arena::OnDevice;
use crate::arena::paging::parking::{ParkMode, ParkOrder, ParkReport, ParkTarget, Parker, Remaining};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::split_rules::PoolMemory;
use crate::pool::{PoolId, Tag};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

view! {
    /// Memory parked for a while and woken at the old addresses: a view of an
    /// [`Allocator`].
    ///
    /// For programs of several parts using the device in turn, for example a generating model and a
    /// model in training: the memory of the idle part is *parked*, and *wakes* before the part runs
    /// again. Pointers to blocks, and captured graphs, stay valid, and must not be used while the
    /// memory is parked.
    ///
    /// Blocks in parked memory stay valid, and may be freed. A request for memory of a parked pool
    /// is refused with [`Error::Parked`], unless such requests are
    /// [served elsewhere](Self::serve_elsewhere), and so is a pin of a parked block. Statistics
    /// count the blocks as allocated and not as reserved.
    ///
    /// Threads: any. A call while another thread's call parks or wakes memory of the device is
    /// refused. Requests and frees outside the target never wait for these calls.
    Parking,
    /// Returns the operations that park memory of `device`.
    parking
}

impl<D: DeviceMemory, R: Lock, S: Storage> Parking<'_, D, R, S> {
    /// Sets the tag under which the memory of a private pool is parked; `None` removes the tag.
    /// Present segments stay as they are: tag a pool before the first request. New segments of a
    /// tagged pool are mapped under the caching policy, too. Only mapped memory can be parked:
    /// under the caching and the stitched policy, and under best fit with coalescing with
    /// expandable segments.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::UnknownPool`], also for the default pool.
    /// * [`Error::Parked`]: the pool, or another pool with the tag, is parked.
    /// * [`Error::ParkingRefused`]: the policy maps no memory, or the host supplies the pool's
    ///   segments.
    /// * [`Error::TableFull`].
    pub fn tag_pool(&self, pool: PoolId, tag: Option<Tag>) -> Result<(), Error> {
        let device = self.begin("tag_pool");
        device.heaps.tag_pool(pool, tag, device.settings.uses_pages(PoolMemory::Parkable))
    }

    /// Sets whether the default pool serves requests for parked pools with `tag`. If not, as at
    /// first, the requests are refused. The choice holds for all pools with the tag, present and
    /// future. Blocks so served are ordinary blocks of the default pool. Requests of a capture are
    /// refused even so, since a graph's memory must lie in the graph's pool.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownTag`].
    pub fn serve_elsewhere(&self, tag: Tag, on: bool) -> Result<(), Error> {
        let known = self.arena.heaps.registry.lock().set_elsewhere(tag, on);
        if known { Ok(()) } else { Err(Error::UnknownTag(tag)) }
    }

    /// Parks the memory of `target`: gives the memory of pages, and cached memory, back to the
    /// device. The memory of pinned pages and of ordinary segments stays on the device;
    /// [`report`](Self::report) tells how much. If the memory is parked, parks the pages left on
    /// the device by an earlier call: pages left after a failure, and pages pinned at the earlier
    /// call. Does nothing if no pages are left. Memory on the device keeps the contents in every
    /// mode.
    ///
    /// Stream order: waits as `order` says. No work queued later may use the memory before waking.
    ///
    /// Device: called. With [`ParkMode::Keep`] the contents are copied to the host's memory.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`].
    /// * [`Error::ParkingRefused`]: see the text.
    /// * [`Error::NoHostMemory`]: with [`ParkMode::Keep`], the host lacks the memory for the
    ///   contents.
    /// * [`Error::Device`], with
    ///   [`ErrorKind::NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while a
    ///   graph is captured.
    ///
    /// All memory is awake then, with two exceptions. If the device fails in the middle and then
    /// fails to map again the part parked by then, the part stays parked, with all contents.
    /// Without contents to be kept, all pages unmapped by the device stay parked. Another call
    /// parks the rest.
    pub fn park(&self, target: ParkTarget, mode: ParkMode, order: ParkOrder) -> Result<(), Error> {
        let _begun = self.begin("park");
        let device = self.healthy()?;
        Parker::of(device, target)?.park(device, mode, order)
    }

    /// Wakes the memory of `target`, at the old addresses: [`wake_start`](Self::wake_start) and
    /// [`wake_wait`](Self::wake_wait). Does nothing if the memory is awake.
    ///
    /// Stream order: the contents are complete when the call returns, for work on every stream.
    ///
    /// Device: called.
    ///
    /// # Errors
    /// * [`Error::UnknownTag`], [`Error::ParkingRefused`], [`Error::Device`].
    /// * [`Error::OutOfMemory`]: the limit or the device lacks the memory, also after everything
    ///   cached was released.
    ///
    /// All memory is parked then, and the contents are kept. The next call handles pages that the
    /// device fails to unmap.
    pub fn wake(&self, target: ParkTarget) -> Result<(), Error> {
        self.wake_wait(target)
    }

    /// Begins to wake the memory of `target`: maps all pages, and begins to copy the contents.
    /// Targets wake in the order of these calls.
    ///
    /// Stream order: no work may use the memory before [`wake_wait`](Self::wake_wait) has returned.
    ///
    /// Device: called; waits for no copy.
    ///
    /// # Errors
    /// The errors of [`wake`](Self::wake).
    pub fn wake_start(&self, target: ParkTarget) -> Result<(), Error> {
        let _begun = self.begin("wake_start");
        let device = self.healthy()?;
        Parker::of(device, target)?.wake_start(device)
    }

    /// Waits until the contents of `target` are complete, and lets the memory serve requests again.
    /// Begins to wake the memory first, unless begun before.
    ///
    /// # Errors
    /// The errors of [`wake`](Self::wake).
    pub fn wake_wait(&self, target: ParkTarget) -> Result<(), Error> {
        let _begun = self.begin("wake_wait");
        let device = self.healthy()?;
        Parker::of(device, target)?.wake_wait(device)
    }

    /// Returns the device, if it works.
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

    /// Returns the memory in use on the device, by name, for example once everything was parked.
    /// Heaps are read in turn, so the sums may disagree slightly while threads allocate.
    ///
    /// Device: called, to tell the free memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn remaining(&self) -> Result<Remaining, Error> {
        Remaining::on(self.on())
    }
}
