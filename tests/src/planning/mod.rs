//! Problems to plan: public ones, invented ones, large ones; and whether a plan is one, worked out in the simplest way.

pub mod brute;
pub mod instances;
pub mod large;
pub mod naive;
pub mod problems;
