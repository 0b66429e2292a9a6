//! Device addresses, and what makes them real.
//!
//! ```text
//!   base          base + span        base + 2·span      base + 3·span
//!   ├ addresses ───┼ seen by device 0 ┼ seen by device 1 ┤
//!   │ no access    │ mapped here when │ mapped here when │
//!   │ for anybody  │ device 0 may     │ device 1 may     │
//! ```
//!
//! A program holds addresses of the first part, where nothing is ever mapped: host code that dereferences one is
//! killed by SIGSEGV. Work on a stream gets the same address moved into its device's own part, where exactly that is
//! mapped which the device may access. A kernel that touches freed or foreign memory is killed as well.
//!
//! With `CACHALOT_EMU_HOST_ACCESS`, what a device may access is mapped in the first part too.

use crate::code::{Answer, Code};
use crate::pages::{Extent, PAGE};
use crate::ranges::Ranges;

/// Below the system's own mappings and above everything else: the same addresses in every run, if they are free.
const PREFERRED_BASE: u64 = 0x7000_0000_0000;

/// What a device may do with memory; the greater includes the lesser.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Access {
    /// Read it. Work that writes to it is killed.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// The device addresses of the process, shared by its devices.
#[derive(Debug)]
pub(crate) struct Space {
    base: u64,
    span: u64,
    devices: usize,
    free: Ranges,
    /// Nothing at or above was ever handed out.
    used_to: u64,
    /// The host may use device memory.
    host_access: bool,
}

impl Space {
    /// Reserves `span` bytes of addresses and as much again for each device, or less where the system refuses.
    ///
    /// # Panics
    /// If not even 1 GiB can be had.
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

    /// From now on: never use an address again, or do.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.free.set_quarantine(on);
    }

    /// Takes `bytes` of addresses; at `hint` if that is free.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64, hint: u64) -> Answer<u64> {
        let alignment = alignment.max(PAGE);
        let hinted = hint.is_multiple_of(alignment) && hint != 0 && self.free.take_at(hint, bytes);
        let start = if hinted { Some(hint) } else { self.free.take(bytes, alignment) };
        let start = start.ok_or(Code::OUT_OF_MEMORY)?;
        self.used_to = self.used_to.max(start + bytes);
        Ok(start)
    }

    /// Gives addresses back.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        self.free.give(start, bytes);
    }

    /// Whether an address is, or was, a device address.
    pub(crate) fn has(&self, address: u64) -> bool {
        (self.base..self.used_to).contains(&address)
    }

    /// `address` as work on `device` sees it, if it is or was a device address; any other number unchanged.
    pub(crate) fn seen_by(&self, device: usize, address: u64) -> u64 {
        if self.has(address) { address + self.span * (device as u64 + 1) } else { address }
    }

    /// Makes `extents` of `descriptor` accessible to `device` at `address`, in place of what was there. Nothing is
    /// mapped there if it fails.
    pub(crate) fn map(
        &self,
        device: usize,
        address: u64,
        descriptor: i32,
        extents: &[Extent],
        access: Access,
    ) -> Answer<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
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

    /// Takes every access of `device` to `[address, address + bytes)` away.
    pub(crate) fn unmap(&self, device: usize, address: u64, bytes: u64) {
        forbid(self.seen_by(device, address), bytes);
    }

    /// Takes the host's access away, if it has any.
    pub(crate) fn unmap_host(&self, address: u64, bytes: u64) {
        if self.host_access {
            forbid(address, bytes);
        }
    }

    /// Takes every device's access away, and the host's.
    pub(crate) fn unmap_all(&self, address: u64, bytes: u64) {
        for device in 0..self.devices {
            self.unmap(device, address, bytes);
        }
        self.unmap_host(address, bytes);
    }
}

/// Takes every access to a part of the reservation away.
fn forbid(at: u64, bytes: u64) {
    if bytes > 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let replaced = map_fixed(at, bytes, libc::PROT_NONE, flags, -1, 0);
        assert!(replaced, "unmap device memory: {}", std::io::Error::last_os_error());
    }
}

/// Reserves addresses without memory; `None` if the system refuses.
fn reserve(bytes: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let hint = PREFERRED_BASE as *mut libc::c_void;
    // SAFETY: without MAP_FIXED the call replaces nothing.
    let start = unsafe { libc::mmap(hint, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as u64)
}

/// Replaces a part of the reservation; whether it succeeded.
fn map_fixed(at: u64, bytes: u64, access: i32, flags: i32, descriptor: i32, offset: u64) -> bool {
    // SAFETY: callers pass ranges inside this module's own reservation, in which no Rust object lives.
    let start =
        unsafe { libc::mmap(at as *mut libc::c_void, bytes as usize, access, flags, descriptor, offset.cast_signed()) };
    start != libc::MAP_FAILED
}
