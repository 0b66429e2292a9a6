//! The search of `cachalot-tuner` over recorded programs, on every core, and the answer in one
//! sentence.

mod answer;
#[cfg(test)]
mod tests;

pub use crate::memory::Stuck;
pub use answer::{Answer, Better, MOST_EVENTS, Question, Rescue, answer, answer_of, at_end, of_recording};
pub use cachalot_tuner::judge::{Cost, Part, cost};
pub use cachalot_tuner::tune::{EXPANDABLE, Options, Outcome, Tried};
pub use cachalot_tuner::{Aim, Budget, HoldBack, Note, Parts, Progress, Summary};

use crate::program::OnDevice;
use cachalot_tuner::{Runner, Space};
use rayon::prelude::*;

/// Runs the jobs of a round on every core.
struct EveryCore;

impl Runner for EveryCore {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).into_par_iter().for_each(job);
    }
}

/// Searches for the best settings on every core. Calls `watch` after each round, from the calling
/// thread.
///
/// # Errors
/// The baseline is no configuration, or an allocator refused a call of a program with the baseline.
pub fn tune(parts: &Parts, options: &Options, watch: &mut dyn FnMut(&Progress<'_>)) -> Result<Outcome, String> {
    cachalot_tuner::tune::tune(parts, options, cost::<OnDevice>, &EveryCore, watch)
}
