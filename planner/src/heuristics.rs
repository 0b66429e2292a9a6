//! The list of heuristics, which are algorithms that answer soon and prove no bound.

use super::Algorithm;
use super::best_fit::BestFit;
use super::greedy::Greedy;
use super::hill_climb::HillClimb;
use super::interval_move::IntervalMove;
use super::pushdown::Pushdown;
use super::squeaky_wheel::SqueakyWheel;
use super::squeeze::Squeeze;

/// All heuristics. Those that are slowest with many buffers come last.
pub static HEURISTICS: [&(dyn Algorithm + Sync); 12] = [
    &Pushdown,
    &BestFit,
    &Squeeze,
    &Greedy::Size,
    &Greedy::Area,
    &Greedy::Conflicts,
    &Greedy::Birth,
    &Greedy::LowestSize,
    &Greedy::LowestScale,
    &SqueakyWheel,
    &HillClimb::TVM,
    &IntervalMove,
];
