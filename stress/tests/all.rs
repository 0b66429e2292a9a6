//! Tests of the stress program.

mod churn;
mod common;
mod honest;
mod mutants;
mod sweep;
