//! Tests of the stress program.

mod churn;
mod common;
mod disturbed;
mod honest;
mod mutants;
mod sweep;
