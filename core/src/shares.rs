//! Shares of limited memory: how much each owner may take, and how much it gives back.
//!
//! An owner is a tag of an allocator, or a process of a group. Its words are those of Linux's
//! control groups: `low` is kept for it, it holds at most `max`, and by its `weight` it has more or
//! less of the rest. The functions compute, and know no lock and no device.
//!
//! ```text
//! taking             room = min(max, limit − Σ of others max(held, low)) − held
//! giving in turn     the most above `low` by weight gives first, down to the next one   (tags)
//! giving by parts    each above its share gives a part of what is short                 (groups)
//! share              weight × level, from `low` to `max`, with Σ shares ≤ limit
//! ```
//!
//! There are two ways to give because the givers differ. An allocator takes memory back from any of
//! its tags at once, under the lock of the request that is short: an order is enough, and each step
//! is checked against what is left. A process of a group gives its own memory only, whenever it
//! comes to it, and sees the others' figures as they were: without an order, the parts of all have
//! to make up what is short.

use core::cmp::{Ordering, Reverse};

/// No bound.
pub const NONE: u64 = u64::MAX;

/// The figures of an owner: what it has, and its limits. Every value is possible but for a weight
/// of 0, because another process may have written them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Bytes held.
    pub held: u64,
    /// Bytes kept for the owner.
    pub low: u64,
    /// The most bytes to hold, or [`NONE`].
    pub max: u64,
    /// The weight of the owner, above 0 and below 2³².
    pub weight: u64,
    /// Bytes of the last refused request, or 0.
    pub want: u64,
}

impl Figures {
    /// Returns the bytes of the owner's share: weight times level, and at least `low`, at most
    /// `max`. The level is in bytes for each unit of weight, in units of 2⁻³².
    fn share(&self, level: u128) -> u64 {
        let bytes = u64::try_from((u128::from(self.weight) * level) >> 32).unwrap_or(u64::MAX);
        bytes.max(self.low).min(self.max)
    }
}

/// An owner above its `low`, in the order of giving: the greatest gives first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Giver<N> {
    /// The owner's name. Of two that are equally high, the lower one gives first.
    pub name: N,
    /// Bytes above `low`.
    pub over: u64,
    /// The weight of the owner, above 0 and below 2³².
    pub weight: u64,
}

impl<N> Giver<N> {
    /// Returns the bytes to be given so that the giver is as high as the next one, rounded up to 1.
    fn down_to(&self, next: Option<&Self>) -> u64 {
        let level = |next: &Self| u128::from(next.over) * u128::from(self.weight) / u128::from(next.weight);
        // At most `over`, since `next` is not higher.
        self.over.saturating_sub(next.map_or(0, level) as u64).max(1)
    }
}

impl<N: Ord> PartialOrd for Giver<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<N: Ord> Ord for Giver<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        // 96 bits: no overflow.
        let of = |over: u64, weight: u64| u128::from(over) * u128::from(weight);
        let by_weight = of(self.over, other.weight).cmp(&of(other.over, self.weight));
        by_weight.then_with(|| Reverse(&self.name).cmp(&Reverse(&other.name)))
    }
}

/// Returns the first giver after `spent`, and the bytes by which it is above the next one. `spent`
/// is the last one that had nothing to give.
pub fn next_giver<N: Copy + Ord>(
    givers: impl Iterator<Item = Giver<N>>,
    spent: Option<Giver<N>>,
) -> Option<(Giver<N>, u64)> {
    let (mut first, mut second) = (None, None);
    for giver in givers.filter(|giver| giver.over > 0 && spent.is_none_or(|spent| *giver < spent)) {
        if first < Some(giver) {
            (first, second) = (Some(giver), first);
        } else if second < Some(giver) {
            second = Some(giver);
        }
    }
    first.map(|giver| (giver, giver.down_to(second.as_ref())))
}

/// Returns the sum of a figure of all owners, except for the one at `without`.
fn sum(owners: &[Figures], without: Option<usize>, figure: impl Fn(&Figures) -> u64) -> u64 {
    let counted = owners.iter().enumerate().filter(|(at, _)| Some(*at) != without);
    counted.fold(0_u64, |sum, (_, owner)| sum.saturating_add(figure(owner)))
}

/// Returns the bytes that the owner at `me` can still take.
///
/// Out of reach are the held bytes of all owners, and the unheld bytes below each owner's `low`.
#[must_use]
pub fn room(limit: u64, owners: &[Figures], me: usize) -> u64 {
    let kept = sum(owners, Some(me), |owner| owner.held.max(owner.low));
    limit.saturating_sub(kept).min(owners[me].max).saturating_sub(owners[me].held)
}

/// Returns the bytes to give back now by the owner at `me`.
///
/// While every owner is served and the limit holds, the debts are 0. The missing bytes of the
/// refused, and the bytes held above a limit that was lowered, are divided among the owners above
/// their share, by how much each is above.
#[must_use]
pub fn owed(limit: u64, owners: &[Figures], me: usize) -> u64 {
    let wanted = sum(owners, Some(me), |owner| owner.want);
    let held = sum(owners, None, |owner| owner.held);
    if limit == NONE || wanted == 0 && held <= limit {
        return 0;
    }
    let level = level(limit, owners);
    let above = |owner: &Figures| owner.held.saturating_sub(owner.share(level));
    let mine = above(&owners[me]);
    if mine == 0 {
        return 0;
    }
    let short = wanted.saturating_add(held).saturating_sub(limit);
    let part = (u128::from(short) * u128::from(mine)).div_ceil(u128::from(sum(owners, None, above)));
    mine.min(u64::try_from(part).unwrap_or(u64::MAX))
}

/// Returns the highest level at which the shares of all owners are within the limit: as water in
/// vessels, bytes above an owner's `max` rise in the other vessels.
fn level(limit: u64, owners: &[Figures]) -> u128 {
    let fits = |level: u128| {
        let sum = owners.iter().fold(0_u128, |sum, owner| sum + u128::from(owner.share(level)));
        sum <= u128::from(limit)
    };
    // No weight is below 1, so the limit itself is above every level that matters.
    let (mut low, mut high) = (0, (u128::from(limit) + 1) << 32);
    while high - low > 1 {
        let middle = u128::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{Figures, Giver, NONE, level, next_giver, owed, room};
    use proptest::prelude::*;
    use std::vec::Vec;

    const GIB: u64 = 1 << 30;

    fn owner(held: u64, weight: u64) -> Figures {
        Figures { held, low: 0, max: NONE, weight, want: 0 }
    }

    #[test]
    fn a_giver_comes_down_to_the_next_by_weight() {
        let giver = |over, weight| Giver { name: 0, over, weight };
        // 30 for a weight of 3 are as high as 20 for a weight of 2.
        assert_eq!(giver(100, 3).down_to(Some(&giver(20, 2))), 70);
        assert_eq!(giver(100, 3).down_to(None), 100);
        assert_eq!(giver(30, 3).down_to(Some(&giver(20, 2))), 1);
    }

    #[test]
    fn givers_come_in_one_order_whoever_names_them_first() {
        let givers = [(None, 30, 1), (Some(1), 40, 2), (Some(2), 20, 1), (Some(3), 0, 1)];
        let givers = givers.map(|(name, over, weight)| Giver { name, over, weight });
        for start in 0..givers.len() {
            let (mut spent, mut order) = (None, Vec::new());
            while let Some((giver, most)) = next_giver((0..4).map(|at| givers[(start + at) % 4]), spent) {
                order.push((giver.name, most));
                spent = Some(giver);
            }
            assert_eq!(order, [(None, 10), (Some(1), 1), (Some(2), 20)]);
        }
    }

    #[test]
    fn bytes_below_a_low_are_kept_for_their_owner() {
        let owners = [owner(4, 1), Figures { low: 5, held: 2, ..owner(0, 1) }];
        assert_eq!(room(10, &owners, 0), 1);
        assert_eq!(room(10, &owners, 1), 4);
        let capped = [Figures { max: 6, ..owner(4, 1) }];
        assert_eq!(room(10, &capped, 0), 2);
    }

    #[test]
    fn nobody_owes_while_everybody_is_served() {
        assert_eq!(owed(10, &[owner(10, 1), owner(0, 1)], 0), 0);
    }

    #[test]
    fn who_is_above_its_share_gives_the_refused_what_is_short() {
        let refused = Figures { want: 3 * GIB, ..owner(0, 1) };
        // Free are 2 GiB, so 1 GiB is short.
        let owners = [owner(8 * GIB, 1), refused];
        assert_eq!(owed(10 * GIB, &owners, 0), GIB);
        assert_eq!(owed(10 * GIB, &owners, 1), 0);
        // Two above their shares of 3.33 GiB divide the debt; a share by weight is kept.
        let owners = [owner(5 * GIB, 1), owner(5 * GIB, 1), refused];
        let debts = [0, 1].map(|me| owed(10 * GIB, &owners, me));
        assert!(debts[0] == debts[1] && debts[0] == 3 * GIB / 2, "{debts:?}");
        let owners = [owner(5 * GIB, 300), owner(5 * GIB, 100), Figures { weight: 100, ..refused }];
        assert_eq!(owed(10 * GIB, &owners, 0), 0);
        assert_eq!(owed(10 * GIB, &owners, 1), 3 * GIB);
    }

    #[test]
    fn a_low_counts_as_a_share() {
        let refused = Figures { want: 4 * GIB, ..owner(0, 1) };
        let owners = [Figures { low: 8 * GIB, ..owner(8 * GIB, 1) }, owner(2 * GIB, 1), refused];
        assert_eq!(owed(10 * GIB, &owners, 0), 0);
        assert_eq!(owed(10 * GIB, &owners, 1), GIB);
    }

    fn anyone() -> impl Strategy<Value = Figures> {
        let bytes = prop_oneof![0..1000_u64, Just(0), any::<u64>()];
        let max = prop_oneof![Just(NONE), 0..1000_u64];
        (bytes.clone(), bytes.clone(), max, 1..1000_u64, bytes).prop_map(|(held, low, max, weight, want)| Figures {
            held,
            low,
            max,
            weight,
            want,
        })
    }

    proptest! {
        /// Figures of a foreign file cause no panic, and no debt above the held bytes.
        #[test]
        fn every_figure_is_survived(limit in any::<u64>(), owners in prop::collection::vec(anyone(), 1..6)) {
            for me in 0..owners.len() {
                prop_assert!(room(limit, &owners, me) <= limit);
                prop_assert!(owed(limit, &owners, me) <= owners[me].held);
            }
        }

        /// The sum stays within the limit, and a low is always within reach.
        #[test]
        fn a_taken_room_keeps_the_limit(limit in 0..10_000_u64, lows in prop::collection::vec(0..2000_u64, 1..6)) {
            prop_assume!(lows.iter().sum::<u64>() <= limit);
            let mut owners: Vec<_> = lows.iter().map(|&low| Figures { low, ..owner(0, 1) }).collect();
            for me in 0..owners.len() {
                let room = room(limit, &owners, me);
                prop_assert!(room >= owners[me].low);
                owners[me].held += room;
            }
            prop_assert_eq!(owners.iter().map(|owner| owner.held).sum::<u64>(), limit);
        }

        /// An owner within the share is owed all missing bytes.
        #[test]
        fn debts_serve_who_is_within_its_share(
            weights in prop::collection::vec(1..1000_u64, 2..6),
            cuts in prop::collection::vec(0..10_000_u64, 5),
            want in 1..10_000_u64,
        ) {
            let limit = 10_000;
            // The first owner wants; the others hold parts of the limit.
            let mut owners: Vec<_> = weights.iter().map(|&weight| owner(0, weight)).collect();
            let mut rest = limit;
            for (owner, cut) in owners.iter_mut().zip(cuts).skip(1) {
                owner.held = cut.min(rest);
                rest -= owner.held;
            }
            let level = level(limit, &owners);
            owners[0].want = want.min(owners[0].share(level));
            let short = owners[0].want.saturating_sub(rest);
            let debts: u64 = (1..owners.len()).map(|me| owed(limit, &owners, me)).sum();
            // Shares are cut to whole bytes, so the sum of all may not have a byte for each owner.
            prop_assert!(debts + owners.len() as u64 >= short, "{} of {}", debts, short);
            prop_assert!(debts <= short + owners.len() as u64);
        }
    }
}
