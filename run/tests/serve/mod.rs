//! Served memory.

mod addresses;
mod captures;
mod contexts;
mod ends;
mod failures;
mod frees;
mod holdings;
mod orders;
mod records;
mod setup;
mod slack;
mod sleep;
mod sleep_files;
mod sleep_maps;
mod sleep_pieces;
mod spilled_maps;
mod waits;
