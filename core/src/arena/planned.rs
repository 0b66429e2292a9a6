//! Requests and frees while plans are in force: the fast path, and what is done with a block beyond that.

use crate::arena::allocation::Allocation;
use crate::arena::{Arena, flags};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::{Directory, Owner, Place};
use crate::planned::lanes::{Berth, Lane};
use crate::planned::sequence::{Handed, Held};
use crate::stats::{Stat, Tally};
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::trace::CallSite;
use crate::units::{DeviceIndex, DevicePtr, MAX_REQUEST, StreamId, UNIT};

/// Circumstances in which requests are served from plans as ever.
const HARMLESS: u32 = flags::PLANNED | flags::PENDING | flags::DEFERRED | flags::LIGHT;

/// Circumstances in which none is.
const FORBIDDING: u32 = flags::CAPTURE | flags::DIRECT | flags::LOST | flags::OBSERVED;

/// Counts a block that is handed out. True if the peaks must be settled.
#[inline(always)]
fn count_up(tally: &Tally, lane: &Lane, size: u64, requested: u64) -> bool {
    // One negative number makes all of them negative: that is one test.
    let mut left = tally.up_to(Stat::RequestedBytes, requested);
    left |= tally.up_to(Stat::AllocatedBytes, size);
    left |= tally.up_to(Stat::Allocation, 1);
    if size >= lane.oversize {
        left |= tally.up_to(Stat::OversizeAllocations, 1);
    }
    left < 0
}

#[inline(always)]
fn count_down(tally: &Tally, lane: &Lane, size: u64, requested: u64) {
    tally.down(Stat::Allocation, 1);
    tally.down(Stat::AllocatedBytes, size);
    tally.down(Stat::RequestedBytes, requested);
    if size >= lane.oversize {
        tally.down(Stat::OversizeAllocations, 1);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Serves a request that is the next of its stream, unless the lane is locked: whoever waits, as whoever calls anything but
    /// last, saves registers, 23 instructions. Without plans in force no stream has a lane.
    #[inline(always)]
    pub(crate) fn malloc_next(
        &self,
        directory: &Directory<R, S>,
        bytes: u64,
        stream: StreamId,
    ) -> Result<DevicePtr, Error> {
        if !self.has(!HARMLESS)
            && let Some(front) = self.planned.as_deref()
            && let Some(berth) = front.berth(stream)
            && let Some(mut guard) = berth.lane.try_lock()
            && let Some(lane) = &mut *guard
            && lane.stream == stream
            && let Some(Handed { addr, size }) = lane.sequence.next(bytes)
        {
            let unsettled = count_up(&berth.tally, lane, size, bytes);
            drop(guard);
            if unsettled {
                return self.settle_and_hand_out(&berth.tally, DevicePtr(addr));
            }
            return Ok(DevicePtr(addr));
        }
        self.malloc_unlike(directory, bytes, stream)
    }

    /// Brings the peaks up to date, and passes a block on.
    #[cold]
    #[inline(never)]
    #[expect(clippy::unnecessary_wraps, reason = "its caller answers what it does")]
    fn settle_and_hand_out(&self, tally: &Tally, ptr: DevicePtr) -> Result<DevicePtr, Error> {
        self.settle_lane(tally);
        Ok(ptr)
    }

    /// Serves a request from a plan, whatever there is to be seen to, if it is that one's to serve.
    pub(crate) fn malloc_planned(
        &self,
        directory: &Directory<R, S>,
        noted: u32,
        bytes: u64,
        stream: StreamId,
    ) -> Option<DevicePtr> {
        if noted & !HARMLESS == 0 {
            self.malloc_astray(directory, bytes, stream)
        } else {
            self.malloc_planned_attentively(directory, bytes, stream)
        }
    }

    /// The same where routes and the trace have to be looked at.
    #[cold]
    fn malloc_planned_attentively(
        &self,
        directory: &Directory<R, S>,
        bytes: u64,
        stream: StreamId,
    ) -> Option<DevicePtr> {
        if self.has(FORBIDDING) {
            return None;
        }
        if self.has(flags::ROUTES)
            && let Some(route) = self.enter_pool(stream)
        {
            self.leave_pool(route.pool);
            return None;
        }
        let site = self.call_site(CallSite::Alloc);
        let ptr = self.malloc_astray(directory, bytes, stream)?;
        if self.has(flags::TRACE) {
            self.trace_planned(stream, site, ptr, bytes);
        }
        Some(ptr)
    }

    /// Records in its lane's heap that a block was handed out.
    #[cold]
    fn trace_planned(&self, stream: StreamId, site: u32, ptr: DevicePtr, bytes: u64) {
        let berth = self.planned.as_deref().and_then(|front| front.berth(stream));
        let home = berth.and_then(|berth| Some(berth.lane.lock().as_ref()?.home));
        if let Some(home) = home {
            self.record_alloc(&mut self.lock(home), site, ptr, bytes);
        }
    }

    /// Serves a request whatever it is: the next of its stream or not, its bytes occupied or not.
    #[cold]
    fn malloc_astray(&self, directory: &Directory<R, S>, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        let front = self.planned.as_deref()?;
        let Some(berth) = front.berth(stream) else {
            front.elsewhere.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if self.has(flags::PENDING) && berth.lane.lock().as_mut().is_some_and(|lane| self.waits(lane, bytes)) {
            // An event that cannot be asked after leaves the bytes occupied.
            let _asked = self.process_events(directory);
        }
        let mut guard = berth.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.take_back(lane);
        let Handed { addr, size } = lane.sequence.otherwise(bytes)?;
        let unsettled = count_up(&berth.tally, lane, size, bytes);
        drop(guard);
        if unsettled {
            self.settle_lane(&berth.tally);
        }
        Some(DevicePtr(addr))
    }

    /// Whether a request is served only if events have freed what is late.
    fn waits(&self, lane: &mut Lane, bytes: u64) -> bool {
        self.take_back(lane);
        lane.sequence.away > 0 && lane.sequence.is_occupied(bytes)
    }

    /// The blocks that a lane's heap cared for and that are free now are the lane's again.
    pub(super) fn take_back(&self, lane: &mut Lane) {
        if lane.sequence.away > 0 {
            let returned = self.slot(lane.home).heap.lock().take_returned();
            for addr in returned {
                lane.sequence.come_back(addr);
            }
        }
    }

    #[cold]
    fn settle_lane(&self, tally: &Tally) {
        self.settle_peaks_of((PoolKind::Large, tally), None);
    }

    /// Frees a block that the directory says is a lane's, unless that is locked or has to be looked at closer.
    #[inline(never)]
    pub(crate) fn free_planned(
        &self,
        directory: &Directory<R, S>,
        number: u32,
        ptr: DevicePtr,
        requested: impl Into<Option<u64>> + Copy,
    ) -> Result<(), Error> {
        if !self.has(flags::TRACE)
            && let Some(front) = self.planned.as_deref()
            && let Some(berth) = front.numbered(number)
            && let Some(mut guard) = berth.lane.try_lock()
            && let Some(lane) = &mut *guard
            && free_held(berth, lane, ptr, requested.into())
        {
            return Ok(());
        }
        self.free_planned_otherwise(directory, number, ptr, requested)
    }

    /// Frees a block whatever its lane is at, or one that a heap cares for, or says why not.
    #[cold]
    fn free_planned_otherwise(
        &self,
        directory: &Directory<R, S>,
        number: u32,
        ptr: DevicePtr,
        requested: impl Into<Option<u64>>,
    ) -> Result<(), Error> {
        let requested = requested.into();
        if self.has(flags::TRACE) {
            return self.free_planned_traced(directory, number, ptr, requested);
        }
        let berth = self.planned.as_deref().and_then(|front| front.numbered(number));
        let berth = berth.ok_or(Error::InvalidPointer(ptr))?;
        let mut guard = berth.lane.lock();
        if let Some(lane) = &mut *guard
            && free_held(berth, lane, ptr, requested)
        {
            return Ok(());
        }
        let home = match guard.as_ref().map(|lane| (lane.sequence.held_at(ptr.0), lane.home)) {
            Some((Held::Away, home)) => Some(self.place(home)),
            Some((Held::Here(actual), _)) => match requested {
                Some(given) if given != actual => return Err(Error::WrongSize { ptr, given, requested: actual }),
                // It was handed out since.
                _ => None,
            },
            Some((Held::Nowhere, _)) | None => None,
        };
        drop(guard);
        match home {
            Some(home) => self.free(directory, home, ptr, requested),
            None => self.free_of_none(directory, number, ptr, requested),
        }
    }

    /// The same while frees are traced: heaps do that.
    #[cold]
    fn free_planned_traced(
        &self,
        directory: &Directory<R, S>,
        number: u32,
        ptr: DevicePtr,
        requested: Option<u64>,
    ) -> Result<(), Error> {
        let place = Place { device: self.number, heap: number };
        if self.planned_allocation(number, ptr).is_some_and(|held| held.base != ptr) {
            return Err(Error::InvalidPointer(ptr));
        }
        match self.home_of(directory, place, ptr) {
            Ok(home) => self.free(directory, home, ptr, requested),
            Err(_) => self.free_of_none(directory, number, ptr, requested),
        }
    }

    /// Frees a block that was a lane's when the directory was asked. If it led to this lane rightly, there is none.
    #[cold]
    fn free_of_none(
        &self,
        directory: &Directory<R, S>,
        number: u32,
        ptr: DevicePtr,
        requested: Option<u64>,
    ) -> Result<(), Error> {
        match directory.owner(ptr) {
            Owner::Heap(place) if place.heap != number => self.free(directory, place, ptr, requested),
            _ => Err(Error::InvalidPointer(ptr)),
        }
    }

    /// The heap that cares for a block which the directory said to be a lane's: from here on, if it did not before. An address in
    /// the middle of a block is as good as its first.
    pub(crate) fn home_of(
        &self,
        directory: &Directory<R, S>,
        mut place: Place,
        ptr: DevicePtr,
    ) -> Result<Place, Error> {
        while let Some(berth) = self.planned.as_deref().and_then(|front| front.numbered(place.heap)) {
            let mut guard = berth.lane.lock();
            if let Some(lane) = guard.as_mut().filter(|lane| (lane.base..lane.base + lane.bytes).contains(&ptr.0)) {
                let block = holding(lane, ptr).map(|(block, _)| block.addr);
                let home = self.place(lane.home);
                let unsettled = match block {
                    Some(addr) => self.send_home(berth, lane, addr)?,
                    None => false,
                };
                drop(guard);
                if unsettled {
                    self.settle_peaks(self.slot(home.heap));
                }
                return Ok(home);
            }
            drop(guard);
            // The lane has ended since the directory was asked, which says now where the block is.
            match directory.owner(ptr) {
                Owner::Heap(now) if now.heap != place.heap => place = now,
                _ => return Err(Error::InvalidPointer(ptr)),
            }
        }
        Ok(place)
    }

    /// A lane's heap cares for the block at `addr` from here on. True if the peaks must be settled.
    fn send_home(&self, berth: &Berth<R>, lane: &mut Lane, addr: u64) -> Result<bool, Error> {
        let slot = self.slot(lane.home);
        let mut heap = self.lock(lane.home);
        let Some((block, requested)) = lane.sequence.here(addr) else { return Ok(false) };
        let unsettled = heap.take_over((addr, block.size), requested, lane.oversize, (&berth.tally, &slot.tally))?;
        lane.sequence.go_away(addr);
        Ok(unsettled)
    }

    /// Every block of a lane is in its heap's care from here on, so that whoever looks at heaps sees all of them.
    pub(super) fn send_all_home(&self, berth: &Berth<R>, lane: &mut Lane) -> Result<bool, Error> {
        let held: alloc::vec::Vec<u64> = lane.sequence.held().map(|(block, _)| block.addr).collect();
        let mut unsettled = false;
        for addr in held {
            unsettled |= self.send_home(berth, lane, addr)?;
        }
        Ok(unsettled)
    }

    /// The same for every lane. What there is no room for stays out of sight.
    pub(crate) fn show_lanes(&self) {
        let Some(front) = self.planned.as_deref() else { return };
        for berth in &front.berths {
            let mut guard = berth.lane.lock();
            let Some(lane) = guard.as_mut() else { continue };
            let home = lane.home;
            let shown = self.send_all_home(berth, lane);
            drop(guard);
            if shown.unwrap_or(true) {
                self.settle_peaks(self.slot(home));
            }
        }
    }

    /// Checks every lane, for tests.
    pub(crate) fn check_lanes(&self) -> Result<(), &'static str> {
        let Some(front) = self.planned.as_deref() else { return Ok(()) };
        for berth in &front.berths {
            let mut guard = berth.lane.lock();
            let (mut blocks, mut bytes, mut asked) = (0, 0, 0);
            if let Some(lane) = guard.as_mut() {
                self.take_back(lane);
                lane.sequence.check()?;
                for (block, requested) in lane.sequence.held() {
                    (blocks, bytes, asked) = (blocks + 1, bytes + block.size, asked + requested);
                }
            }
            let counted = [(Stat::Allocation, blocks), (Stat::AllocatedBytes, bytes), (Stat::RequestedBytes, asked)];
            if counted.iter().any(|&(stat, sum)| berth.tally.current(stat) != sum as i64) {
                return Err("a lane's statistic is not what its blocks add up to");
            }
        }
        Ok(())
    }

    /// The block that contains `ptr`, if a lane holds it and its heap does not care for it.
    pub(crate) fn planned_allocation(&self, number: u32, ptr: DevicePtr) -> Option<Allocation> {
        let guard = self.planned.as_deref()?.numbered(number)?.lane.lock();
        let lane = guard.as_ref()?;
        let (block, requested) = holding(lane, ptr)?;
        Some(Allocation {
            base: DevicePtr(block.addr),
            size: block.size,
            requested,
            stream: lane.stream,
            device: DeviceIndex(self.number),
            segment: DevicePtr(lane.base),
            segment_bytes: lane.bytes,
        })
    }

    /// Whether a lane holds the block at exactly `ptr`, and it was allocated on this stream.
    pub(crate) fn is_planned_on(&self, number: u32, ptr: DevicePtr, stream: StreamId) -> bool {
        let held = self.planned_allocation(number, ptr);
        held.is_some_and(|held| held.base == ptr && held.stream == stream)
    }

    /// The address that a plan would serve a request from, if one would. What its heap has freed is the lane's again, as it would be
    /// at the next request.
    pub(crate) fn planned_forecast(&self, bytes: u64, stream: StreamId) -> Option<DevicePtr> {
        if !self.has(flags::PLANNED) || self.has(FORBIDDING) || bytes > MAX_REQUEST - UNIT {
            return None;
        }
        if self.has(flags::ROUTES)
            && let Some(route) = self.enter_pool(stream)
        {
            self.leave_pool(route.pool);
            return None;
        }
        let mut guard = self.planned.as_deref()?.berth(stream)?.lane.lock();
        let lane = guard.as_mut().filter(|lane| lane.stream == stream)?;
        self.take_back(lane);
        lane.sequence.peek(bytes).map(DevicePtr)
    }
}

/// Frees a block if its lane holds it, and no heap cares for it.
#[inline(always)]
fn free_held<R: Lock>(berth: &Berth<R>, lane: &mut Lane, ptr: DevicePtr, requested: Option<u64>) -> bool {
    let Some((block, requested)) = lane.sequence.free(ptr.0, requested) else { return false };
    count_down(&berth.tally, lane, block.size, requested);
    true
}

/// The block of a lane that contains `ptr`, unless its heap cares for it.
fn holding(lane: &Lane, ptr: DevicePtr) -> Option<(Handed, u64)> {
    if let Some(block) = lane.sequence.here(ptr.0) {
        return Some(block);
    }
    lane.sequence.held().find(|(block, _)| (block.addr..block.addr + block.size).contains(&ptr.0))
}
