//! Kinds of memory in a book.

use serde::{Deserialize, Serialize};

/// Number of kinds with room in a book.
pub(super) const KINDS: usize = 16;

/// A kind of memory in a book. The numbers are part of the published file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// A segment, which the allocator took from the driver to serve requests.
    Segment = 0,
    /// A request served from a segment: a part of [`Kind::Segment`].
    Served = 1,
    /// Memory given by the driver as asked (`cuMemAlloc`, `cuMemAllocPitch`).
    Plain = 2,
    /// Physical memory apart from addresses (`cuMemCreate`).
    Pages = 3,
    /// Memory of the driver's pools (`cuMemAllocAsync`).
    Pool = 4,
    /// Arrays and textures (`cuArrayCreate`).
    Array = 5,
    /// Managed memory, which is on the device or on the host.
    Managed = 6,
    /// Pinned memory of the host.
    Host = 7,
    /// Contexts, and memory of the driver's own.
    Context = 8,
    /// Modules, libraries and kernels.
    Module = 9,
    /// Graphs and their memory.
    Graph = 10,
    /// Memory taken by other calls.
    Other = 11,
    /// Pages of the host that serve requests for which the device has no memory (`spill`), and
    /// those kept for the next.
    Spilled = 12,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Segment,
        Self::Served,
        Self::Plain,
        Self::Pages,
        Self::Pool,
        Self::Array,
        Self::Managed,
        Self::Host,
        Self::Context,
        Self::Module,
        Self::Graph,
        Self::Other,
        Self::Spilled,
    ];

    /// Returns the kind's name, as tables and JSON have the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Served => "served",
            Self::Plain => "plain",
            Self::Pages => "pages",
            Self::Pool => "pool",
            Self::Array => "array",
            Self::Managed => "managed",
            Self::Host => "host",
            Self::Context => "context",
            Self::Module => "module",
            Self::Graph => "graph",
            Self::Other => "other",
            Self::Spilled => "spilled",
        }
    }

    /// Returns whether the kind's bytes are part of the device's used memory. Served requests are
    /// parts of segments, and so are counted already. Managed memory is on the host until a device
    /// touches it, and the driver moves it back when the device does not have memory.
    pub const fn is_of_device(self) -> bool {
        !matches!(self, Self::Served | Self::Host | Self::Managed | Self::Spilled)
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, Kind};

    #[test]
    fn numbers_and_names_agree_with_the_list() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!(Kind::ALL.len() <= KINDS);
    }
}
