//! Measurements on a shared machine: all subjects in turn, in many short rounds, and the median of
//! the rounds.
//!
//! A slow phase of the machine slows all subjects equally. Work of a single thread is timed by the
//! thread's own clock, which stands still while the thread is preempted.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The clock of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Processor time of the calling thread.
    Thread,
    /// Processor time of all threads of the process.
    Process,
    /// Elapsed time, waiting included.
    Wall,
}

/// A subject and the subject's work.
pub struct Lane {
    /// The subject's name, as used in the tables.
    pub name: &'static str,
    /// Number of operations in an execution of the work.
    pub operations: u64,
    /// The clock for the work.
    pub clock: Clock,
    /// Executes the work the given number of times.
    pub run: Box<dyn FnMut(u64)>,
}

impl Clock {
    /// Returns the present time of the clock.
    pub(crate) fn now(self) -> Duration {
        let clock = match self {
            Self::Thread => ClockId::ThreadCPUTime,
            Self::Process => ClockId::ProcessCPUTime,
            Self::Wall => ClockId::Monotonic,
        };
        clock_gettime(clock).try_into().expect("no clock stands before its beginning")
    }
}

impl Lane {
    /// Returns the time of `times` executions of the work.
    pub fn time(&mut self, times: u64) -> Duration {
        let start = self.clock.now();
        (self.run)(times);
        self.clock.now().saturating_sub(start)
    }
}

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of rounds of each lane.
    pub rounds: usize,
    /// Approximate duration of a round.
    pub round: Duration,
}

/// Nanoseconds per operation: the quartiles over the rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// The lower quartile: a quarter of the rounds took at most this long.
    pub lower: f64,
    /// The median: half of the rounds took at most this long.
    pub median: f64,
    /// The upper quartile: three quarters of the rounds took at most this long.
    pub upper: f64,
}

impl Timing {
    /// Computes the quartiles of `samples`.
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |quarters: usize| samples[(samples.len() - 1) * quarters / 4];
        Self { lower: at(1), median: at(2), upper: at(3) }
    }
}

/// Returns the number of executions in a full round.
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

/// Measures all lanes in turn, round by round. Results are in the order of the lanes.
pub fn interleave(lanes: &mut [Lane], effort: Effort) -> Vec<Timing> {
    let times: Vec<u64> = lanes.iter_mut().map(|lane| calibrate(lane, effort.round)).collect();
    let mut samples = vec![Vec::with_capacity(effort.rounds); lanes.len()];
    for round in 0..effort.rounds {
        for turn in 0..lanes.len() {
            // Each round starts with another lane, so that no lane always follows the same lane.
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
