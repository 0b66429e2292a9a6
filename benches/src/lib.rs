//! Benchmarks of allocations, compared with other allocators in the same run.
//!
//! ```text
//! subject    an allocator under measurement          cachalot · btree · peers
//! workload   the work of a subject                   crowd (pairs) · program (recorded programs) · threads
//! lanes      every subject, by name, with a workload
//! measure    all subjects in turn, in rounds         → the table, or criterion
//! stitching  recorded programs in passes           → utilisation and driver time of policies
//! frontier   the same programs with the setting `compact` → a table and a picture
//! auto       the same programs with `tune:auto`      → reserved memory beside the best static setting
//! reclaim    recorded programs with pauses           → memory given back by `reclaim:auto`, over time
//! growth     programs with more and more objects → the cost of a step
//! recorder   the C ABI with its trace on or off      → the cost of recording, and a snapshot
//! ```

pub mod auto;
pub mod btree;
pub mod cachalot;
pub mod crowd;
pub mod floor;
pub mod frontier;
pub mod growth;
pub mod lanes;
pub mod locks;
pub mod machine;
pub mod measure;
pub mod peers;
pub mod program;
pub mod reclaim;
pub mod recorder;
pub mod report;
pub mod settings;
pub mod stitching;
pub mod subject;
pub mod threads;
pub mod workload;
