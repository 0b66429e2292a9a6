//! Rules: which units go back, in which order, and when to stop.
//!
//! A rule is an iterator over units. Each step looks at the present heaps, so a rule continues
//! after the last unit was given back, and the first unit of a rule predicts the first release.

use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::units::{Unit, first_oversize, segments_down};
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::rounding::PoolKind;
use core::cell::Cell;
use core::iter::{from_fn, once};

/// Returns the order of kinds in which the whole cache of a pool goes back, which is PyTorch's.
pub(in crate::arena) fn by_pool(pool: u32) -> [PoolKind; 2] {
    if pool == 0 { [PoolKind::Large, PoolKind::Small] } else { [PoolKind::Small, PoolKind::Large] }
}

/// The rule of `garbage_collection_threshold`: large segments of the default pool, as long as more
/// than the threshold is held. Each pass computes the average age of the segments, and yields every
/// segment that is at least as old.
pub(in crate::arena) fn old<P: Platform>(held: &Holdings<'_, P>) -> impl Iterator<Item = Unit> {
    let heaps = held.heaps;
    let large = || heaps.heaps_of(once(0), |_| [PoolKind::Large]).flat_map(|(slot, _used)| heaps.segments_of(slot));
    let pass = move || {
        if !exceeds_threshold(held) {
            return None;
        }
        let (ages, count) = large().fold((0, 0), |(ages, count), unit| (ages + unit.age, count + 1));
        // Fixed for the whole pass. A pass without a unit ends the rule, because other threads have
        // taken every old one.
        let average = ages as f64 / f64::from(count);
        let mut old = large().filter(move |unit| unit.age as f64 >= average).peekable();
        old.peek().is_some().then_some(old)
    };
    from_fn(pass).flatten()
}

/// Returns whether more is held than the collection threshold allows. Returns false if there is no
/// limit or no threshold.
fn exceeds_threshold<P: Platform>(held: &Holdings<'_, P>) -> bool {
    let threshold = || held.settings.config.lock().garbage_collection_threshold();
    let most = |threshold: f64| (threshold * held.ledger.limit() as f64) as u64;
    held.driver.flags.has(flags::AGES) && threshold().is_some_and(|threshold| held.ledger.reserved() > most(threshold))
}

/// The rule of `max_split_size_mb` for a request that is short of memory. Yields oversize segments
/// of the request's own heap until they are enough: the smallest one that is large enough, or else
/// from the largest down. `missing` is the number of bytes that are still missing.
pub(in crate::arena) fn oversize<P: Platform>(
    heaps: &Heaps<P>,
    request: &Request,
    missing: &Cell<u64>,
) -> impl Iterator<Item = Unit> {
    let oversize = heaps.lock(request.slot).rules.max_split;
    let wanted = request.size.max(oversize);
    missing.set(wanted);
    // The request makes its pool one of a captured graph, which keeps its memory.
    let keeps = request.capturing && request.pool != 0;
    from_fn(move || {
        // `u64::MAX` means that no largest split size is set, so no segment is oversize.
        if keeps || oversize == u64::MAX || missing.get() == 0 {
            return None;
        }
        let unit = first_oversize(&mut heaps.lock(request.slot), request.slot, wanted, oversize)?;
        missing.set(missing.get().saturating_sub(unit.bytes));
        Some(unit)
    })
}

/// The rule of [`trim`](Holdings::trim): the largest segment of all heaps, as long as more
/// than `keep` bytes are held. Among segments of equal size, the one with the highest address.
pub(super) fn largest<P: Platform>(held: &Holdings<'_, P>, keep: u64) -> impl Iterator<Item = Unit> {
    from_fn(move || {
        if held.ledger.reserved() <= keep {
            return None;
        }
        // One walk over the heaps for each segment, which compares only the largest of each heap.
        let heaps = held.heaps.heaps_of(held.heaps.giving_pools(), |_| [PoolKind::Large, PoolKind::Small]);
        let of_each = heaps.filter_map(|(slot, _used)| segments_down(&held.heaps.lock(slot), slot).next());
        of_each.max_by_key(|unit| (unit.bytes, unit.at))
    })
}
