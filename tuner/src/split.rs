//! Divides programs into those to search with and those held back for the check.

use crate::judge::Part;
use crate::program::{Operation, Program};
use fastrand::Rng;

/// The choice of the programs that are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HoldBack {
    /// Half of the programs, or if all are of one family, the later part of each program.
    #[default]
    Half,
    /// The later part of each program.
    Later,
    /// All programs from the given number on, counted from 0.
    From(usize),
}

/// The programs of a search.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// The programs that the search uses.
    pub seen: Vec<Part>,
    /// The programs that are only for the check.
    pub held: Vec<Part>,
    /// Whether the parts are earlier and later halves of programs.
    pub halves: bool,
}

impl Parts {
    /// Divides programs into seen and held-back programs. Two programs are of one family if one of
    /// them starts with all requests of the other, like records of one program with different
    /// settings. The programs of a process, such as those of the devices of a training run, are of
    /// one family as well. A family is never divided.
    pub fn divide(programs: Vec<Part>, hold: HoldBack, seed: u64) -> Self {
        match hold {
            HoldBack::From(first) => {
                let mut searched = programs;
                let rest = searched.split_off(first.min(searched.len()));
                Self { seen: searched, held: rest, halves: false }
            }
            HoldBack::Later => Self::halved(programs),
            HoldBack::Half => {
                let families = families(&programs);
                let mut known = families.clone();
                known.sort_unstable();
                known.dedup();
                let count = known.len();
                if count < 2 {
                    return Self::halved(programs);
                }
                let mut order = known;
                Rng::with_seed(seed).shuffle(&mut order);
                let is_seen = |family: usize| order[..count.div_ceil(2)].contains(&family);
                let (searched, rest): (Vec<_>, Vec<_>) =
                    programs.into_iter().zip(families).partition(|(_, family)| is_seen(*family));
                let parts = |list: Vec<(Part, usize)>| list.into_iter().map(|(part, _)| part).collect();
                Self { seen: parts(searched), held: parts(rest), halves: false }
            }
        }
    }

    /// Cuts every program in two. A program that is too short for this is seen as a whole.
    fn halved(programs: Vec<Part>) -> Self {
        let mut parts = Self { halves: true, ..Self::default() };
        for part in programs {
            match part.program.halves() {
                Some((earlier, later)) => {
                    parts.held.push(Part { program: later, ..part.clone() });
                    parts.seen.push(Part { program: earlier, ..part });
                }
                None => parts.seen.push(part),
            }
        }
        parts
    }
}

/// Returns the number of the family of each program, from 0.
fn families(programs: &[Part]) -> Vec<usize> {
    let requests: Vec<Vec<u64>> = programs.iter().map(|part| requests(&part.program)).collect();
    let mut families: Vec<usize> = Vec::new();
    for (at, own) in requests.iter().enumerate() {
        let begins = |other: &Vec<u64>| {
            let common = own.len().min(other.len());
            own[..common] == other[..common]
        };
        let process = programs[at].process;
        let is_beside = |other: usize| process.is_some() && programs[other].process == process;
        let alike: Vec<usize> = (0..at).filter(|&other| is_beside(other) || begins(&requests[other])).collect();
        let next = families.iter().max().map_or(0, |last| last + 1);
        let family = alike.first().map_or(next, |&first| families[first]);
        // A program that belongs to two families makes them one.
        let joined: Vec<usize> = alike.iter().map(|&other| families[other]).collect();
        families.iter_mut().filter(|known| joined.contains(known)).for_each(|known| *known = family);
        families.push(family);
    }
    families
}

/// Returns the sizes of all requests that were served.
fn requests(program: &Program) -> Vec<u64> {
    let size = |operation: &Operation| match *operation {
        Operation::Malloc { bytes, .. } => Some(bytes),
        _ => None,
    };
    program.operations.iter().filter_map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::StreamId;

    fn part(name: &str, sizes: impl IntoIterator<Item = u64>) -> Part {
        let malloc = |bytes| Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot: 0 };
        let operations = sizes.into_iter().flat_map(|bytes| [malloc(bytes), Operation::Free { slot: 0 }]).collect();
        Part { name: name.to_owned(), program: Program { operations, slots: 1, start: 0 }, ..Part::default() }
    }

    fn names(parts: &[Part]) -> Vec<&str> {
        parts.iter().map(|part| part.name.as_str()).collect()
    }

    #[test]
    fn two_records_of_a_program_are_on_one_side() {
        let programs = || vec![part("a", 1..40), part("b", 5..40), part("a_short", 1..9), part("c", 7..40)];
        for seed in 0..20 {
            let parts = Parts::divide(programs(), HoldBack::Half, seed);
            assert_eq!((parts.seen.len() + parts.held.len(), parts.halves), (4, false));
            let side = |name| names(&parts.seen).contains(&name);
            assert_eq!(side("a"), side("a_short"), "seed {seed}");
            assert!(!parts.held.is_empty() && !parts.seen.is_empty());
        }
        let all: Vec<_> =
            (0..20).map(|seed| names(&Parts::divide(programs(), HoldBack::Half, seed).seen).len()).collect();
        assert!(all.iter().any(|&count| count != all[0]), "the seed chooses: {all:?}");
    }

    #[test]
    fn the_devices_of_a_process_are_one_program() {
        let of = |process: usize, part: Part| Part { process: Some(process), ..part };
        let ranks = || vec![of(0, part("r#0", 1..40)), of(0, part("r#1", 2..41)), of(0, part("r#2", 3..42))];
        let parts = Parts::divide(ranks(), HoldBack::Half, 0);
        assert_eq!((parts.seen.len(), parts.held.len(), parts.halves), (3, 3, true));
        let others = || [ranks(), vec![of(1, part("other", 9..50))]].concat();
        for seed in 0..10 {
            let parts = Parts::divide(others(), HoldBack::Half, seed);
            assert_eq!(parts.seen.len().min(parts.held.len()), 1, "seed {seed}");
        }
    }

    #[test]
    fn a_single_program_is_cut_and_a_short_one_is_not() {
        let parts = Parts::divide(vec![part("a", 1..100)], HoldBack::Half, 0);
        assert_eq!((names(&parts.seen), names(&parts.held), parts.halves), (vec!["a"], vec!["a"], true));
        assert_eq!(parts.seen[0].program.operations.len() + parts.held[0].program.operations.len(), 198);
        let parts = Parts::divide(vec![part("a", 1..20)], HoldBack::Half, 0);
        assert_eq!((parts.seen.len(), parts.held.len()), (1, 0));
    }

    #[test]
    fn the_caller_can_choose() {
        let programs = vec![part("a", 1..40), part("b", 5..40), part("c", 7..40)];
        let parts = Parts::divide(programs, HoldBack::From(1), 0);
        assert_eq!((names(&parts.seen), names(&parts.held)), (vec!["a"], vec!["b", "c"]));
    }
}
