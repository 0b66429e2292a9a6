//! Device memory: regions mapped at unique addresses, and the allocations in them.

use crate::backing::pages::Extent;
use crate::tables::device::Device;
use crate::tables::stream::Mark;
use crate::tables::work::Span;
use crate::values::ranges::Ranges;
use std::collections::BTreeMap;
use std::fs::File;

/// Memory allocated as a unit: whole pages, mapped for the owning device and the device's peers.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) context: u64,
    pub(crate) device: usize,
    /// The pool of the region, if any.
    pub(crate) pool: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) extents: Vec<Extent>,
    /// The file with the memory, if another process has the memory. `None`: the file of the device.
    pub(crate) imported: Option<File>,
    /// Whether the host has access, too.
    pub(crate) managed: bool,
    /// The free parts, if small allocations share the region.
    pub(crate) parts: Option<Ranges>,
    /// Number of allocations with memory in the region, including allocations during a free.
    pub(crate) users: u64,
    /// Value of [`Memory::returned`] at the latest release of an allocation in the region.
    pub(crate) returned: u64,
}

impl Region {
    /// Creates a region of a device without allocations, outside every pool.
    pub(crate) fn new(context: u64, device: usize, bytes: u64, extents: Vec<Extent>) -> Self {
        let (pool, imported, managed, parts) = (None, None, false, None);
        Self { context, device, pool, bytes, extents, imported, managed, parts, users: 0, returned: 0 }
    }

    /// Returns the file with the memory.
    pub(crate) fn file<'a>(&'a self, devices: &'a [Device]) -> &'a File {
        self.imported.as_ref().unwrap_or_else(|| devices[self.device].pages.file())
    }
}

/// The source of an allocation that is not from a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// `cuMemAlloc`, or a pool.
    Plain,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuIpcOpenMemHandle`: memory of another process.
    Imported,
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
    /// The point at which the memory of a pool is there, in the order of the stream of the
    /// allocation.
    pub(crate) exposed: Option<Mark>,
    pub(crate) source: Source,
    /// The number that no other memory of the process has or had.
    pub(crate) id: u64,
    /// Whether copies are synchronous for the host: stored, and without effect.
    pub(crate) sync_memops: bool,
}

impl Allocation {
    /// Creates a plain allocation, without region and number.
    pub(crate) fn new(context: u64, bytes: u64, taken: u64) -> Self {
        let (pool, exposed, source) = (None, None, Source::Plain);
        Self { context, bytes, taken, region: 0, pool, exposed, source, id: 0, sync_memops: true }
    }

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
