//! Twelve defects to plant, each after a defect that was found in another allocator. A search must
//! find each.
//!
//! A defect is in the device or in the call of the core: the core behaves to the outside as if the
//! core had the defect, and no line of the core changes.

use crate::theorems::Theorem;

/// A defect to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// A request searches once, and not again after the wait for pending blocks.
    SingleSearch,
    /// A use on another stream is not passed on.
    ForgottenUse,
    /// An event is recorded once. A later record of the event leaves the old place.
    StaleEvent,
    /// The host waits for an event by ordering the stream, and goes on at once.
    WaitOnStream,
    /// A stream is not ordered after the work before a move or a loan.
    UnorderedMove,
    /// Memory is parked without a wait for the work on the memory.
    ParkInUse,
    /// The pages made before a failed creation stay.
    HalfGrown,
    /// A page stays after a failed call behind the creation of the page.
    KeptAfterFailure,
    /// The pages mapped before a failed wake stay.
    HalfAwake,
    /// A failed removal of a mapping counts as a removal.
    UnmapAssumed,
    /// The contents of every parked page are those of the first page.
    FirstPageRestored,
    /// The end of a capture and of its graph are not passed on.
    LeftCapture,
}

/// A defect, with the search that finds it.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// The defect.
    pub defect: Defect,
    /// The name of the setting searched.
    pub setting: &'static str,
    /// Where a defect of this kind was found.
    pub after: &'static str,
    /// The defect in a sentence.
    pub sentence: &'static str,
    /// The theorem that the defect breaks.
    pub breaks: Theorem,
}

/// Lists a defect.
const fn planted(
    defect: Defect,
    setting: &'static str,
    after: &'static str,
    sentence: &'static str,
    breaks: Theorem,
) -> Planted {
    Planted { defect, setting, after, sentence, breaks }
}

/// Every defect.
pub const PLANTED: [Planted; 12] = [
    planted(
        Defect::SingleSearch,
        "caching-records",
        "pytorch 189504",
        "A request does not search again after the wait for pending blocks.",
        Theorem::Memory,
    ),
    planted(
        Defect::ForgottenUse,
        "caching-streams",
        "TensorRT-LLM 15265",
        "A use on another stream is not passed on.",
        Theorem::Order,
    ),
    planted(
        Defect::StaleEvent,
        "caching-long",
        "rmm 2489",
        "An event keeps its first place when it is recorded again.",
        Theorem::Order,
    ),
    planted(
        Defect::WaitOnStream,
        "expandable-streams",
        "openvm stark-backend 362",
        "A wait of the host orders the stream, and memory is unmapped below running work.",
        Theorem::Answers,
    ),
    planted(
        Defect::UnorderedMove,
        "stitched-streams",
        "VulkanMemoryAllocator 313",
        "Memory moves to another stream without an order behind the work on it.",
        Theorem::Order,
    ),
    planted(
        Defect::ParkInUse,
        "stitched-parking",
        "vLLM 45552",
        "Memory is parked without a wait for the work on it.",
        Theorem::Answers,
    ),
    planted(
        Defect::HalfGrown,
        "stitched-faults",
        "kvcached 364",
        "The pages made before a failed creation are not given back.",
        Theorem::Loss,
    ),
    planted(
        Defect::KeptAfterFailure,
        "expandable-faults",
        "HAMi-core 306",
        "A page stays when a call behind its creation fails.",
        Theorem::Sum,
    ),
    planted(
        Defect::HalfAwake,
        "stitched-parking-faults",
        "vLLM 34602",
        "The pages mapped before a failed wake stay on the device.",
        Theorem::Sum,
    ),
    planted(
        Defect::UnmapAssumed,
        "expandable-faults",
        "pytorch ExpandableSegment::unmapHandles",
        "A mapping whose removal failed counts as removed.",
        Theorem::Sum,
    ),
    planted(
        Defect::FirstPageRestored,
        "stitched-parking",
        "Mooncake 3546",
        "Every part of parked memory gets the contents of the first part.",
        Theorem::Parked,
    ),
    planted(
        Defect::LeftCapture,
        "caching-captures",
        "pytorch 190308",
        "A capture that has ended keeps its pool.",
        Theorem::Loss,
    ),
];
