//! Tests of the module above.

use super::*;
use crate::device::Event;
use crate::tables::{Fixed, Growable};
use proptest::prelude::*;
use std::vec::Vec;

fn use_of(stream: u64, number: u64) -> UseFence {
    UseFence { fence: Fence { stream: StreamId(stream), number, event: Event(number) }, next: NONE }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add { heap: u32, stream: u64, number: u64 },
    Oldest(u32),
    OldestFrom(u64),
    Watched { heap: u32, stream: u64, number: u64 },
    PutBack(usize),
    Watch { of: usize, stream: u64, number: u64 },
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || (0_u32..3, 0_u64..3, 0_u64..64);
    let step = prop_oneof![
        3 => at().prop_map(|(heap, stream, number)| Step::Add { heap, stream, number }),
        1 => (0_u32..3).prop_map(Step::Oldest),
        1 => (0_u64..40).prop_map(Step::OldestFrom),
        2 => at().prop_map(|(heap, stream, number)| Step::Watched { heap, stream, number }),
        1 => (0_usize..8).prop_map(Step::PutBack),
        1 => (0_usize..8, 0_u64..3, 0_u64..64).prop_map(|(of, stream, number)| Step::Watch { of, stream, number }),
        2 => (0_usize..8).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..200)
}

/// A block in the model: the fields of the list's entry, and whether a thread has taken it.
#[derive(Clone, Copy)]
struct Known {
    heap: u32,
    age: u64,
    watched: UseFence,
    busy: bool,
}

/// Returns the block that the model takes.
fn lowest<K: Ord>(known: &mut [Known], key: impl Fn(&Known) -> Option<K>) -> Option<&mut Known> {
    let waits = known.iter_mut().filter(|known| !known.busy && key(known).is_some());
    waits.min_by_key(|known| key(known))
}

/// Runs the steps on the list and on a vector. Returns how many blocks did not fit.
fn agrees_with_a_vector<S: Storage>(steps: &[Step]) -> Result<u32, TestCaseError> {
    let (mut blocks, mut known, mut taken) = (DeferredFrees::<S>::default(), Vec::<Known>::new(), Vec::new());
    let (mut ages, mut refused) = (0, 0);
    for &step in steps {
        let is_new = |known: &[Known], of: UseFence| !known.iter().any(|known| known.watched.fence == of.fence);
        // The entry that the list took, and the age of the block that the model took.
        let (found, expected) = match step {
            Step::Add { heap, stream, number } => {
                let watched = use_of(stream, number);
                if is_new(&known, watched) {
                    match blocks.add(PendingBlock { slot: heap, index: ages as u32 }, Until::Fence(watched)) {
                        Ok(entry) => {
                            ages += 1;
                            known.push(Known { heap, age: ages, watched, busy: true });
                            taken.push((entry, ages));
                        }
                        Err(CapacityError) => refused += 1,
                    }
                }
                continue;
            }
            Step::Oldest(heap) => {
                let key = |known: &Known| (known.heap == heap).then_some(known.age);
                (blocks.take_oldest(heap), lowest(&mut known, key))
            }
            Step::OldestFrom(age) => {
                // The heaps come in the order of their oldest blocks, busy or not.
                let oldest: Vec<u64> = (0..3)
                    .map(|heap| known.iter().filter(|of| of.heap == heap).map(|of| of.age).min().unwrap_or(0))
                    .collect();
                let key =
                    |known: &Known| Some((oldest[known.heap as usize], known.age)).filter(|(oldest, _)| *oldest >= age);
                let found = blocks.take_oldest_from(age);
                let expected = lowest(&mut known, key);
                prop_assert_eq!(found.map(|(_, at)| at), expected.as_ref().map(|known| oldest[known.heap as usize]));
                (found.map(|(entry, _)| entry), expected)
            }
            Step::Watched { heap, stream, number } => {
                let from = (StreamId(stream), number);
                let key = |known: &Known| {
                    let at = (known.watched.fence.stream, known.watched.fence.number);
                    (known.heap == heap && at >= from).then_some(at)
                };
                (blocks.take_watched(heap, from).map(|(entry, _)| entry), lowest(&mut known, key))
            }
            Step::PutBack(of) | Step::Watch { of, .. } | Step::Remove(of) => {
                if taken.is_empty() {
                    continue;
                }
                let (entry, age) = taken.swap_remove(of % taken.len());
                let at = known.iter().position(|known| known.age == age).unwrap();
                known[at].busy = false;
                match step {
                    Step::Watch { stream, number, .. } if is_new(&known, use_of(stream, number)) => {
                        known[at].watched = use_of(stream, number);
                        blocks.watch(entry, known[at].watched);
                        // If the table has no room, the block remains where it was.
                        known[at].watched = blocks.get(entry).watched().unwrap();
                    }
                    Step::Remove(_) => {
                        blocks.remove(entry);
                        known.remove(at);
                    }
                    _ => blocks.put_back(entry),
                }
                continue;
            }
        };
        prop_assert_eq!(found.map(|entry| blocks.get(entry).age), expected.as_ref().map(|known| known.age));
        if let (Some(entry), Some(known)) = (found, expected) {
            known.busy = true;
            taken.push((entry, known.age));
        }
        prop_assert_eq!((!blocks.has_ordered(), blocks.is_at_work()), (known.is_empty(), !taken.is_empty()));
        let heaps: Vec<u32> = core::iter::successors(blocks.next_heap(0), |&slot| blocks.next_heap(slot + 1)).collect();
        let expected: Vec<u32> = (0..3).filter(|&heap| known.iter().any(|known| known.heap == heap)).collect();
        prop_assert_eq!(heaps, expected);
    }
    Ok(refused)
}

proptest! {
    #[test]
    fn every_step_finds_what_a_search_of_all_blocks_finds(steps in steps()) {
        prop_assert_eq!(agrees_with_a_vector::<Growable>(&steps)?, 0);
    }
}

#[test]
fn a_full_table_refuses_a_block_and_loses_none() {
    type Small = DeferredFrees<Fixed<1, 8, 8, 64>>;
    let mut blocks = Small::default();
    let entries: Vec<u32> = (0..)
        .map_while(|number| {
            // Numbers that are far apart need a node each.
            let added = blocks
                .add(PendingBlock { slot: number % 2, index: number }, Until::Fence(use_of(1, 1 << (5 * number))));
            added.inspect(|&entry| blocks.put_back(entry)).ok()
        })
        .collect();
    assert!((3..=8).contains(&entries.len()), "{}", entries.len());
    // Every block is watched at another use where there is room, and is found there.
    for number in 0..entries.len() as u32 {
        blocks.take(entries[number as usize]);
        blocks.watch(entries[number as usize], use_of(2, 1 << (5 * number)));
    }
    let mut left = entries.len();
    for heap in [0, 1] {
        while let Some(entry) = blocks.take_oldest(heap) {
            blocks.remove(entry);
            left -= 1;
        }
    }
    assert!(left == 0 && !blocks.has_ordered() && blocks.next_heap(0).is_none());
}
/// Takes blocks from age 0 on, in order, and puts them back. Returns them.
fn taken(
    blocks: &mut DeferredFrees<Growable>,
    take: impl Fn(&mut DeferredFrees<Growable>, u64) -> Option<u32>,
) -> Vec<u32> {
    let (mut from, mut found) = (0, Vec::new());
    while let Some(entry) = take(blocks, from) {
        let DeferredFree { block, age, .. } = blocks.get(entry);
        blocks.put_back(entry);
        found.push(block.index);
        from = age + 1;
    }
    found
}

#[test]
fn captured_blocks_are_found_by_age_and_by_their_marks_and_by_nothing_else() {
    let mut blocks = DeferredFrees::<Growable>::default();
    let [one, other] = [StreamId(1), StreamId(2)];
    let captured = |by, own: Option<StreamId>| {
        let end = own.map(|own| EndOfUses { mark: CaptureMark(4), own });
        Until::Captured(Captured { by, end })
    };
    let untils =
        [captured(None, Some(one)), captured(Some(other), None), captured(None, None), captured(None, Some(one))];
    let entries: Vec<u32> = (0..)
        .zip(untils)
        .map(|(block, until)| blocks.add(PendingBlock { slot: 7, index: block }, until).unwrap())
        .collect();
    assert_eq!(blocks.take_captured(0, None), None, "a thread works on each");
    entries.iter().for_each(|&entry| blocks.put_back(entry));
    let ordered = blocks.add(PendingBlock { slot: 7, index: 9 }, Until::Fence(use_of(1, 1))).unwrap();
    blocks.put_back(ordered);
    let by_age = |capturing| move |blocks: &mut DeferredFrees<Growable>, from| blocks.take_captured(from, capturing);
    assert_eq!(taken(&mut blocks, by_age(None)), [0, 1, 2, 3]);
    assert_eq!(taken(&mut blocks, by_age(Some(other))), [0, 2, 3]);
    let marked = |own| move |blocks: &mut DeferredFrees<Growable>, from| Some(blocks.take_marked(own, from)?.0);
    assert_eq!(taken(&mut blocks, marked(one)), [0, 3]);
    assert_eq!(taken(&mut blocks, marked(other)), []);
    blocks.take(entries[0]);
    blocks.move_to_end(entries[0]);
    blocks.take(entries[3]);
    blocks.put_back_by(entries[3], other);
    assert_eq!(taken(&mut blocks, by_age(None)), [1, 2, 3, 0]);
    assert_eq!(taken(&mut blocks, by_age(Some(other))), [2, 0]);
    assert_eq!(taken(&mut blocks, marked(one)), [3, 0]);
    // The block with fences and the captured blocks do not get in each other's way.
    assert_eq!((blocks.next_heap(0), blocks.next_heap(8)), (Some(7), None));
    assert_eq!(blocks.take_oldest_from(0).map(|(entry, _)| entry), Some(ordered));
    assert_eq!(blocks.take_oldest_from(0), None);
    // In a copy, a captured block that a thread works on is gone, and one with fences waits.
    blocks.take(entries[2]);
    let mut copy = blocks.clone();
    copy.forget_threads();
    assert_eq!(
        (taken(&mut copy, by_age(None)), copy.take_oldest(7), copy.is_at_work()),
        (Vec::from([1, 3, 0]), Some(ordered), true)
    );
    blocks.remove(ordered);
    assert!(blocks.has_captured() && !blocks.has_ordered());
    blocks.remove(entries[2]);
    for entry in [entries[0], entries[1], entries[3]] {
        blocks.take(entry);
        blocks.remove(entry);
    }
    assert!(!blocks.has_captured() && !blocks.is_at_work());
}
#[test]
fn counted_blocks_are_taken_up_to_the_frontier_the_lowest_count_first() {
    let mut blocks = DeferredFrees::<Growable>::default();
    let counts = [7, 3, 7, 9];
    let entries: Vec<u32> =
        counts.map(|count| blocks.add(PendingBlock { slot: 2, index: NONE }, Until::Count(count)).unwrap()).into();
    for (block, &entry) in (0..).zip(&entries[..3]) {
        blocks.set_block(entry, block);
        blocks.put_back(entry);
    }
    assert!(!blocks.has_ordered() && !blocks.has_captured());
    assert_eq!((blocks.take_reached(), blocks.take_oldest_from(0), blocks.next_heap(0)), (None, None, None));
    blocks.reached = 9;
    let taken: Vec<u32> = core::iter::from_fn(|| {
        let entry = blocks.take_reached()?;
        let block = blocks.get(entry).block.index;
        blocks.remove(entry);
        Some(block)
    })
    .collect();
    assert_eq!(taken, [1, 0, 2], "the last one has no block yet");
    let mut copy = blocks.clone();
    copy.forget_threads();
    assert_eq!((copy.take_reached(), copy.is_at_work()), (None, false));
    blocks.put_back(entries[3]);
    assert_eq!(blocks.take_reached(), Some(entries[3]));
}
