//! The idle time of a program.

use cachalot_gate::Scan;
use std::time::{Duration, Instant};

/// The time for which a program has not submitted anything.
#[derive(Debug)]
pub struct Idle {
    last: Scan,
    since: Instant,
}

impl Idle {
    /// Returns a program that is busy at `now`.
    pub fn new(now: Instant) -> Self {
        Self { last: Scan::default(), since: now }
    }

    /// Notes the threads' slots at `now`. A thread that reads, and a read since the last scan, are
    /// activity.
    pub fn note(&mut self, scan: Scan, now: Instant) {
        if scan.is_reading || scan != self.last {
            (self.last, self.since) = (scan, now);
        }
    }

    /// Notes activity at `now` that no slot shows.
    pub fn busy(&mut self, now: Instant) {
        self.since = now;
    }

    /// Returns for how long the program has been idle at `now`.
    pub fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::Idle;
    use cachalot_gate::Scan;
    use std::time::{Duration, Instant};

    #[test]
    fn reads_and_reading_threads_end_the_idle_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut idle = Idle::new(start);
        idle.note(Scan::default(), at(3));
        assert_eq!(idle.time(at(5)), Duration::from_secs(5));
        idle.note(Scan { reads: 1, is_reading: false }, at(6));
        idle.note(Scan { reads: 1, is_reading: false }, at(9));
        assert_eq!(idle.time(at(9)), Duration::from_secs(3));
        idle.note(Scan { reads: 1, is_reading: true }, at(10));
        idle.note(Scan { reads: 1, is_reading: true }, at(12));
        assert_eq!(idle.time(at(12)), Duration::ZERO, "a thread stays inside");
        idle.note(Scan { reads: 2, is_reading: false }, at(13));
        idle.busy(at(14));
        assert_eq!(idle.time(at(15)), Duration::from_secs(1));
    }
}
