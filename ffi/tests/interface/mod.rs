//! Correct uses of every function, on simulated devices.

mod blocks;
mod history;
mod plan;
mod pools;
mod recorder;
mod settings;
mod statistics;
mod streams;
mod tenants;
mod texts;
