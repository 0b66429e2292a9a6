//! Policies of a host, for the tests: the example's, for every size and for small sizes alone.

#[path = "../../examples/own_policy.rs"]
#[allow(dead_code, unreachable_pub, reason = "the example is a whole program, with a test")]
mod own_policy;

use crate::config::{Config, Policies, Suballocation};
use own_policy::FirstFit;
use std::boxed::Box;

const fn first_fit(name: &'static str) -> Suballocation {
    Suballocation { largest_segment: 1 << 45, ..Suballocation::new(name, |_| Box::new(FirstFit::default())) }
}

static ROWS: [Suballocation; 2] =
    [first_fit("first_fit"), Suballocation { largest: Some(|_| 512 << 10), ..first_fit("small_first_fit") }];

/// Parses settings, which may name `first_fit` and `small_first_fit`.
pub(crate) fn parse(text: &str) -> Config {
    Config::parse_with(Policies::new(&ROWS), text).unwrap_or_else(|error| panic!("`{text}`: {error}"))
}
