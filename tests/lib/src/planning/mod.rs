//! Planning problems for tests, public, generated and large, and a naive check of plans.

pub mod brute;
pub mod instances;
pub mod large;
pub mod naive;
pub mod problems;
