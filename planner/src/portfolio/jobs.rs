//! What a portfolio does, one thing after the other.

use crate::Algorithm;
use crate::best_fit::BestFit;
use crate::exact::Skyline;
use crate::greedy::Greedy;
use crate::hill_climb::HillClimb;
use crate::interval_move::IntervalMove;
use crate::pushdown::Pushdown;
use crate::squeeze::Squeeze;

/// One thing to do.
#[derive(Clone, Copy)]
pub enum Job {
    /// An algorithm that answers soon.
    Heuristic(&'static (dyn Algorithm + Sync)),
    /// A run of the exact search.
    Run(u64),
}

/// Algorithms that need milliseconds for a thousand buffers.
static QUICK: [&(dyn Algorithm + Sync); 4] = [&Pushdown, &Greedy::LowestScale, &Greedy::Size, &Greedy::Area];

/// Those that need more; the last two only for few buffers.
static SLOW: [&(dyn Algorithm + Sync); 11] = [
    &Greedy::LowestSize,
    &Skyline(2),
    &Skyline(7),
    &Greedy::Conflicts,
    &Greedy::Birth,
    &BestFit,
    &Squeeze,
    &Skyline(4),
    &Skyline(0),
    &HillClimb::TVM,
    &IntervalMove,
];

/// So many runs of the search come before the slower algorithms: where a program fits into its lower bound, the first ones mostly show it.
const OPENING: u64 = 32;

/// With more buffers than this the last two algorithms are left out: they need minutes.
const FEW: usize = 2000;

/// The job of a number, counted from 0; `None` if there are no more. `searchable` if the exact search takes the problem at all.
pub fn job(number: u64, buffers: usize, searchable: bool) -> Option<Job> {
    let slow = if buffers > FEW { SLOW.len() - 2 } else { SLOW.len() } as u64;
    let (quick, opening) = (QUICK.len() as u64, if searchable { OPENING } else { 0 });
    let heuristic = |list: &[&'static (dyn Algorithm + Sync)], index: u64| Some(Job::Heuristic(list[index as usize]));
    match number {
        _ if number < quick => heuristic(&QUICK, number),
        _ if number < quick + opening => Some(Job::Run(number - quick)),
        _ if number < quick + opening + slow => heuristic(&SLOW, number - quick - opening),
        _ => searchable.then_some(Job::Run(number - quick - slow)),
    }
}
