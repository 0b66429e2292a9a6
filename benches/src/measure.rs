//! Measuring on a machine that others use too: every subject in turn, in many short rounds, and the median of them.
//!
//! Whatever slows the machine down for a while slows all subjects down alike. Work of one thread is timed by the
//! thread's own clock, which stands still while the processor is taken away from it.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What counts as time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The processor's time for the calling thread.
    Thread,
    /// The processors' time for all threads.
    Process,
    /// All time, waiting too.
    Wall,
}

/// One subject at its work.
pub struct Lane {
    /// The subject's name.
    pub name: &'static str,
    /// How many operations doing the work once counts as.
    pub operations: u64,
    /// What counts.
    pub clock: Clock,
    /// Does the work so many times over.
    pub run: Box<dyn FnMut(u64)>,
}

impl Clock {
    fn now(self) -> Duration {
        let clock = match self {
            Self::Thread => ClockId::ThreadCPUTime,
            Self::Process => ClockId::ProcessCPUTime,
            Self::Wall => ClockId::Monotonic,
        };
        clock_gettime(clock).try_into().expect("no clock stands before its beginning")
    }
}

impl Lane {
    /// How long it takes to do the work so many times over.
    pub fn time(&mut self, times: u64) -> Duration {
        let start = self.clock.now();
        (self.run)(times);
        self.clock.now().saturating_sub(start)
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How many rounds each lane has.
    pub rounds: usize,
    /// How long a round takes, about.
    pub round: Duration,
}

/// Nanoseconds an operation took: the quartiles over the rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// A quarter of the rounds took at most this.
    pub lower: f64,
    /// Half of them.
    pub median: f64,
    /// Three quarters of them.
    pub upper: f64,
}

impl Timing {
    /// The quartiles of `samples`.
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |quarters: usize| samples[(samples.len() - 1) * quarters / 4];
        Self { lower: at(1), median: at(2), upper: at(3) }
    }
}

/// How often a lane does its work in a round.
fn calibrate(lane: &mut Lane, round: Duration) -> u64 {
    let mut times = 1_u64;
    loop {
        let took = lane.time(times);
        if took * 2 >= round {
            return ((times as f64 * round.as_secs_f64() / took.as_secs_f64()) as u64).max(1);
        }
        times *= 2;
    }
}

/// Measures every lane, round by round in turn. The result is in the order of the lanes.
pub fn interleave(lanes: &mut [Lane], effort: Effort) -> Vec<Timing> {
    let times: Vec<u64> = lanes.iter_mut().map(|lane| calibrate(lane, effort.round)).collect();
    let mut samples = vec![Vec::with_capacity(effort.rounds); lanes.len()];
    for round in 0..effort.rounds {
        for turn in 0..lanes.len() {
            // Each round begins with another lane: none is always behind the same one.
            let which = (round + turn) % lanes.len();
            let took = lanes[which].time(times[which]);
            let operations = times[which] * lanes[which].operations;
            samples[which].push(took.as_nanos() as f64 / operations as f64);
        }
    }
    samples.into_iter().map(Timing::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_the_sorted_samples() {
        let timing = Timing::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(timing, Timing { lower: 2.0, median: 3.0, upper: 4.0 });
        assert_eq!(Timing::of(vec![7.0]), Timing { lower: 7.0, median: 7.0, upper: 7.0 });
    }
}
