//! Tests of the `cachalot` command.

mod bad_input;
mod browser;
mod common;
mod compare;
mod diff;
mod documents;
mod expansion;
mod export;
mod histories;
mod inputs;
mod inspect;
mod outputs;
mod plan;
mod plan_bad_input;
mod planned;
mod predict;
mod recorded_traces;
mod run;
mod schemas;
mod statuses;
mod synthetic_records;
mod terminal;
mod truth;
mod tune;
mod view;
mod view_page;
