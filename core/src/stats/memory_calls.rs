//! Counts and times of a device's calls of virtual memory, by kind, and of requests held up by
//! calls.

use crate::sync::{AtomicU64, Ordering, impl_empty};

/// Calls of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallCount {
    /// The number of calls, with failed calls.
    pub calls: u64,
    /// The time of the calling threads, in microseconds; 0 if the device has no clock.
    pub us: u64,
}

/// Declares the kinds of calls: a row for each, with the name of its count.
macro_rules! memory_calls {
    ($($(#[$doc:meta])* $Call:ident: $count:ident,)*) => {
        /// The calls of a device's virtual memory, by kind, since the allocator was created.
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

        /// Number of kinds in [`MemoryCall`].
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
    /// Mapped ranges made accessible: a single call for all pages mapped side by side.
    SetAccess: set_access,
    /// Mappings removed.
    Unmap: unmap,
    /// Physical memory exported to another process.
    Export: export,
}

/// Counter of a kind of calls. The time is in ticks of the device's clock: a call may take
/// less than a microsecond.
#[derive(Debug)]
struct CallCounter {
    calls: AtomicU64,
    ticks: AtomicU64,
}

impl_empty! { CallCounter { calls, ticks } }

/// The counters of a device. Any thread counts without a lock.
#[derive(Debug)]
pub(crate) struct MemoryCallCounters {
    kinds: [CallCounter; KINDS],
    /// The clock's reading from which sums of ticks are converted, once there is one.
    origin: AtomicU64,
    /// Requests with more mapping than the policy's bound.
    stalls: AtomicU64,
    /// The longest time of mapping for a request, in microseconds.
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

    /// Counts a request with `us` microseconds of mapping. The policy allows `bound_us`.
    pub(crate) fn count_request(&self, us: u64, bound_us: u64) {
        self.longest_us.fetch_max(us, Ordering::Relaxed);
        if us > bound_us {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the calls of every kind. `now` is a reading of the clock, and `time_us` converts
    /// readings to microseconds. The times never fall from one call to the next.
    pub(crate) fn calls(&self, now: u64, time_us: impl Fn(u64) -> u64) -> MemoryCalls {
        // A clock converts points in time only. All sums are converted from the same point: a
        // difference is rounded by the point where it begins, so from another point a sum would be
        // a microsecond shorter now and then.
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

    /// Returns the longest time of mapping for a request, in microseconds.
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
