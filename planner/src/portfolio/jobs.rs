//! The jobs of a portfolio, in their order.

use crate::Algorithm;
use crate::best_fit::BestFit;
use crate::exact::Skyline;
use crate::greedy::Greedy;
use crate::hill_climb::HillClimb;
use crate::interval_move::IntervalMove;
use crate::pushdown::Pushdown;
use crate::squeaky_wheel::SqueakyWheel;
use crate::squeeze::Squeeze;

/// A job of a portfolio.
#[derive(Clone, Copy)]
pub enum Job {
    /// A fast algorithm.
    Heuristic(&'static (dyn Algorithm + Sync)),
    /// A run of the exact search.
    Run(u64),
    /// A placement by skyline in another order, where the exact search refuses the problem. The
    /// orders have noise, and each gives another plan.
    Dive(Skyline),
}

/// The algorithms that need milliseconds for a thousand buffers.
static QUICK: [&(dyn Algorithm + Sync); 5] =
    [&Pushdown, &Greedy::LowestScale, &Greedy::Conflicts, &Greedy::Size, &Greedy::Area];

/// The algorithms that need more time. The last two run only with few buffers.
static SLOW: [&(dyn Algorithm + Sync); 11] = [
    &Greedy::LowestSize,
    &SqueakyWheel,
    &Skyline(2),
    &Skyline(7),
    &Greedy::Birth,
    &BestFit,
    &Squeeze,
    &Skyline(4),
    &Skyline(0),
    &HillClimb::TVM,
    &IntervalMove,
];

/// The number of search runs before the slower algorithms. If the lower bound can be reached, an
/// early run usually finds a plan at this bound.
const OPENING: u64 = 32;

/// The largest number of buffers for the last two algorithms. With more buffers, both need minutes.
const FEW: usize = 2000;

/// Returns the job of a number, counted from 0. The jobs have no end. `searchable` says whether the
/// exact search accepts the problem.
pub fn job(number: u64, buffers: usize, searchable: bool) -> Job {
    let slow = if buffers > FEW { SLOW.len() - 2 } else { SLOW.len() } as u64;
    let (quick, opening) = (QUICK.len() as u64, if searchable { OPENING } else { 0 });
    let heuristic = |list: &[&'static (dyn Algorithm + Sync)], index: u64| Job::Heuristic(list[index as usize]);
    match number {
        _ if number < quick => heuristic(&QUICK, number),
        _ if number < quick + opening => Job::Run(number - quick),
        _ if number < quick + opening + slow => heuristic(&SLOW, number - quick - opening),
        _ if searchable => Job::Run(number - quick - slow),
        _ => Job::Dive(Skyline(number - quick - slow)),
    }
}
