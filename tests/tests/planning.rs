//! Tests of the planner.

mod plan_ends;
mod plan_exact;
mod plan_exact_properties;
mod plan_faults;
mod plan_large;
mod plan_megengine;
mod plan_operators;
mod plan_peaks;
mod plan_programs;
mod plan_properties;
mod plan_published;
mod plan_serde;
