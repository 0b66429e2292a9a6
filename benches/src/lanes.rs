//! All subjects by name, each made to do a workload.

use crate::btree::BTree;
use crate::cachalot::Cachalot;
use crate::floor::Floor;
use crate::measure::{Clock, Lane};
use crate::peers::{BuddyFrames, BuddyHeap, Offset, Rlsf};
use crate::settings::Settings;
use crate::workload::Workload;
use cachalot::HeapLock;

/// The name of this project's allocator with the lock it has on hosts; the first lane wherever there are several.
pub const OURS: &str = "cachalot";

/// The name of the yardstick.
pub const YARDSTICK: &str = "BTreeSet";

/// The names of all subjects, in the order of their lanes.
pub const SUBJECTS: [&str; 8] = [
    OURS,
    "cachalot, parking_lot",
    YARDSTICK,
    "rlsf",
    "offset-allocator",
    "buddy, frames",
    "buddy, heap",
    "locks and counts",
];

/// The policies beside the caching one, by the names that configurations give them.
pub const POLICIES: [&str; 4] = ["bfc", "buddy", "size_class", "slab"];

/// The peers that policies are measured beside.
pub const PEERS: [&str; 4] = ["rlsf", "offset-allocator", "buddy, frames", "buddy, heap"];

/// A lane for the subject of this name, if it can hold the workload.
///
/// # Panics
/// If there is no such subject.
pub fn lane(name: &'static str, work: &impl Workload) -> Option<Lane> {
    let (settings, arena) = (work.settings(), work.arena());
    // Powers of two take up to twice as much.
    let run = match name {
        OURS => work.lane(Cachalot::<HeapLock>::new(&settings)),
        "cachalot, parking_lot" => work.lane(Cachalot::<parking_lot::RawMutex>::new(&settings)),
        YARDSTICK => BTree::new(&settings).and_then(|subject| work.lane(subject)),
        "rlsf" => work.lane(Rlsf::new(arena)),
        "offset-allocator" => Offset::new(arena).and_then(|subject| work.lane(subject)),
        "buddy, frames" => work.lane(BuddyFrames::new(arena * 2)),
        "buddy, heap" if !work.allows_walks() => None,
        "buddy, heap" => work.lane(BuddyHeap::new(arena * 2)),
        "locks and counts" => work.lane(Floor::default()),
        _ if POLICIES.contains(&name) => {
            let settings = Settings { config: format!("policy:{name}"), ..settings };
            work.lane(Cachalot::<HeapLock>::new(&settings))
        }
        _ => panic!("there is no subject {name}"),
    };
    run.map(|run| Lane { name, operations: work.operations(), clock: Clock::Thread, run })
}

/// A lane for every policy and every peer that can hold the workload.
pub fn policy_lanes(work: &impl Workload) -> Vec<Lane> {
    POLICIES.into_iter().chain(PEERS).filter_map(|name| lane(name, work)).collect()
}

/// A lane for every subject that can hold the workload.
pub fn lanes(work: &impl Workload) -> Vec<Lane> {
    SUBJECTS.into_iter().filter_map(|name| lane(name, work)).collect()
}
