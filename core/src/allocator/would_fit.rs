//! Tests whether requests would be served, on a copy of the allocator's state.

use super::{Allocator, Called, Forecasts};
use crate::arena::hosted::copy::copy_onto;
use crate::arena::hosted::rehearse::rehearsal_device;
use crate::device::oom::OutOfMemory;
use crate::device::{DeviceMemory, MemoryInfo};
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::{Devices, Storage};
use crate::units::{DeviceIndex, StreamId};
use spin::Once;

/// The reason why a request would fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Bound {
    /// The limit, set in bytes or as a fraction of the device.
    Limit,
    /// The fraction above which `throw_on_cudamalloc_oom` refuses requests.
    Fraction,
    /// The `max` of the tag of the pool that the request is routed to.
    TagMax,
    /// The free memory of the device, according to its latest answer.
    Device,
    /// Another reason, for example addresses of virtual memory, or parked memory.
    Other,
}

impl Bound {
    /// Returns the reason why a request failed after the cache was released.
    fn of(report: &OutOfMemory) -> Self {
        if report.held_to_max {
            return Self::TagMax;
        }
        let held = report.reserved.saturating_add(report.spare).saturating_add(report.segment);
        if report.limit.is_some_and(|limit| held > limit) {
            Self::Limit
        } else if report.memory.free < report.segment {
            Self::Device
        } else {
            Self::Other
        }
    }
}

/// The answer of [`Forecasts::would_fit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// How many requests would be served, counted from the first: the index of the first that
    /// fails, or the number of all requests.
    pub served: usize,
    /// Bytes held from the device after these requests.
    pub reserved_bytes: u64,
    /// How many bytes these requests would add to the bytes held from the device.
    pub new_bytes: u64,
    /// The reason why the next request would fail. `None` if all would be served.
    pub bound: Option<Bound>,
    /// The free memory of the device that the answer assumes: the device's latest answer, changed
    /// by the memory obtained and given back since then. `None` if the device was never asked; the
    /// answer then assumes that there is enough.
    pub device_free: Option<u64>,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Forecasts<'_, D, R, S> {
    /// Returns whether requests of `sizes` bytes on `stream` would be served if they were made now,
    /// in order, without a free in between. Changes nothing.
    ///
    /// The requests are made on a copy of the device's heaps, pools, pages and plans, by the code
    /// that serves real requests. So the answer is exact for the policy, if no other call comes in
    /// between. It assumes that:
    /// * no work of a stream is complete unless the allocator has already found this out, until a
    ///   request would wait for it: call [`process_events`](Allocator::process_events) first;
    /// * [`Host::on_shortage`](crate::Host::on_shortage) frees nothing, and no other thread frees
    ///   while a request waits;
    /// * new memory has higher addresses than all existing memory, and a host that supplies a pool
    ///   has enough;
    /// * mapping takes no time, which matters only for `strict_stall` of the stitched policy.
    ///
    /// The copy takes about as long as a [`snapshot`](Allocator::snapshot), and as much memory as
    /// the allocator's tables. It is the state of a single moment: calls of other threads wait
    /// while it is made. Calls that are in progress on other threads count as unfinished, and the
    /// frees that they poll as pending.
    ///
    /// Device: called for its virtual memory, which may open the device, and, while a graph is
    /// captured, to find the capturing streams. Otherwise not called.
    ///
    /// # Errors
    /// * [`Error::InvalidStream`], [`Error::TooLarge`].
    /// * [`Error::Parked`]: the memory of the stream or its pool is parked.
    /// * [`Error::TableFull`], [`Error::Device`].
    pub fn would_fit(&self, sizes: &[u64], stream: StreamId) -> Result<Fit, Error> {
        let onto = rehearsal_device(self.on(), stream)?;
        self.would_fit_on(onto, sizes, stream)
    }

    /// Answers as [`would_fit`](Self::would_fit) does, but with the copy over a device of the
    /// caller. `onto` must be in the state of the allocator's device, with the same addresses,
    /// events and pages. Over a [`duplicate`](crate::simulated::SimulatedDevice::duplicate) of a
    /// simulated device, the answer therefore assumes nothing.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// The errors of [`would_fit`](Self::would_fit).
    pub fn would_fit_on<T: DeviceMemory>(&self, onto: T, sizes: &[u64], stream: StreamId) -> Result<Fit, Error> {
        let _begun = self.begin("would_fit");
        Error::refuse_reserved(stream)?;
        let copy = self.copy_onto(onto)?;
        let only = DeviceIndex(0);
        let ledger = &copy.arena(only)?.ledger;
        let before = ledger.reserved();
        let arena = self.arena;
        let device_free = arena.driver.known_memory(arena.ledger.reserved()).map(|memory| memory.free);
        let answer = |served, reserved_bytes: u64, bound| {
            let new_bytes = reserved_bytes.saturating_sub(before);
            Fit { served, reserved_bytes, new_bytes, bound, device_free }
        };
        for (served, &bytes) in sizes.iter().enumerate() {
            let reserved = ledger.reserved();
            let bound = match copy.malloc(only, bytes, stream) {
                Ok(_) => continue,
                Err(Error::Rejected(_)) => Bound::Fraction,
                Err(Error::OutOfMemory(report)) => Bound::of(&report),
                Err(error) => return Err(error),
            };
            return Ok(answer(served, reserved, Some(bound)));
        }
        Ok(answer(sizes.len(), ledger.reserved(), None))
    }

    /// Stores the memory of a device, after the program has asked the device, so that a later
    /// [`would_fit`](Self::would_fit) uses it. The allocator itself stores the answers to its own
    /// questions.
    pub fn note_memory(&self, memory: MemoryInfo) {
        let arena = self.arena;
        arena.driver.note_memory(memory, arena.ledger.reserved());
    }

    /// Returns an allocator over `onto` with the state of one device, which becomes device 0.
    fn copy_onto<T: DeviceMemory>(&self, onto: T) -> Result<Allocator<T, R, S>, Error> {
        let mut arenas = S::Devices::with_places(1).ok_or(Error::TableFull("devices"))?;
        let (arena, pages) = copy_onto(self.on(), Called::<T>::from(onto))?;
        arenas.places_mut()[0] = arena;
        arenas.publish(1);
        Ok(Allocator::over(arenas, pages, Once::initialized(())))
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::device::oom;
    use crate::device::simulated::SimulatedDevice;
    use crate::tables::Fixed;
    use crate::units::MIB;

    /// Returns a report of a request for a segment of 100 MiB while 1000 MiB are held.
    fn report(limit: Option<u64>, free: u64, held_to_max: bool) -> OutOfMemory {
        oom::tests::report(|report| {
            report.memory = MemoryInfo { free, total: 4096 * MIB };
            (report.limit, report.held_to_max) = (limit, held_to_max);
            (report.allocated, report.reserved, report.spare) = (900 * MIB, 960 * MIB, 40 * MIB);
        })
    }

    #[test]
    fn a_request_is_bound_by_what_it_would_exceed() {
        for (limit, free, bound) in [
            (None, 100 * MIB, Bound::Other),
            (None, 100 * MIB - 1, Bound::Device),
            (Some(1100 * MIB), 100 * MIB, Bound::Other),
            (Some(1100 * MIB), 10 * MIB, Bound::Device),
            (Some(1100 * MIB - 1), 100 * MIB, Bound::Limit),
        ] {
            assert_eq!(Bound::of(&report(limit, free, false)), bound, "limit {limit:?}, {free} bytes free");
            assert_eq!(Bound::of(&report(limit, free, true)), Bound::TagMax);
        }
    }

    #[test]
    fn an_allocator_of_fixed_tables_tells_what_fits() {
        static ALLOCATOR: Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Fixed<1, 2, 16, 64>> =
            Allocator::empty();
        ALLOCATOR.start([SimulatedDevice::new(64 * MIB)], &crate::Config::new()).unwrap();
        let device = DeviceIndex(0);
        let held = ALLOCATOR.malloc(device, 20 * MIB, StreamId(1)).unwrap();
        let fits = || ALLOCATOR.forecast(device).unwrap().would_fit(&[20 * MIB; 3], StreamId(1)).unwrap();
        assert_eq!((fits().served, fits().new_bytes), (3, 60 * MIB));
        ALLOCATOR.free(held).unwrap();
        assert_eq!((fits().served, fits().new_bytes), (3, 40 * MIB));
    }
}
