//! Device addresses, and the mappings behind them.
//!
//! ```text
//!   base          base + span        base + 2·span      base + 3·span
//!   ├ addresses ───┼ seen by device 0 ┼ seen by device 1 ┤
//!   │ no access    │ mapped here if   │ mapped here if   │
//!   │ at all       │ device 0 has     │ device 1 has     │
//!   │              │ access           │ access           │
//! ```
//!
//! A program gets addresses in the first part, where no memory is ever mapped: host code that
//! dereferences a device address is killed by SIGSEGV. Work on a stream gets the address translated
//! into the device's own part, which has exactly the memory that the device may access. A kernel
//! that touches freed or foreign memory is killed likewise.
//!
//! With `CACHALOT_EMU_HOST_ACCESS`, all memory accessible to a device is also mapped in the first
//! part.
//!
//! Each part is reserved from its start as far as the program has taken addresses. QEMU and
//! valgrind keep an entry for every page that a process has reserved: three parts of 4 TiB cost 22
//! GB there.

use crate::backing::pages::{Extent, PAGE};
use crate::values::code::{Answer, Code};
use crate::values::ranges::Ranges;
use std::ops::Range;

/// Where the addresses are preferably: below the system's own mappings and above the program's, or
/// below the program. Equal in every run if free.
const PREFERRED: [Range<u64>; 2] = [0x5800_0000_0000..0x7c00_0000_0000, 0x1100_0000_0000..0x5400_0000_0000];

/// Greatest part where the system chooses the addresses: it is asked for all parts at once.
const CHOSEN: u64 = 64 << 30;

/// Bytes of each part that are reserved from the start.
const FIRST: u64 = 1 << 30;

/// Access of a device to memory. A greater value includes the lesser.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum DeviceAccess {
    /// Read only. Work that writes is killed.
    Read,
    /// Read and write.
    ReadWrite,
}

/// The device addresses of the process, shared by the devices.
#[derive(Debug)]
pub(crate) struct Space {
    base: u64,
    span: u64,
    /// Bytes from the start of each part that are reserved.
    reserved: u64,
    devices: usize,
    free: Ranges,
    /// End of all addresses ever taken.
    used_to: u64,
    /// Whether the host may use device memory.
    host_access: bool,
}

impl Space {
    /// Lays out `span` bytes of addresses, and `span` more bytes for each device, or less where
    /// other mappings are in the way. Reserves the start of each part.
    ///
    /// # Panics
    /// If the system refuses even 1 GiB.
    pub(crate) fn new(span: u64, devices: usize, host_access: bool) -> Self {
        let mut span = span.next_multiple_of(PAGE).max(FIRST);
        loop {
            let bytes = span * (devices as u64 + 1);
            let preferred = PREFERRED.iter().filter(|range| range.end - range.start >= bytes);
            let chosen = (span <= CHOSEN).then(|| unused(bytes)).flatten();
            for base in preferred.map(|range| range.end - bytes).chain(chosen) {
                let free = Ranges::new(base, span);
                let mut space = Self { base, span, reserved: 0, devices, free, used_to: base, host_access };
                if space.reserve_to(FIRST) {
                    return space;
                }
            }
            assert!(span > FIRST, "no address space for the emulated devices");
            span = (span / 2).next_multiple_of(PAGE).max(FIRST);
        }
    }

    /// Reserves the first `bytes` bytes of each part. Returns whether the system agreed, and
    /// reserves nothing otherwise.
    fn reserve_to(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.reserved);
        let ends = (0..=self.devices as u64).map(|part| self.base + self.span * part + self.reserved);
        let refused = ends.clone().find(|&end| missing > 0 && !reserve(end, missing));
        if let Some(refused) = refused {
            ends.take_while(|&end| end != refused).for_each(|end| release(end, missing));
            return false;
        }
        self.reserved += missing;
        true
    }

    /// Sets quarantine: addresses are never reused.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.free.set_quarantine(on);
    }

    /// Takes `bytes` of addresses, at `hint` if free.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64, hint: u64) -> Answer<u64> {
        let alignment = alignment.max(PAGE);
        let hinted = hint.is_multiple_of(alignment) && hint != 0 && self.free.take_at(hint, bytes);
        let start = if hinted { Some(hint) } else { self.free.take(bytes, alignment) };
        let start = start.ok_or(Code::OUT_OF_MEMORY)?;
        let needed = start + bytes - self.base;
        // Twice as much each time, so that a program with many allocations reserves seldom.
        let generous = needed.next_power_of_two().min(self.span);
        if !self.reserve_to(generous) && !self.reserve_to(needed) {
            self.free.give(start, bytes);
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used_to = self.used_to.max(start + bytes);
        Ok(start)
    }

    /// Frees addresses.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        self.free.give(start, bytes);
    }

    /// Returns whether `address` is or was a device address.
    pub(crate) fn has(&self, address: u64) -> bool {
        (self.base..self.used_to).contains(&address)
    }

    /// Translates a present or former device address for work on `device`. Any other number stays
    /// unchanged.
    pub(crate) fn seen_by(&self, device: usize, address: u64) -> u64 {
        if self.has(address) { address + self.span * (device as u64 + 1) } else { address }
    }

    /// Returns the addresses under which work finds device addresses, of all devices.
    pub(crate) fn seen_by_devices(&self) -> Range<u64> {
        self.base + self.span..self.base + self.span * (self.devices as u64 + 1)
    }

    /// Returns the device address that work finds at `seen`.
    pub(crate) fn address_of(&self, seen: u64) -> u64 {
        self.base + (seen - self.base) % self.span
    }

    /// Maps `extents` of `descriptor` for `device` at `address`, in place of earlier mappings.
    /// After a failure nothing is mapped there.
    pub(crate) fn map(
        &self,
        device: usize,
        address: u64,
        descriptor: i32,
        extents: &[Extent],
        access: DeviceAccess,
    ) -> Answer<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let protection = match access {
            DeviceAccess::Read => libc::PROT_READ,
            DeviceAccess::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let mut at = self.seen_by(device, address);
        for extent in extents {
            let of_host = at - self.span * (device as u64 + 1);
            let map = |at| map_fixed(at, extent.bytes, protection, flags, descriptor, extent.offset);
            if !map(at) || (self.host_access && !map(of_host)) {
                let bytes = extents.iter().map(|extent| extent.bytes).sum();
                self.unmap(device, address, bytes);
                self.unmap_host(address, bytes);
                return Err(Code::OUT_OF_MEMORY);
            }
            at += extent.bytes;
        }
        Ok(())
    }

    /// Removes the access of `device` to `[address, address + bytes)`.
    pub(crate) fn unmap(&self, device: usize, address: u64, bytes: u64) {
        forbid(self.seen_by(device, address), bytes);
    }

    /// Maps `extents` of `descriptor` for the host at `address`.
    pub(crate) fn map_host(address: u64, descriptor: i32, extents: &[Extent]) -> Answer<()> {
        let (flags, protection) = (libc::MAP_SHARED | libc::MAP_FIXED, libc::PROT_READ | libc::PROT_WRITE);
        let mut at = address;
        for extent in extents {
            if !map_fixed(at, extent.bytes, protection, flags, descriptor, extent.offset) {
                Self::forbid_host(address, extents.iter().map(|extent| extent.bytes).sum());
                return Err(Code::OUT_OF_MEMORY);
            }
            at += extent.bytes;
        }
        Ok(())
    }

    /// Removes the host's access of [`map_host`](Self::map_host).
    pub(crate) fn forbid_host(address: u64, bytes: u64) {
        forbid(address, bytes);
    }

    /// Removes the host's access, if any.
    pub(crate) fn unmap_host(&self, address: u64, bytes: u64) {
        if self.host_access {
            forbid(address, bytes);
        }
    }

    /// Removes the access of every device and of the host.
    pub(crate) fn unmap_all(&self, address: u64, bytes: u64) {
        for device in 0..self.devices {
            self.unmap(device, address, bytes);
        }
        self.unmap_host(address, bytes);
    }
}

/// Removes all access to a part of the reservation.
fn forbid(at: u64, bytes: u64) {
    if bytes > 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let replaced = map_fixed(at, bytes, libc::PROT_NONE, flags, -1, 0);
        assert!(replaced, "unmap device memory: {}", std::io::Error::last_os_error());
    }
}

/// Returns the start of addresses that nothing uses. `None` if the system has none.
fn unused(bytes: u64) -> Option<u64> {
    // A page more, because the system's pages are smaller than the device's.
    let start = mapped_none(0, bytes + PAGE, 0)?;
    release(start, bytes + PAGE);
    Some(start.next_multiple_of(PAGE))
}

/// Reserves addresses without memory. Returns whether nothing was there, and the system agreed.
fn reserve(at: u64, bytes: u64) -> bool {
    // Linux before 4.17 and QEMU take the flag for none, and the address for a wish.
    let Some(start) = mapped_none(at, bytes, libc::MAP_FIXED_NOREPLACE) else { return false };
    if start != at {
        release(start, bytes);
    }
    start == at
}

/// Maps addresses without memory, and returns the start. `None` if the system refuses.
fn mapped_none(at: u64, bytes: u64, flag: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flag;
    // SAFETY: without MAP_FIXED the call replaces nothing.
    let start = unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as u64)
}

/// Gives back addresses of [`mapped_none`], which nothing uses.
fn release(at: u64, bytes: u64) {
    // SAFETY: the caller has mapped the addresses, and nobody else knows them.
    unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) };
}

/// Replaces a part of the reservation. Returns whether the system agreed.
fn map_fixed(at: u64, bytes: u64, access: i32, flags: i32, descriptor: i32, offset: u64) -> bool {
    // SAFETY: callers pass ranges inside the module's own reservation, which has no Rust
    // objects.
    let start =
        unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, access, flags, descriptor, offset.cast_signed()) };
    start != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::{FIRST, Space};
    use crate::backing::pages::PAGE;

    /// Returns whether nothing is mapped at an address.
    fn is_free(at: u64) -> bool {
        // SAFETY: the call only looks at the mappings.
        let code = unsafe { libc::msync(at as *mut libc::c_void, 1, libc::MS_ASYNC) };
        code != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
    }

    #[test]
    fn addresses_are_reserved_as_they_are_taken() {
        let mut space = Space::new(64 * FIRST, 2, false);
        let last = |space: &Space, bytes: u64| [0, 1, 2].map(|part| space.base + part * space.span + bytes - PAGE);
        assert!(last(&space, FIRST).into_iter().all(|at| !is_free(at)));
        assert!(last(&space, space.span).into_iter().all(is_free));
        let start = space.take(5 * FIRST, PAGE, 0).expect("addresses");
        assert_eq!((start, space.reserved), (space.base, 8 * FIRST));
        assert!(last(&space, 8 * FIRST).into_iter().all(|at| !is_free(at)));
        assert!(last(&space, 9 * FIRST).into_iter().all(is_free));
    }

    #[test]
    fn addresses_in_the_way_end_the_growth() {
        let mut space = Space::new(64 * FIRST, 1, false);
        let in_the_way = space.base + space.span + 2 * FIRST;
        assert!(super::reserve(in_the_way, PAGE));
        assert!(space.take(4 * FIRST, PAGE, 0).is_err());
        assert!(is_free(space.base + FIRST), "what was reserved before the failure");
        assert!(space.take(2 * FIRST, PAGE, 0).is_ok(), "up to what is in the way");
        super::release(in_the_way, PAGE);
        assert!(space.take(4 * FIRST, PAGE, 0).is_ok());
    }
}
