//! Where the buffers of one lane lie: every address that begins one, and what the program holds there.

use crate::tables::atomic_map::start;
use crate::units::UNIT;
use alloc::vec;
use alloc::vec::Vec;

/// What stands for the request of a block that its lane has given into the care of a heap: no request is so large.
const AWAY: u64 = u64::MAX;

/// One address. At most one buffer is there at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapRef {
    /// The address; 0 ⟺ the cell is vacant.
    pub addr: u64,
    /// Length in bytes of the block there; 0 ⟺ there is none.
    pub size: u64,
    /// What the program asked for, or [`AWAY`].
    pub requested: u64,
    /// After so many requests of the iteration it is planned to be free.
    pub until: u32,
}

impl HeapRef {
    const VACANT: Self = Self { addr: 0, size: 0, requested: 0, until: 0 };

    pub(crate) fn is_away(&self) -> bool {
        self.requested == AWAY
    }

    pub(crate) fn go_away(&mut self) {
        self.requested = AWAY;
    }

    /// Whether the block there shares bytes with those from `addr` on.
    pub(crate) fn overlaps(&self, addr: u64, size: u64) -> bool {
        self.size > 0 && self.addr < addr + size && addr < self.addr + self.size
    }
}

/// A hash table of places, at most half full, that never changes.
#[derive(Clone)]
pub(crate) struct Places(Vec<HeapRef>);

impl Places {
    /// A table with these addresses.
    pub(crate) fn new(addresses: &[u64]) -> Self {
        let mut cells = vec![HeapRef::VACANT; (addresses.len() * 2).next_power_of_two().max(2)];
        for &addr in addresses {
            if let Err(vacant) = find(&cells, addr) {
                cells[vacant].addr = addr;
            }
        }
        Self(cells)
    }

    /// The number of the place at `addr`.
    pub(crate) fn number(&self, addr: u64) -> Option<u32> {
        find(&self.0, addr).ok().map(|at| at as u32)
    }

    /// The place at `addr`, if a buffer begins there.
    #[inline(always)]
    pub(crate) fn at(&mut self, addr: u64) -> Option<&mut HeapRef> {
        let at = find(&self.0, addr).ok()?;
        self.0.get_mut(at)
    }

    /// The same, to look at.
    pub(crate) fn look(&self, addr: u64) -> Option<&HeapRef> {
        find(&self.0, addr).ok().and_then(|at| self.0.get(at))
    }

    /// The place of this number.
    #[inline(always)]
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut HeapRef> {
        self.0.get_mut(number as usize)
    }

    /// The address of the place of this number.
    pub(crate) fn addr(&self, number: u32) -> Option<u64> {
        self.0.get(number as usize).map(|place| place.addr)
    }

    /// Every place and its number.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &HeapRef)> {
        (0..).zip(&self.0).filter(|(_, place)| place.addr != 0)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut HeapRef> {
        self.0.iter_mut().filter(|place| place.addr != 0)
    }
}

/// The cell of an address; `Err`: it has none, and this is the vacant one where it would be.
#[inline(always)]
fn find(cells: &[HeapRef], addr: u64) -> Result<usize, usize> {
    let mut at = start(addr / UNIT, cells.len());
    while let Some(cell) = cells.get(at) {
        if cell.addr == addr {
            return Ok(at);
        }
        if cell.addr == 0 {
            break;
        }
        at = (at + 1) & (cells.len() - 1);
    }
    Err(at)
}
