//! The clock of traces. It reads the processor's own counter where this is reliable, which takes a
//! third of the time of the system clock. Elsewhere it reads the system clock.

use quanta::Clock;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The counter, with a reading of the counter and one of the calendar from the same moment.
struct Counter {
    clock: Clock,
    began: u64,
    began_us: u64,
}

/// Returns the counter. The first call measures its rate, which takes up to 200 ms.
#[inline]
fn counter() -> &'static Counter {
    static COUNTER: OnceLock<Counter> = OnceLock::new();
    COUNTER.get_or_init(|| {
        #[cfg(not(miri))]
        let clock = Clock::new();
        // Miri does not know the instructions that read the processor's counter. With this clock,
        // a difference of readings is in nanoseconds.
        #[cfg(miri)]
        let (clock, _) = Clock::mock();
        let began_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64);
        Counter { began: read(&clock), began_us, clock }
    })
}

#[cfg(not(miri))]
#[inline]
fn read(clock: &Clock) -> u64 {
    clock.raw()
}

#[cfg(miri)]
fn read(_: &Clock) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}

/// Returns the present reading of the counter. The lowest bit is always set, so the result is never
/// 0.
#[inline]
pub fn ticks() -> u64 {
    read(&counter().clock) | 1
}

/// Converts a reading of the counter to microseconds since the Unix epoch.
pub fn time_us(ticks: u64) -> u64 {
    let counter = counter();
    counter.began_us + counter.clock.delta_as_nanos(counter.began, ticks) / 1000
}

#[cfg(test)]
mod tests {
    use super::{ticks, time_us};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[test]
    #[cfg_attr(miri, ignore = "Miri is too slow for a clock")]
    fn ticks_are_times_of_the_calendar() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
        let first = ticks();
        std::thread::sleep(Duration::from_millis(20));
        let second = ticks();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
        let (first, second) = (time_us(first), time_us(second));
        assert!(second - first >= 19_900, "{}", second - first);
        // The calendar may be set during the test; allow 1 ms.
        assert!((0..100).all(|_| ticks() & 1 == 1), "never 0");
        assert!(first + 1000 >= before && second <= after + 1000, "{before} {first} {second} {after}");
    }
}
