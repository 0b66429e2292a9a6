//! Tests of the allocator. One program, since the generic code of the core is compiled once for each.

mod agreement;
mod bfc;
mod bfc_rules;
mod captures;
mod faults;
mod fixed;
mod forecasts;
mod frontier;
mod golden;
mod histories;
mod memory_map;
mod planned;
mod policies;
mod pools_in_turn;
mod pytorch_memory;
mod pytorch_pools;
mod routes;
mod stitched;
mod stitched_lending;
mod stitched_pending;
mod streams;
mod supplied;
mod threads;
mod trace;
mod utilisation;
