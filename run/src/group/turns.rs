//! Turns: the order in which members hold memory, in a group where members park each other.
//!
//! A member that does not have memory *waits*: for a wake, or for a request. While the bytes of the
//! oldest waiting member are short, another member is *due* to be parked, a single one at a time.
//! Every member comes to the same answer from the shared words, and parks itself. So no member has
//! to reach another, and a member that dies is no longer part of the answer.
//!
//! * Due is the member that has been idle for longest, of those awake for their shortest time or
//!   longer.
//! * Without an idle member, the busy member that has been awake for longest is due, after
//!   [`SLICE`] times its shortest time awake.
//! * A waiting member is served in the order of waiting. So each waits at most for the slices,
//!   parks and wakes of the members before.
//! * If the control group around a member wants memory back, the member is due, too: of several,
//!   the one that has been idle for longest, and never a busy one.

/// A busy member may be awake for so many times its shortest time.
pub(super) const SLICE: u64 = 4;

/// Milliseconds after which a member without calls counts as idle.
pub(super) const IDLE: u64 = 50;

/// The state of a member that the others read, in bytes and in milliseconds of the machine's
/// monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Contender {
    /// Bytes held.
    pub(super) held: u64,
    /// Bytes that the member will hold once it is served; its held bytes at most while it does not
    /// wait.
    pub(super) needs: u64,
    /// When the member started to wait. 0: it does not wait.
    pub(super) waits_since: u64,
    /// When the member became awake; the present on the way to the device. 0: it is parked, or
    /// cannot be parked.
    pub(super) awake_since: u64,
    /// When the member made its last call. 0: it is busy. Busy members have no times to compare,
    /// since each knows its own better than those of others: none would ever be the one to go.
    pub(super) idle_since: u64,
    /// The shortest time awake.
    pub(super) awake_at_least: u64,
    /// Bytes that the control groups around the member want back, although it has no cache to give.
    pub(super) pressed: u64,
}

/// Returns the member that has waited for longest. Of two that started at once, the first in the
/// table.
pub(super) fn first_waiting(members: &[Contender]) -> Option<usize> {
    let waiting = members.iter().enumerate().filter(|(_, member)| member.waits_since != 0);
    waiting.min_by_key(|(_, member)| member.waits_since).map(|(at, _)| at)
}

/// Returns the bytes that the member `at` does not have, in a group with a limit.
pub(super) fn short(limit: u64, members: &[Contender], at: usize) -> u64 {
    let held = members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.held));
    let missing = members[at].needs.saturating_sub(members[at].held);
    missing.saturating_sub(limit.saturating_sub(held))
}

/// Returns whether a member works. A waiting member does nothing but wait.
fn is_busy(member: &Contender) -> bool {
    member.waits_since == 0 && member.idle_since == 0
}

/// Returns the member to be parked now.
pub(super) fn due(limit: u64, members: &[Contender], now: u64) -> Option<usize> {
    let first = first_waiting(members)?;
    if short(limit, members, first) == 0 {
        return None;
    }
    let may = |&(at, member): &(usize, &Contender)| {
        let awake = now.saturating_sub(member.awake_since);
        let least = member.awake_at_least.saturating_mul(if is_busy(member) { SLICE } else { 1 });
        at != first && member.awake_since != 0 && member.held != 0 && awake >= least
    };
    let age = |member: &Contender| match (member.waits_since, member.idle_since) {
        (0, 0) => member.awake_since,
        (0, idle_since) => idle_since,
        (waits_since, _) => waits_since,
    };
    members.iter().enumerate().filter(may).min_by_key(|(_, member)| (is_busy(member), age(member))).map(|(at, _)| at)
}

/// Returns the member to be parked now because the control groups around it want memory back: they
/// may have a process ended if they do not get it. A busy member would come back at once.
pub(super) fn due_outside(members: &[Contender], now: u64) -> Option<usize> {
    let may = |&(_, member): &(usize, &Contender)| {
        let is_old = now.saturating_sub(member.awake_since) >= member.awake_at_least;
        member.pressed != 0 && member.held != 0 && member.awake_since != 0 && is_old && member.idle_since != 0
    };
    members.iter().enumerate().filter(may).min_by_key(|(_, member)| member.idle_since).map(|(at, _)| at)
}

/// The place of a waiting member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The member is served now: no other has waited for longer, and the limit has room.
    Served,
    /// Others come first, or have to be parked.
    Waits,
    /// The bytes would not fit if all others were parked.
    Hopeless,
}

/// Returns the place of the member `at`, which waits.
pub(super) fn turn(limit: u64, members: &[Contender], at: usize) -> Turn {
    let can_go = |(other, member): (usize, &Contender)| {
        if other != at && member.awake_since != 0 { member.held } else { 0 }
    };
    let most = members.iter().enumerate().map(can_go).fold(0_u64, u64::saturating_add);
    match short(limit, members, at) {
        short if short > most => Turn::Hopeless,
        0 if first_waiting(members) == Some(at) => Turn::Served,
        _ => Turn::Waits,
    }
}

#[cfg(test)]
mod tests {
    use super::{Contender, Turn, due, due_outside, first_waiting, short, turn};
    use proptest::prelude::*;

    const LIMIT: u64 = 100;

    fn awake(held: u64, since: u64, idle_since: u64) -> Contender {
        Contender { held, awake_since: since, idle_since, awake_at_least: 1_000, ..Contender::default() }
    }

    fn waits(needs: u64, since: u64) -> Contender {
        Contender { needs, waits_since: since, ..Contender::default() }
    }

    #[test]
    fn nobody_is_parked_while_there_is_room_or_nobody_waits() {
        assert_eq!(due(LIMIT, &[awake(60, 1, 1), awake(40, 1, 1)], 9_000), None);
        assert_eq!(due(LIMIT, &[awake(60, 1, 1), waits(40, 5)], 9_000), None);
        assert_eq!(turn(LIMIT, &[awake(60, 1, 1), waits(40, 5)], 1), Turn::Served);
        assert_eq!(turn(LIMIT, &[awake(0, 1, 1), waits(101, 5)], 1), Turn::Hopeless);
    }

    #[test]
    fn the_longest_idle_member_is_parked_first() {
        let members = [awake(50, 1, 4_000), awake(50, 1, 3_000), waits(30, 5)];
        assert_eq!(due(LIMIT, &members, 9_000), Some(1));
        assert_eq!(turn(LIMIT, &members, 2), Turn::Waits);
    }

    #[test]
    fn a_member_stays_awake_for_its_shortest_time_and_a_busy_one_for_longer() {
        let members = |idle_since| [awake(100, 10_000, idle_since), waits(30, 5)];
        assert_eq!(due(LIMIT, &members(10_100), 10_900), None);
        assert_eq!(due(LIMIT, &members(10_100), 11_000), Some(0));
        assert_eq!(due(LIMIT, &members(0), 13_990), None, "busy");
        assert_eq!(due(LIMIT, &members(0), 14_000), Some(0));
        // An idle member goes before a busy one, which has been awake for longer.
        assert_eq!(due(LIMIT, &[awake(50, 1, 0), awake(50, 5_000, 8_000), waits(30, 5)], 9_000), Some(1));
        assert_eq!(due(LIMIT, &[awake(50, 2, 0), awake(50, 1, 0), waits(30, 5)], 9_000), Some(1));
    }

    #[test]
    fn members_are_served_in_the_order_of_waiting() {
        let members = [waits(30, 8), waits(100, 5), awake(10, 1, 1)];
        assert_eq!(first_waiting(&members), Some(1));
        assert_eq!((turn(LIMIT, &members, 0), short(LIMIT, &members, 0)), (Turn::Waits, 0));
        // A member that waits for more gives what it has to an older one.
        let holding = Contender { held: 60, needs: 90, waits_since: 9, ..awake(0, 1, 8_900) };
        assert_eq!(due(LIMIT, &[waits(50, 5), holding], 9_000), Some(1));
    }

    #[test]
    fn of_members_whose_memory_is_wanted_back_the_longest_idle_is_parked() {
        let pressed = |held, since, idle_since| Contender { pressed: 5, ..awake(held, since, idle_since) };
        let members = [pressed(50, 1, 4_000), awake(50, 1, 2_000), pressed(50, 1, 3_000), pressed(50, 1, 0)];
        assert_eq!(due_outside(&members, 9_000), Some(2), "another group's member, and a busy one, stay");
        assert_eq!(due(LIMIT, &members, 9_000), None, "nobody waits");
        assert_eq!(due_outside(&[pressed(50, 8_500, 8_600)], 9_000), None, "not awake for long enough");
        assert_eq!(due_outside(&[pressed(0, 1, 3_000), pressed(50, 0, 3_000), pressed(50, 1, 0)], 9_000), None);
    }

    #[test]
    fn a_wait_goes_on_while_another_wakes() {
        let waking =
            |awake_since| Contender { held: 80, needs: 90, waits_since: 5, awake_since, ..Contender::default() };
        assert_eq!(turn(LIMIT, &[waking(9_000), waits(60, 8)], 1), Turn::Waits);
        assert_eq!(due(LIMIT, &[waking(9_000), waits(60, 8)], 9_000), None, "the first is served first");
        assert_eq!(turn(LIMIT, &[waking(0), waits(60, 8)], 1), Turn::Hopeless, "parked: what it holds stays");
    }

    fn anyone() -> impl Strategy<Value = Contender> {
        let time = || prop_oneof![Just(0), 0..5_000_u64];
        (0..60_u64, 0..120_u64, time(), time(), 0..5_000_u64, 0..2_000_u64).prop_map(
            |(held, needs, waits_since, awake_since, idle_since, awake_at_least)| Contender {
                held,
                needs,
                waits_since,
                awake_since,
                idle_since,
                awake_at_least,
                pressed: 0,
            },
        )
    }

    proptest! {
        /// Figures of a foreign file cause no panic.
        #[test]
        fn every_figure_is_survived(
            limit in any::<u64>(), now in any::<u64>(),
            words in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..5),
        ) {
            let members: Vec<_> = words
                .iter()
                .map(|&(held, needs, waits_since, awake_since)| Contender {
                    held, needs, waits_since, awake_since, idle_since: needs, awake_at_least: held, pressed: needs,
                })
                .collect();
            let _ = (due(limit, &members, now), due_outside(&members, now));
            (0..members.len()).for_each(|at| _ = turn(limit, &members, at));
        }

        /// Whoever fits into the limit is served in the end, if members park themselves when due.
        #[test]
        fn the_first_that_waits_is_served(members in prop::collection::vec(anyone(), 1..8)) {
            let mut members = members;
            // All can be parked, and long enough after the last number all may be.
            members.iter_mut().for_each(|member| member.awake_since = member.awake_since.max(1));
            let Some(first) = first_waiting(&members) else { return Ok(()) };
            members[first].needs = members[first].needs.min(LIMIT);
            for _ in 0..members.len() {
                if let Some(at) = due(LIMIT, &members, 1_000_000) {
                    prop_assert_ne!(at, first);
                    (members[at].held, members[at].awake_since) = (0, 0);
                }
            }
            prop_assert_eq!(turn(LIMIT, &members, first), Turn::Served, "{:?}", members);
        }
    }
}
