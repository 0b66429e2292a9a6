//! Since when a program is idle.

use cachalot_gate::Look;
use std::time::{Duration, Instant};

/// How long a program has not submitted anything.
#[derive(Debug)]
pub struct Idle {
    last: Look,
    since: Instant,
}

impl Idle {
    /// Returns a program that is busy at `now`.
    pub fn new(now: Instant) -> Self {
        Self { last: Look::default(), since: now }
    }

    /// Notes the threads' slots at `now`. A thread inside, and a visit since the last look, are activity.
    pub fn note(&mut self, look: Look, now: Instant) {
        if look.inside || look != self.last {
            (self.last, self.since) = (look, now);
        }
    }

    /// Notes activity at `now` without a slot.
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
    use cachalot_gate::Look;
    use std::time::{Duration, Instant};

    #[test]
    fn visits_and_threads_inside_end_the_idle_time() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut idle = Idle::new(begin);
        idle.note(Look::default(), at(3));
        assert_eq!(idle.time(at(5)), Duration::from_secs(5));
        idle.note(Look { visits: 1, inside: false }, at(6));
        idle.note(Look { visits: 1, inside: false }, at(9));
        assert_eq!(idle.time(at(9)), Duration::from_secs(3));
        idle.note(Look { visits: 1, inside: true }, at(10));
        idle.note(Look { visits: 1, inside: true }, at(12));
        assert_eq!(idle.time(at(12)), Duration::ZERO, "a thread stays inside");
        idle.note(Look { visits: 2, inside: false }, at(13));
        idle.busy(at(14));
        assert_eq!(idle.time(at(15)), Duration::from_secs(1));
    }
}
