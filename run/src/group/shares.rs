//! Shares: how much each owner may take, and must give back.

use super::layout::{Figures, NONE};

/// Returns the bytes within the reach of owner `me`.
///
/// Out of reach are the held bytes of all owners, and the unheld bytes below each owner's `low`.
pub(super) fn room(limit: u64, owners: &[Figures], me: usize) -> u64 {
    let others = owners.iter().enumerate().filter(|(at, _)| *at != me);
    let kept = others.fold(0_u64, |sum, (_, owner)| sum.saturating_add(owner.held.max(owner.low)));
    let mine = &owners[me];
    limit.saturating_sub(kept).min(mine.max).saturating_sub(mine.held)
}

/// Returns the bytes to give back now by owner `me`.
///
/// While every owner is served, the debts are 0. The missing bytes of the refused are divided among
/// the owners above their share, by how much each is above.
pub(super) fn owed(limit: u64, owners: &[Figures], me: usize) -> u64 {
    let wanted = |of: usize| {
        let others = owners.iter().enumerate().filter(|(at, _)| *at != of);
        others.fold(0_u64, |sum, (_, owner)| sum.saturating_add(owner.want))
    };
    if limit == NONE || wanted(me) == 0 {
        return 0;
    }
    let level = level(limit, owners);
    let above = |owner: &Figures| owner.held.saturating_sub(share(owner, level));
    let all = owners.iter().fold(0_u64, |sum, owner| sum.saturating_add(above(owner)));
    let mine = above(&owners[me]);
    if mine == 0 {
        return 0;
    }
    let held = owners.iter().fold(0_u64, |sum, owner| sum.saturating_add(owner.held));
    let short = wanted(me).saturating_sub(limit.saturating_sub(held));
    let part = (u128::from(short) * u128::from(mine)).div_ceil(u128::from(all));
    mine.min(u64::try_from(part).unwrap_or(u64::MAX))
}

/// Returns the bytes of an owner's share: weight times level, and at least `low`, at most
/// `max`. The level is in bytes for each unit of weight, in units of 2⁻³².
fn share(owner: &Figures, level: u128) -> u64 {
    let bytes = u64::try_from((u128::from(owner.weight) * level) >> 32).unwrap_or(u64::MAX);
    bytes.max(owner.low).min(owner.max)
}

/// Returns the highest level at which the shares of all owners are within the limit: as water in
/// vessels, bytes above an owner's `max` rise in the vessels beside.
fn level(limit: u64, owners: &[Figures]) -> u128 {
    let fits = |level: u128| {
        let sum = owners.iter().fold(0_u128, |sum, owner| sum + u128::from(share(owner, level)));
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
    use super::{level, owed, room, share};
    use crate::group::layout::{Figures, NONE};
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn owner(held: u64, weight: u64) -> Figures {
        Figures { held, low: 0, max: NONE, weight, want: 0 }
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
            owners[0].want = want.min(share(&owners[0], level));
            let short = owners[0].want.saturating_sub(rest);
            let debts: u64 = (1..owners.len()).map(|me| owed(limit, &owners, me)).sum();
            // Shares are cut to whole bytes, so the sum of all may not have a byte for each owner.
            prop_assert!(debts + owners.len() as u64 >= short, "{} of {}", debts, short);
            prop_assert!(debts <= short + owners.len() as u64);
        }
    }
}
