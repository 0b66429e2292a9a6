//! Tests of the module above.

extern crate std;
use super::*;
use crate::tables::Growable;

#[test]
fn the_entry_of_a_lost_page_stays_until_its_last_alias_is_removed() {
    let mut pages = PagePool::<Growable>::default();
    pages.make_room().unwrap();
    let lost = pages.add(Page::created(PhysicalHandle(1), 4096, false));
    pages.add_alias(lost);
    pages.lose(lost);
    pages.make_room().unwrap();
    let other = pages.add(Page::created(PhysicalHandle(2), 4096, false));
    assert_ne!(other, lost, "an alias of the lost page is still to be removed");
    pages.remove_alias(lost, false);
    pages.make_room().unwrap();
    assert_eq!(pages.add(Page::created(PhysicalHandle(3), 4096, false)), lost);
    assert_eq!(pages.check().unwrap(), PageBytes { moving: 8192, ..PageBytes::default() });
}

/// Adds pages of these lengths. Their handles are numbered in the order of the calls.
fn add_all<const N: usize>(pages: &mut PagePool<Growable>, lengths: [u64; N]) -> [u32; N] {
    lengths.map(|bytes| {
        pages.make_room().unwrap();
        let handles = pages.lengths().len() as u64;
        pages.add(Page::created(PhysicalHandle(handles), bytes, false))
    })
}

fn list(pages: &PagePool<Growable>, batch: &Batch) -> std::vec::Vec<u32> {
    core::iter::successors((batch.count > 0).then_some(batch.first), |&page| pages.next(page)).collect()
}

#[test]
fn the_lengths_are_those_of_the_pages_that_exist() {
    let mut pages = PagePool::<Growable>::default();
    let added = add_all(&mut pages, [4096, 8192, 12288]);
    pages.remove(added[1]);
    assert_eq!(pages.lengths(), [(0, 4096), (2, 12288)].into());
}

#[test]
fn joined_batches_have_the_pages_of_both_in_order() {
    let mut pages = PagePool::<Growable>::default();
    let all = add_all(&mut pages, [1, 2, 4, 8, 16].map(|pages| pages * 4096));
    let [mut one, mut more] = [Batch::EMPTY; 2];
    all[..2].iter().for_each(|&page| pages.append(&mut one, page));
    all[2..].iter().for_each(|&page| pages.append(&mut more, page));
    pages.join(&mut one, Batch::EMPTY);
    assert_eq!((list(&pages, &one), one.count, one.bytes), (all[..2].into(), 2, 3 * 4096));
    pages.join(&mut one, more);
    assert_eq!((list(&pages, &one), one.count, one.bytes), (all.into(), 5, 31 * 4096));
    let mut empty = Batch::EMPTY;
    pages.join(&mut empty, one);
    assert_eq!((list(&pages, &empty), empty.count), (all.into(), 5));
    pages.count_meetings(&Batch::EMPTY);
    pages.count_meetings(&empty);
    let met = [(0, 1), (1, 0), (4, 0)].map(|(page, follower)| pages.meetings(all[page], all[follower]));
    assert_eq!(met, [1, 0, 0]);
}

#[test]
fn a_page_with_an_alias_or_stuck_cannot_be_destroyed() {
    let mut pages = PagePool::<Growable>::default();
    let [page] = add_all(&mut pages, [4096]);
    assert!(pages.has_one_mapping(page) && !pages.is_home(page));
    pages.settle(page);
    assert!(pages.is_home(page));
    pages.add_alias(page);
    assert!(!pages.has_one_mapping(page));
    pages.remove_alias(page, false);
    assert!(pages.has_one_mapping(page));
    (0..2).for_each(|_| pages.add_alias(page));
    pages.remove_alias(page, true);
    pages.remove_alias(page, true);
    assert!(!pages.has_one_mapping(page), "two mappings could not be removed");
}

#[test]
fn the_largest_spare_page_may_have_exactly_the_length() {
    let mut pages = PagePool::<Growable>::default();
    let [one, two] = add_all(&mut pages, [4096, 8192]);
    [one, two].into_iter().for_each(|page| pages.make_spare(page));
    let largest = [4095, 4096, 8191, 8192, 9000].map(|bytes| pages.largest_spare(bytes));
    assert_eq!(largest, [None, Some(4096), Some(4096), Some(8192), Some(8192)]);
}

#[test]
fn a_page_left_by_a_failed_wake_is_filled_by_the_next() {
    let mut pages = PagePool::<Growable>::default();
    let [asleep, replacement] = add_all(&mut pages, [4096, 4096]);
    pages.settle(asleep);
    pages.fall_asleep(asleep);
    pages.begin_to_wake(asleep, replacement);
    pages.leave_replacement(asleep);
    assert_eq!(pages.left(asleep), Some(replacement));
    pages.mark_stuck(replacement);
    assert!(pages.is_replacement_stuck(asleep));
    pages.begin_to_fill(asleep);
    assert_eq!((pages.left(asleep), pages.is_replacement_stuck(asleep)), (None, false));
    assert_eq!(pages.check().unwrap(), PageBytes { asleep: 4096, waking: 4096, ..PageBytes::default() });
}
