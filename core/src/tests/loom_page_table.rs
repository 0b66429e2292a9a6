//! Models of the table of the page map: a reader looks a page up while the writer makes leaves,
//! enters pages and removes pages. Under loom a leaf has two pages, and the near addresses have two
//! leaves.

use super::loom::explore;
use crate::tables::page_table::{PageTable, RadixPages, VACANT};
use core::ops::RangeInclusive;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;

/// Two leaves that are near, and a far page.
const RANGES: [RangeInclusive<u64>; 2] = [1..=2, 9..=9];

fn enter(table: &RadixPages, pages: RangeInclusive<u64>, word: u32) {
    assert!(table.make_room(pages.clone()));
    table.change(pages, |_| word);
}

/// A table with a word for one page, and a thread that writes.
fn write(
    pages: RangeInclusive<u64>,
    act: impl FnOnce(&RadixPages) + Send + 'static,
) -> (Arc<RadixPages>, thread::JoinHandle<()>) {
    let table = Arc::new(RadixPages::default());
    enter(&table, pages, 10);
    let writer = {
        let table = table.clone();
        thread::spawn(move || act(&table))
    };
    (table, writer)
}

#[test]
fn loom_a_page_is_found_while_others_and_their_leaves_come() {
    for range in RANGES {
        explore(move || {
            let (table, writer) = write(range.clone(), |table| {
                enter(table, 3..=4, 20);
                enter(table, 8..=8, 30);
            });
            assert_eq!(table.get(*range.start()), 10);
            assert!([VACANT, 20].contains(&table.get(3)));
            assert!([VACANT, 30].contains(&table.get(8)));
            assert_eq!(table.get(*range.end()), 10);
            writer.join().unwrap();
        });
    }
}

#[test]
fn loom_a_page_entered_before_its_address_is_told_is_found() {
    for range in RANGES {
        explore(move || {
            let told = Arc::new(AtomicBool::new(false));
            let (tells, entered) = (told.clone(), range.clone());
            let (table, writer) = write(6..=6, move |table| {
                enter(table, entered, 20);
                tells.store(true, Release);
            });
            if told.load(Acquire) {
                assert_eq!(table.get(*range.end()), 20);
            }
            writer.join().unwrap();
        });
    }
}

#[test]
fn loom_a_page_that_is_left_and_entered_again_has_no_third_word() {
    for range in RANGES {
        explore(move || {
            let entered = range.clone();
            let (table, writer) = write(range.clone(), move |table| {
                table.change(entered.clone(), |_| VACANT);
                enter(table, entered, 20);
            });
            let words = [table.get(*range.start()), table.get(*range.start())];
            assert!([[10, 10], [10, VACANT], [10, 20], [VACANT, VACANT], [VACANT, 20], [20, 20]].contains(&words));
            writer.join().unwrap();
            assert_eq!(table.get(*range.end()), 20);
        });
    }
}
