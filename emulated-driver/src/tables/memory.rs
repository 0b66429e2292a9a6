//! Device memory: regions mapped at unique addresses, and the allocations in them.

use crate::backing::pages::Extent;
use crate::tables::work::Span;
use crate::values::ranges::Ranges;
use std::collections::BTreeMap;

/// Memory allocated as a unit: whole pages, mapped for the owning device and the device's peers.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) context: u64,
    pub(crate) device: usize,
    /// The pool of the region, if any.
    pub(crate) pool: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) extents: Vec<Extent>,
    /// The free parts, if small allocations share the region.
    pub(crate) parts: Option<Ranges>,
    /// Number of allocations with memory in the region, including allocations during a free.
    pub(crate) users: u64,
    /// Value of [`Memory::returned`] at the latest release of an allocation in the region.
    pub(crate) returned: u64,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) context: u64,
    /// The requested size.
    pub(crate) bytes: u64,
    /// The size after rounding.
    pub(crate) taken: u64,
    /// Start of the region with the allocation.
    pub(crate) region: u64,
    /// The pool of the memory, if any.
    pub(crate) pool: Option<u64>,
}

impl Allocation {
    /// Returns the position of the allocation in the region.
    pub(crate) fn span(&self, address: u64) -> Span {
        Span { region: self.region, offset: address - self.region, bytes: self.taken }
    }
}

/// All memory, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) regions: BTreeMap<u64, Region>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) quarantine: bool,
    /// Number of releases so far.
    pub(crate) returned: u64,
}

impl Memory {
    /// Sets quarantine: freed parts of shared pages are never reused.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.quarantine = on;
        for parts in self.regions.values_mut().filter_map(|region| region.parts.as_mut()) {
            parts.set_quarantine(on);
        }
    }

    /// Returns the allocation that contains an address, with the start of the allocation.
    pub(crate) fn containing(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.bytes).then_some((start, allocation))
    }
}
