//! What an allocation costs, beside other allocators doing the same in the same run.
//!
//! ```text
//! subject    anything that hands out blocks      cachalot · btree · peers
//! workload   what it is made to do               crowd (pairs) · program (recorded programs) · threads
//! lanes      every subject, by name, at a workload
//! measure    every subject in turn, in rounds    → the table, or criterion
//! recorder   the C ABI with its trace on or off  → what recording costs, and a snapshot
//! ```

pub mod btree;
pub mod cachalot;
pub mod crowd;
pub mod floor;
pub mod instructions;
pub mod lanes;
pub mod locks;
pub mod machine;
pub mod measure;
pub mod peers;
pub mod program;
pub mod recorder;
pub mod report;
pub mod settings;
pub mod subject;
pub mod threads;
pub mod workload;
