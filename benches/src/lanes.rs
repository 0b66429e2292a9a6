//! Lanes: each subject, selected by name, with a workload.

use crate::btree::BTree;
use crate::cachalot::Cachalot;
use crate::floor::Floor;
use crate::measure::{Clock, Lane};
use crate::peers::{BuddyFrames, BuddyHeap, Offset, Rlsf};
use crate::settings::Settings;
use crate::workload::Workload;
use cachalot::HeapLock;

/// Name of the project's allocator with the lock used on hosts. The first lane, if several.
pub const OURS: &str = "cachalot";

/// Name of the baseline.
pub const BASELINE: &str = "BTreeSet";

/// Names of all subjects, in the order of the lanes.
pub const SUBJECTS: [&str; 8] = [
    OURS,
    "cachalot, parking_lot",
    BASELINE,
    "rlsf",
    "offset-allocator",
    "buddy, frames",
    "buddy, heap",
    "locks and counts",
];

/// The policies other than the caching policy, by the names used in configurations.
pub const POLICIES: [&str; 4] = ["bfc", "buddy", "size_class", "slab"];

/// The peers that are measured with the policies.
pub const PEERS: [&str; 4] = ["rlsf", "offset-allocator", "buddy, frames", "buddy, heap"];

/// Creates a lane for the subject with the given name. Returns `None` if the subject cannot run the
/// workload.
///
/// # Panics
/// If no subject has the name.
pub fn lane(name: &'static str, work: &impl Workload) -> Option<Lane> {
    let (settings, arena) = (work.settings(), work.arena());
    // Rounding to powers of two up to doubles the memory, so the buddy allocators get twice the
    // arena.
    let run = match name {
        OURS => work.lane(Cachalot::<HeapLock>::new(&settings)),
        "cachalot, parking_lot" => work.lane(Cachalot::<parking_lot::RawMutex>::new(&settings)),
        BASELINE => BTree::new(&settings).and_then(|subject| work.lane(subject)),
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

/// Creates a lane for every policy and every peer able to run the workload.
pub fn policy_lanes(work: &impl Workload) -> Vec<Lane> {
    POLICIES.into_iter().chain(PEERS).filter_map(|name| lane(name, work)).collect()
}

/// Creates a lane for every subject able to run the workload.
pub fn lanes(work: &impl Workload) -> Vec<Lane> {
    SUBJECTS.into_iter().filter_map(|name| lane(name, work)).collect()
}
