//! Counts and times of a device's virtual memory calls, by kind, and of the requests that they held
//! up.

use crate::sync::{AtomicU64, Ordering, impl_empty};

/// The calls of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallCount {
    /// The number of calls, including failed calls.
    pub calls: u64,
    /// The time that the calling threads spent in the calls, in microseconds; 0 if the device has
    /// no clock.
    pub us: u64,
}

/// Declares the kinds of calls, one row per kind with the name of its count.
macro_rules! memory_calls {
    ($($(#[$doc:meta])* $Call:ident: $count:ident,)*) => {
        /// The calls of a device's virtual memory since the allocator was created, by kind.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct MemoryCalls {
            $($(#[$doc])* pub $count: CallCount,)*
        }

        /// The kinds of calls.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub(crate) enum MemoryCall {
            $($Call,)*
        }

        /// The number of kinds in [`MemoryCall`].
        const KINDS: usize = [$(MemoryCall::$Call),*].len();

        impl MemoryCalls {
            /// Collects the counts of all kinds.
            fn of(count: impl Fn(MemoryCall) -> CallCount) -> Self {
                Self { $($count: count(MemoryCall::$Call),)* }
            }
        }
    };
}

memory_calls! {
    /// Addresses reserved.
    Reserve: reserve,
    /// Addresses released.
    Unreserve: unreserve,
    /// Physical memory allocated.
    Create: create,
    /// Physical memory released.
    Destroy: destroy,
    /// Physical memory mapped at addresses.
    Map: map,
    /// Mapped ranges made accessible. One call covers all pages that were mapped side by side.
    SetAccess: set_access,
    /// Mappings removed.
    Unmap: unmap,
    /// Physical memory exported to another process.
    Export: export,
}

/// The counter of one kind of call. The time is in ticks of the device's clock, because a call may
/// take less than a microsecond.
#[derive(Debug)]
struct CallCounter {
    calls: AtomicU64,
    ticks: AtomicU64,
}

impl_empty! { CallCounter { calls, ticks } }

/// The counters of a device. Any thread may count, without a lock.
#[derive(Debug)]
pub(crate) struct MemoryCallCounters {
    kinds: [CallCounter; KINDS],
    /// The reading of the clock from which sums of ticks are converted; 0 before the first
    /// conversion.
    origin: AtomicU64,
    /// How many requests mapped for longer than the policy's bound.
    stalls: AtomicU64,
    /// The longest time that a request spent mapping, in microseconds.
    longest_us: AtomicU64,
}

impl_empty! { MemoryCallCounters { kinds, origin, stalls, longest_us } }

impl MemoryCallCounters {
    /// Counts a call of `ticks`.
    pub(crate) fn count(&self, call: MemoryCall, ticks: u64) {
        let counter = &self.kinds[call as usize];
        counter.calls.fetch_add(1, Ordering::Relaxed);
        counter.ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Counts a request that spent `us` microseconds mapping. The policy allows `bound_us`.
    pub(crate) fn count_request(&self, us: u64, bound_us: u64) {
        self.longest_us.fetch_max(us, Ordering::Relaxed);
        if us > bound_us {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the calls of every kind. `now` is a reading of the clock, and `time_us` converts
    /// readings to microseconds. The times never decrease from one call to the next.
    pub(crate) fn calls(&self, now: u64, time_us: impl Fn(u64) -> u64) -> MemoryCalls {
        // A clock converts only points in time, so a sum of ticks is converted as a difference. The
        // rounding of a difference depends on where it starts: from another starting point, a sum
        // would sometimes come out a microsecond shorter. So all sums start at the same point.
        let first = self.origin.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let origin = first.map_or_else(|earlier| earlier, |_| now);
        let us = |ticks: u64| time_us(origin.saturating_add(ticks)).saturating_sub(time_us(origin));
        MemoryCalls::of(|call| {
            let counter = &self.kinds[call as usize];
            let calls = counter.calls.load(Ordering::Relaxed);
            CallCount { calls, us: us(counter.ticks.load(Ordering::Relaxed)) }
        })
    }

    /// Returns how many requests mapped for longer than the policy's bound.
    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Returns the longest time that a request spent mapping, in microseconds.
    pub(crate) fn longest_us(&self) -> u64 {
        self.longest_us.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_time_stays_the_same_between_calls() {
        let counters = MemoryCallCounters::default();
        counters.count(MemoryCall::Map, 1500);
        let first = counters.calls(700, |ticks| ticks / 1000).map;
        assert!((1..=2).contains(&first.us), "{first:?}");
        for now in 701..2800 {
            assert_eq!(counters.calls(now, |ticks| ticks / 1000).map, first, "at {now}");
        }
        assert_eq!(counters.calls(0, |_| 0).map, CallCount { calls: 1, us: 0 }, "without a clock");
    }
}
