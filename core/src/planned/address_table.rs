//! The addresses at which the buffers of a plan start, and the live block at each address.

use crate::tables::atomic_map::start;
use crate::units::UNIT;
use alloc::vec;
use alloc::vec::Vec;

/// The value of [`PlannedAddress::requested`] for a listed block. It is larger than every request.
const LISTED: u64 = u64::MAX;

/// An address at which buffers start. At most one live block starts there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedAddress {
    /// The address; 0 ⟺ the slot is vacant.
    pub addr: u64,
    /// The size of the block in bytes; 0 ⟺ no live block starts at the address.
    pub size: u64,
    /// The requested size in bytes, or [`LISTED`].
    pub requested: u64,
    /// How many requests of the iteration come before the block is planned to be free.
    pub until: u32,
}

impl PlannedAddress {
    /// A slot without an address.
    const VACANT: Self = Self { addr: 0, size: 0, requested: 0, until: 0 };

    /// Returns whether the heap has an entry for the live block.
    pub(crate) fn is_listed(&self) -> bool {
        self.size > 0 && self.requested == LISTED
    }

    /// Returns whether only the plan knows the live block.
    #[inline(always)]
    pub(crate) fn is_unlisted(&self) -> bool {
        self.size > 0 && self.requested != LISTED
    }

    /// Notes that the heap has an entry for the block.
    pub(crate) fn list(&mut self) {
        self.requested = LISTED;
    }

    /// Returns whether the block shares bytes with the `size` bytes from `addr` on.
    pub(crate) fn overlaps(&self, addr: u64, size: u64) -> bool {
        self.size > 0 && self.addr < addr + size && addr < self.addr + self.size
    }
}

/// A hash table of slots by address. It contains a fixed set of addresses, and is at most half
/// full.
#[derive(Clone)]
pub(crate) struct AddressTable(Vec<PlannedAddress>);

impl AddressTable {
    /// Creates a table of the given addresses, none of which may be 0.
    pub(crate) fn new(addresses: &[u64]) -> Self {
        let mut cells = vec![PlannedAddress::VACANT; (addresses.len() * 2).next_power_of_two().max(2)];
        for &addr in addresses {
            if let Err(vacant) = find(&cells, addr) {
                cells[vacant].addr = addr;
            }
        }
        Self(cells)
    }

    /// Returns the number of the slot at `addr`.
    pub(crate) fn number(&self, addr: u64) -> Option<u32> {
        find(&self.0, addr).ok().map(|at| at as u32)
    }

    /// Returns the slot at `addr` mutably, if a buffer starts there.
    #[inline(always)]
    pub(crate) fn get_at_mut(&mut self, addr: u64) -> Option<&mut PlannedAddress> {
        let at = find(&self.0, addr).ok()?;
        self.0.get_mut(at)
    }

    /// Returns the slot at `addr`, if a buffer starts there.
    pub(crate) fn get_at(&self, addr: u64) -> Option<&PlannedAddress> {
        find(&self.0, addr).ok().and_then(|at| self.0.get(at))
    }

    /// Returns the slot with the given number mutably.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut PlannedAddress> {
        self.0.get_mut(number as usize)
    }

    /// Returns the address of the slot with the given number.
    pub(crate) fn addr(&self, number: u32) -> Option<u64> {
        self.0.get(number as usize).map(|slot| slot.addr)
    }

    /// Iterates over the slots in use, with their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &PlannedAddress)> {
        (0..).zip(&self.0).filter(|(_, slot)| slot.addr != 0)
    }

    /// Iterates over the slots in use, mutably.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut PlannedAddress> {
        self.0.iter_mut().filter(|slot| slot.addr != 0)
    }
}

/// Returns the number of the slot of an address, or as `Err` the vacant slot where it would be.
#[inline(always)]
fn find(cells: &[PlannedAddress], addr: u64) -> Result<usize, usize> {
    // Addresses are multiples of the unit, so the low bits carry no information.
    let mut at = start(addr / UNIT, cells.len());
    while let Some(cell) = cells.get(at) {
        if cell.addr == addr {
            return Ok(at);
        }
        if cell.addr == 0 {
            break;
        }
        // The table is half empty, so the probe finds either the address or a vacant slot.
        at = (at + 1) & (cells.len() - 1);
    }
    Err(at)
}
