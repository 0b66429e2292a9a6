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

use crate::backing::pages::{Extent, PAGE};
use crate::values::code::{Answer, Code};
use crate::values::ranges::Ranges;
use std::ops::Range;

/// Preferred start of the addresses: below the system's own mappings and above everything else.
/// Equal in every run if free.
const PREFERRED_BASE: u64 = 0x7000_0000_0000;

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
    devices: usize,
    free: Ranges,
    /// End of all addresses ever taken.
    used_to: u64,
    /// Whether the host may use device memory.
    host_access: bool,
}

impl Space {
    /// Reserves `span` bytes of addresses, and `span` more bytes for each device, or less where the
    /// system refuses.
    ///
    /// # Panics
    /// If the system refuses even 1 GiB.
    pub(crate) fn new(span: u64, devices: usize, host_access: bool) -> Self {
        let mut span = span.next_multiple_of(PAGE);
        loop {
            let bytes = span * (devices as u64 + 1) + PAGE;
            if let Some(start) = reserve(bytes) {
                let base = start.next_multiple_of(PAGE);
                return Self { base, span, devices, free: Ranges::new(base, span), used_to: base, host_access };
            }
            span /= 2;
            assert!(span >= 1 << 30, "no address space for the emulated devices");
        }
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

/// Reserves addresses without memory. `None` if the system refuses.
fn reserve(bytes: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let hint = PREFERRED_BASE as *mut libc::c_void;
    // SAFETY: without MAP_FIXED the call replaces nothing.
    let start = unsafe { libc::mmap(hint, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as u64)
}

/// Replaces a part of the reservation. Returns whether the system agreed.
fn map_fixed(at: u64, bytes: u64, access: i32, flags: i32, descriptor: i32, offset: u64) -> bool {
    // SAFETY: callers pass ranges inside the module's own reservation, which has no Rust
    // objects.
    let start =
        unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, access, flags, descriptor, offset.cast_signed()) };
    start != libc::MAP_FAILED
}
