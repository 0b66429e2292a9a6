//! Predicts how long idle memory will stay idle, from how long memory of similar size was idle
//! before.
//!
//! ```text
//! ended idle times   ▂ ▂ █ ▁ . . . ▃ .      log2 of milliseconds, for each class of sizes
//!                            ▲ the unit's age: how many to the right lasted for long enough?
//! ```
//!
//! A training step uses most memory once, so nearly all ended idle times are one step long, and a
//! unit that is idle for longer belongs to no step any more. If there are both short and long
//! times, nothing is decided before the short times have passed. Beyond all ended times, memory is
//! expected to stay idle for as long again as it already has been. A few imagined units with this
//! expectation are added to the ended times, so that a single long time decides nothing.
//!
//! The idle time of a unit that was given back ends when a later unit of its class is obtained. If
//! this happens before the cost of both calls is repaid, the unit was released too early. After
//! many such mistakes, further decisions are more cautious.

use crate::heap::age::{Idle, Moment};

/// The number of size classes. Each is a power of two, from 1 MiB.
const CLASSES: usize = 20;

/// The number of lengths of idle times. Each is a power of two, from 1 ms.
const LENGTHS: usize = 24;

/// Once a class has this many idle times, all of them count half as much.
const MEMORY: u32 = 2048;

/// The number of imagined units, which stay idle for as long again.
const IMAGINED: u64 = 2;

/// The number of remembered groups of units.
const GROUPS: usize = 64;

/// The highest caution, which is 2^2 times the worthwhile time. The budget bounds the cost of
/// mistakes at any caution.
const MOST_CAUTION: u32 = 2;

/// The number of units after which the share obtained too early changes the caution.
const TRIAL: u32 = 32;

/// The time after which caution falls by 1 if there is no unit to judge by, in milliseconds.
const PATIENCE_MS: u32 = 60_000;

/// Units of one class that were given back at the same time.
#[derive(Clone, Copy, Debug)]
struct SizeGroup {
    class: u8,
    count: u32,
    /// The age of the youngest when they were given back, in milliseconds.
    age: u32,
    /// The time when they were given back.
    at: Moment,
    /// The milliseconds from then on for which giving them back is worth its cost.
    worth: u32,
}

/// The kind of a unit just obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obtained {
    /// It adds to what was held before.
    More,
    /// It replaces a unit that was given back.
    Again {
        /// Whether the unit was released too early.
        too_early: bool,
    },
}

/// The idle times of a device.
#[derive(Debug)]
pub(crate) struct Predictor {
    /// The number of idle times that have ended, by class and length.
    ended: [[u16; LENGTHS]; CLASSES],
    groups: [Option<SizeGroup>; GROUPS],
    /// The place of the oldest group.
    oldest: usize,
    caution: u32,
    /// The units obtained too early, and those that were not, since the caution was last judged.
    early: u32,
    late: u32,
    /// The time when the caution was last judged.
    judged: Moment,
}

impl Predictor {
    pub(super) const fn new() -> Self {
        Self {
            ended: [[0; LENGTHS]; CLASSES],
            groups: [None; GROUPS],
            oldest: 0,
            caution: 0,
            early: 0,
            late: 0,
            judged: Moment(0),
        }
    }

    /// Notes that a unit of `bytes` was used after `ms` milliseconds.
    pub(super) fn end(&mut self, bytes: u64, ms: u32) {
        let ended = &mut self.ended[class(bytes)];
        ended[length(ms)] += 1;
        if ended.iter().map(|&count| u32::from(count)).sum::<u32>() >= MEMORY {
            ended.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// Returns whether a unit of `bytes` that has been idle for `age` milliseconds is expected to
    /// stay so for another `ms`. This is true if three quarters of the units that were idle for
    /// longer than `age` did.
    pub(super) fn stays_idle(&self, bytes: u64, age: u32, ms: u64) -> bool {
        let age = u64::from(age);
        let (mut longer, mut stayed) = (IMAGINED, if age >= ms { IMAGINED } else { 0 });
        for (length, &ended) in self.ended[class(bytes)].iter().enumerate() {
            // The middle of its power of two.
            let lasted = 3 << length >> 1;
            if lasted > age {
                longer += u64::from(ended);
                stayed += if lasted - age >= ms { u64::from(ended) } else { 0 };
            }
        }
        4 * stayed >= 3 * longer
    }

    /// Returns the factor of the worthwhile time, as a power of two.
    pub(super) fn caution(&self) -> u32 {
        self.caution
    }

    /// Notes that `count` units of `bytes`, idle for `age` milliseconds, were given back. This is
    /// worth its cost if they are not needed for `worth` milliseconds.
    pub(super) fn give_back(&mut self, bytes: u64, count: u32, age: u32, now: Moment, worth: u64) {
        let class = class(bytes) as u8;
        let worth = u32::try_from(worth).unwrap_or(u32::MAX);
        let same = |group: &&mut SizeGroup| group.class == class && group.at == now;
        if let Some(group) = self.groups.iter_mut().flatten().find(same) {
            group.count += count;
            (group.age, group.worth) = (group.age.min(age), group.worth.max(worth));
            return;
        }
        self.groups[self.oldest] = Some(SizeGroup { class, count, age, at: now, worth });
        self.oldest = (self.oldest + 1) % GROUPS;
    }

    /// Notes that a unit of `bytes` was obtained, which replaces the last unit given back in its
    /// class.
    pub(super) fn obtain(&mut self, bytes: u64, now: Moment) -> Obtained {
        let wanted = class(bytes);
        let newest_first = (1..=GROUPS).map(|back| (self.oldest + GROUPS - back) % GROUPS);
        let found =
            newest_first.clone().find(|&at| self.groups[at].is_some_and(|group| usize::from(group.class) == wanted));
        let Some((at, group)) = found.and_then(|at| Some((at, self.groups[at]?))) else { return Obtained::More };
        self.groups[at] = (group.count > 1).then_some(SizeGroup { count: group.count - 1, ..group });
        let away = now.0.wrapping_sub(group.at.0);
        self.end(bytes, group.age.saturating_add(away));
        let too_early = away < group.worth;
        if too_early {
            self.early += 1;
        }
        Obtained::Again { too_early }
    }

    /// Counts the units that were given back and not needed for the worthwhile time, and judges by
    /// them: more caution if over half of the units were obtained too early, less if at most a
    /// quarter.
    pub(super) fn settle(&mut self, now: Moment) {
        for group in self.groups.iter_mut().flatten() {
            let away = now.0.wrapping_sub(group.at.0);
            // If `worth` is 0, the group has already been counted.
            if group.worth > 0 && away >= group.worth {
                group.worth = 0;
                self.late = self.late.saturating_add(group.count);
            }
        }
        let units = self.early.saturating_add(self.late);
        if units < TRIAL && now.0.wrapping_sub(self.judged.0) < PATIENCE_MS {
            return;
        }
        if self.early > units / 2 {
            self.caution = (self.caution + 1).min(MOST_CAUTION);
        } else if self.early <= units / 4 {
            self.caution = self.caution.saturating_sub(1);
        }
        (self.early, self.late, self.judged) = (0, 0, now);
    }

    /// Notes that the idle time of a unit has ended.
    pub(super) fn use_again(&mut self, bytes: u64, idle: Idle, between: Moment) {
        if let Some(ms) = idle.age(between) {
            self.end(bytes, ms);
        }
    }
}

/// Returns the class of a size.
fn class(bytes: u64) -> usize {
    (bytes.max(1 << 20).ilog2() as usize - 20).min(CLASSES - 1)
}

/// Returns the place of an idle time among the lengths.
fn length(ms: u32) -> usize {
    (ms.max(1).ilog2() as usize).min(LENGTHS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    const UNIT: u64 = 20 * MIB;

    /// The longest power of two for which a unit is expected to stay idle.
    fn longest(predictor: &Predictor, age: u32) -> u64 {
        (0..20).map(|log2| 1 << log2).take_while(|&ms| predictor.stays_idle(UNIT, age, ms)).last().unwrap_or(0)
    }

    #[test]
    fn without_experience_memory_stays_idle_for_as_long_again() {
        let predictor = Predictor::new();
        for (age, ms) in [(0, 0), (1, 1), (300, 256), (70_000, 65_536)] {
            assert_eq!(longest(&predictor, age), ms);
        }
    }

    #[test]
    fn the_period_of_a_program_is_seen_in_its_own_class_of_sizes() {
        let mut predictor = Predictor::new();
        (0..1000).for_each(|_| predictor.end(UNIT, 300));
        assert_eq!((longest(&predictor, 10), longest(&predictor, 200)), (256, 128));
        assert_eq!(longest(&predictor, 2000), 1024, "the unit has missed the step that it belonged to");
        assert!(!predictor.stays_idle(200 * MIB, 10, 100), "another class");
    }

    #[test]
    fn of_two_periods_the_longer_one_is_expected_once_the_shorter_one_has_passed() {
        let mut predictor = Predictor::new();
        (0..700).for_each(|_| predictor.end(UNIT, 100));
        (0..300).for_each(|_| predictor.end(UNIT, 10_000));
        assert_eq!((longest(&predictor, 0), longest(&predictor, 500)), (64, 8192));
    }

    #[test]
    fn a_single_long_time_decides_nothing() {
        let mut predictor = Predictor::new();
        (0..1000).for_each(|_| predictor.end(UNIT, 100));
        predictor.end(UNIT, 60_000);
        assert_eq!(longest(&predictor, 1000), 512);
    }

    #[test]
    fn old_times_are_forgotten() {
        let mut predictor = Predictor::new();
        (0..MEMORY).for_each(|_| predictor.end(UNIT, 10_000));
        (0..20 * MEMORY).for_each(|_| predictor.end(UNIT, 100));
        assert_eq!(longest(&predictor, 0), 64);
        assert_eq!(predictor.ended[class(UNIT)][length(10_000)], 0);
    }

    #[test]
    fn a_unit_obtained_in_place_of_another_ends_its_time() {
        let mut predictor = Predictor::new();
        predictor.give_back(UNIT, 2, 1000, Moment(5000), 4000);
        assert_eq!(predictor.obtain(200 * MIB, Moment(6000)), Obtained::More, "another class");
        assert_eq!(predictor.obtain(UNIT, Moment(6000)), Obtained::Again { too_early: true });
        assert_eq!(predictor.obtain(UNIT, Moment(9500)), Obtained::Again { too_early: false });
        assert_eq!(predictor.obtain(UNIT, Moment(9500)), Obtained::More);
        let ended = predictor.ended[class(UNIT)];
        // 1000 + 1000 ms, and 1000 + 4500 ms.
        assert_eq!((ended[length(2000)], ended[length(5500)]), (1, 1));
    }

    #[test]
    fn caution_follows_the_share_of_mistakes_and_fades() {
        let mut predictor = Predictor::new();
        for trial in 0..10 {
            let at = Moment(1000 * trial);
            predictor.give_back(UNIT, TRIAL, 1000, at, 100);
            for _ in 0..TRIAL {
                assert_eq!(predictor.obtain(UNIT, Moment(at.0 + 10)), Obtained::Again { too_early: true });
            }
            predictor.settle(Moment(at.0 + 20));
            assert_eq!(predictor.caution(), (trial + 1).min(MOST_CAUTION));
        }
        predictor.give_back(UNIT, TRIAL, 1000, Moment(20_000), 4000);
        predictor.settle(Moment(23_999));
        assert_eq!(predictor.caution(), MOST_CAUTION);
        predictor.settle(Moment(24_000));
        assert_eq!(predictor.caution(), MOST_CAUTION - 1);
        predictor.settle(Moment(24_001));
        predictor.settle(Moment(24_000 + PATIENCE_MS - 1));
        assert_eq!(predictor.caution(), MOST_CAUTION - 1, "counted once");
        predictor.settle(Moment(24_000 + PATIENCE_MS));
        assert_eq!(predictor.caution(), MOST_CAUTION - 2);
    }

    #[test]
    fn sizes_and_times_are_classed_by_powers_of_two() {
        for (bytes, of) in [(0, 0), (MIB, 0), (2 * MIB - 1, 0), (2 * MIB, 1), (40 * MIB, 5), (1 << 50, CLASSES - 1)] {
            assert_eq!(class(bytes), of, "{bytes} bytes");
        }
        for (ms, of) in [(0, 0), (1, 0), (2, 1), (1023, 9), (1024, 10), (u32::MAX, LENGTHS - 1)] {
            assert_eq!(length(ms), of, "{ms} ms");
        }
    }

    #[test]
    fn three_quarters_have_to_stay_idle_for_the_whole_time() {
        let with = |count: u32| {
            let mut predictor = Predictor::new();
            // Of 1024 to 2047 ms, which count as 1536.
            (0..count).for_each(|_| predictor.end(UNIT, 1500));
            predictor
        };
        assert!(with(6).stays_idle(UNIT, 536, 1000), "6 of 8, with the imagined units");
        assert!(!with(5).stays_idle(UNIT, 536, 1000), "5 of 7");
        assert!(!with(6).stays_idle(UNIT, 536, 1001), "a millisecond too long");
        assert!(with(6).stays_idle(UNIT, 1536, 1536), "all times are over, so for as long again");
    }

    #[test]
    fn half_the_times_are_forgotten_at_once() {
        let mut predictor = Predictor::new();
        (1..MEMORY).for_each(|_| predictor.end(UNIT, 100));
        assert_eq!(u32::from(predictor.ended[class(UNIT)][length(100)]), MEMORY - 1);
        predictor.end(UNIT, 100);
        assert_eq!(u32::from(predictor.ended[class(UNIT)][length(100)]), MEMORY / 2);
    }

    #[test]
    fn units_of_one_moment_are_a_group_and_the_newest_group_is_obtained_first() {
        let mut predictor = Predictor::new();
        predictor.give_back(UNIT, 2, 100, Moment(5), 10);
        predictor.give_back(UNIT, 3, 50, Moment(5), 1000);
        predictor.give_back(UNIT, 1, 0, Moment(6), 20);
        assert_eq!(predictor.obtain(UNIT, Moment(26)), Obtained::Again { too_early: false }, "the newest");
        let again = (0..6).map(|_| predictor.obtain(UNIT, Moment(26)));
        let early = Obtained::Again { too_early: true };
        assert_eq!(again.collect::<std::vec::Vec<_>>(), [early, early, early, early, early, Obtained::More]);
        // 50 ms of the youngest and 21 since.
        assert_eq!(predictor.ended[class(UNIT)][length(71)], 5);
    }

    #[test]
    fn caution_grows_above_a_half_of_mistakes_and_falls_up_to_a_quarter() {
        let judged = |before: u32, early: u32, late: u32| {
            let mut predictor = Predictor { caution: before, early, late, ..Predictor::new() };
            predictor.settle(Moment(1));
            predictor.caution()
        };
        assert_eq!((judged(0, 16, 16), judged(0, 17, 16)), (0, 1));
        assert_eq!((judged(2, 9, 23), judged(2, 8, 24)), (2, 1));
    }

    #[test]
    fn a_use_after_idleness_is_a_time_and_a_first_use_is_none() {
        let mut predictor = Predictor::new();
        let mut segment = Idle::NEW;
        predictor.use_again(UNIT, segment, Moment(900));
        assert_eq!(predictor.ended[class(UNIT)], [0; LENGTHS]);
        segment = Idle::since(Moment(100));
        predictor.use_again(UNIT, segment, Moment(400));
        assert_eq!(predictor.ended[class(UNIT)][length(300)], 1);
    }

    #[test]
    fn the_clock_may_run_over() {
        let mut predictor = Predictor::new();
        predictor.give_back(UNIT, 1, 100, Moment(u32::MAX - 50), 200);
        assert_eq!(predictor.obtain(UNIT, Moment(50)), Obtained::Again { too_early: true });
    }

    #[test]
    fn only_the_latest_groups_are_remembered() {
        let mut predictor = Predictor::new();
        for at in 0..=GROUPS as u32 {
            predictor.give_back(UNIT, 1, 0, Moment(at), 10);
        }
        let again = (0..=GROUPS).filter(|_| predictor.obtain(UNIT, Moment(1000)) != Obtained::More).count();
        assert_eq!(again, GROUPS);
    }
}
