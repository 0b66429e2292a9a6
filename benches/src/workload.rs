//! What a subject is made to do, and all subjects made to do it.

use crate::btree::BTree;
use crate::cachalot::Cachalot;
use crate::floor::Floor;
use crate::measure::{Clock, Lane};
use crate::peers::{BuddyFrames, BuddyHeap, Offset, Rlsf};
use crate::subject::Subject;
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

/// The settings of a caching allocator.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    /// The configuration, in `PyTorch`'s syntax.
    pub config: String,
    /// The most bytes that may be held from the device.
    pub limit: Option<u64>,
}

/// Work that any subject can be given.
pub trait Workload {
    /// Brings a subject into the state to be measured in, and returns what does the work so many times over; `None` if
    /// the subject cannot hold it.
    fn lane<S: Subject + 'static>(&self, subject: S) -> Option<Box<dyn FnMut(u64)>>;

    /// How many operations count as one when the work was done once.
    fn operations(&self) -> u64 {
        1
    }

    /// Whether a subject can do it that walks a list of all free blocks on every free.
    fn allows_walks(&self) -> bool {
        true
    }

    /// Bytes of arena for subjects that have one: a power of two.
    fn arena(&self) -> u64;

    /// For subjects that know settings.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}

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
