//! `cachalot ledger`: the book that a process wrote at its end.

use crate::common::{cachalot, folder, write};
use crate::schemas::validator;
use cachalot_run::group::Uuid;
use cachalot_run::ledger::{Kind, Ledger, file};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// Writes the file of a process with a device.
fn written(place: &Path, stacks: bool) -> PathBuf {
    let ledger = Ledger::in_folder(None, Uuid([9; 16]), stacks).expect("a book");
    ledger.book(Kind::Segment, 200 * MIB, 1);
    ledger.book(Kind::Host, 50 * MIB, 2);
    assert_eq!(ledger.unbook(Kind::Pages, 3), None);
    ledger.missed();
    ledger.driver(230 * MIB, 1000 * MIB);
    let path = place.join("ledger.json");
    file::write(&path, vec![ledger.view()]).expect("the folder can be written");
    path
}

#[test]
fn a_book_is_a_table_beside_the_drivers_figure() {
    let path = written(&folder("table"), false);
    let finished = cachalot([Path::new("ledger"), &path]);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    let text = finished.output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("held 200.00 MiB of GPU-09090909-"), "{text}");
    assert!(text.contains("the driver reported 230.00 MiB of 1000.00 MiB in use by all processes"), "{text}");
    assert!(text.contains("1 free of memory that is in no book"), "{text}");
    assert!(text.contains(", segment 200.00 MiB 1 200.00 MiB"), "{text}");
    assert!(text.contains(", host 50.00 MiB"), "{text}");
    assert!(text.ends_with("unexplained 30.00 MiB"), "{text}");
}

#[test]
fn call_stacks_follow_the_table() {
    let path = written(&folder("stacks"), true);
    let text = cachalot([Path::new("ledger"), &path]).output;
    assert!(text.contains("By call stack") && text.contains("200.00 MiB  in 1 entry"), "{text}");
    let text = cachalot([Path::new("ledger"), Path::new("--most=1"), &path]).output;
    assert!(text.ends_with("1 other stack: see --most\n"), "{text}");
}

#[test]
fn a_ledger_fits_its_schema() {
    for stacks in [false, true] {
        let path = written(&folder("schema"), stacks);
        let lines = cachalot([Path::new("ledger"), Path::new("--json"), &path]).json();
        let faults: Vec<_> = validator("ledger").iter_errors(&lines[0]).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        assert_eq!(lines[0]["books"][0]["objects"][0]["kinds"][0]["kind"], "segment");
    }
}

#[test]
fn files_that_are_no_ledger_are_complaints() {
    let place = folder("foreign");
    let other = write(&place, "other.json", r#"{"schema":7,"books":[]}"#);
    let empty = write(&place, "empty.json", "");
    for (file, text) in [(other, "version 7"), (empty, "no ledger"), (place.join("missing"), "No such file")] {
        let finished = cachalot([Path::new("ledger"), &file]);
        assert_eq!(finished.status, 2);
        assert!(finished.errors.contains(text) && finished.errors.lines().count() == 1, "{}", finished.errors);
    }
}
