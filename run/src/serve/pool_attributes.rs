//! Attributes of a served default pool: `cuMemPoolGetAttribute`, `cuMemPoolSetAttribute`, and the
//! memory that `cuMemPoolTrimTo` gives back.
//!
//! The pool holds the segments of the device's contexts beside what the driver's own pool holds.
//! Segments serve `cuMemAlloc`, too, so its memory is in the figures.

use crate::serve::parking::is_parked;
use crate::serve::process::Process;
use crate::serve::served::{DEVICE, Served};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuDevice, CuMemPoolAttribute, CuMemoryPool};
use core::ffi::c_void;
use std::sync::Arc;

/// Figures of a pool that a program reads (`CUmemPool_attribute`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PoolFigure {
    Reserved,
    HighestReserved,
    Used,
    HighestUsed,
}

impl PoolFigure {
    /// Returns the figure of an attribute.
    const fn of(attribute: CuMemPoolAttribute) -> Option<Self> {
        match attribute {
            CuMemPoolAttribute::RESERVED_MEM_CURRENT => Some(Self::Reserved),
            CuMemPoolAttribute::RESERVED_MEM_HIGH => Some(Self::HighestReserved),
            CuMemPoolAttribute::USED_MEM_CURRENT => Some(Self::Used),
            CuMemPoolAttribute::USED_MEM_HIGH => Some(Self::HighestUsed),
            _ => None,
        }
    }
}

impl Process {
    /// `cuMemPoolGetAttribute`.
    ///
    /// # Safety
    /// The pool lives, and `value` is null, or writable for the attribute.
    pub unsafe fn mem_pool_get_attribute(
        &self,
        pool: CuMemoryPool,
        attribute: CuMemPoolAttribute,
        value: *mut c_void,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.mem_pool_get_attribute(pool, attribute, value) };
        if code.is_success()
            && let Some(figure) = PoolFigure::of(attribute)
            && let Some(device) = self.pools.served_device(pool)
        {
            // SAFETY: the attribute's value is a `cuuint64_t`, which the driver has written.
            let own = unsafe { value.cast::<u64>().read_unaligned() };
            let sum = self.served_on_all(device).iter().fold(own, |sum, served| sum + figure_of(served, figure));
            // SAFETY: as above.
            unsafe { value.cast::<u64>().write_unaligned(sum) };
        }
        code
    }

    /// `cuMemPoolSetAttribute`. The driver accepts nothing but 0 for a greatest figure, which
    /// starts anew from the figure of now.
    ///
    /// # Safety
    /// The pool lives, and `value` is null, or readable for the attribute.
    pub unsafe fn mem_pool_set_attribute(
        &self,
        pool: CuMemoryPool,
        attribute: CuMemPoolAttribute,
        value: *mut c_void,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.mem_pool_set_attribute(pool, attribute, value) };
        if code.is_success()
            && let Some(figure @ (PoolFigure::HighestReserved | PoolFigure::HighestUsed)) = PoolFigure::of(attribute)
            && let Some(device) = self.pools.served_device(pool)
        {
            for served in self.served_on_all(device) {
                // A failure leaves the greatest figures as they were.
                let _ = served.begin_highest_anew(figure == PoolFigure::HighestUsed);
            }
        }
        code
    }

    /// Gives cached memory of a device back to the driver, until `keep` bytes are held. What is
    /// parked holds no memory.
    pub(super) fn trim_served(&self, device: CuDevice, keep: u64) {
        let phase = self.hold_phase();
        if is_parked(&phase) {
            return;
        }
        let reached = self.frees.settle(self.real);
        let all = self.served_on_all(device);
        let mut excess =
            all.iter().map(|served| figure_of(served, PoolFigure::Reserved)).sum::<u64>().saturating_sub(keep);
        for served in all {
            served.device().advance(reached);
            let held = figure_of(&served, PoolFigure::Reserved);
            // A failure leaves more than asked for, which the program sees in the pool's figures.
            let _ = served.allocator().process_events(DEVICE);
            let _ = served.allocator().trim(DEVICE, held.saturating_sub(excess));
            excess = excess.saturating_sub(held - figure_of(&served, PoolFigure::Reserved).min(held));
        }
    }

    /// Returns the served contexts of a device.
    fn served_on_all(&self, device: CuDevice) -> Vec<Arc<Served>> {
        let mut all = self.contexts.all();
        all.retain(|served| served.ordinal() == device);
        all
    }
}

/// Returns a figure of a context's allocator.
fn figure_of(served: &Served, figure: PoolFigure) -> u64 {
    let Ok(stats) = served.allocator().stats(DEVICE).map(|stats| stats.totals()) else { return 0 };
    let [reserved, used] = [stats.reserved_bytes(), stats.allocated_bytes()];
    let [highest_reserved, highest_used] = served.highest([reserved.peak, used.peak].map(i64::cast_unsigned));
    match figure {
        PoolFigure::Reserved => reserved.current.cast_unsigned(),
        PoolFigure::HighestReserved => highest_reserved,
        PoolFigure::Used => used.current.cast_unsigned(),
        PoolFigure::HighestUsed => highest_used,
    }
}
