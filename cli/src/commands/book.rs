//! The rows of a process's book, for `top` and `ledger`.

use super::bytes::{grouped, plural, show};
use super::table::{Column, Table, column, extra};
use cachalot_run::ledger::view::{BookView, ObjectView};

/// The columns of a table of books.
pub(crate) const COLUMNS: [Column; 5] =
    [column("memory"), column("held"), column("entries"), column("peak"), extra("path")];

/// Adds a row for each object and kind of a book, the greatest first.
pub(crate) fn rows(table: &mut Table, book: &BookView) {
    for object in &book.objects {
        let mut kinds: Vec<_> = object.kinds.iter().collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
        for kind in kinds {
            let name = format!("  {}, {}", file(object), kind.kind.name());
            table.row(vec![name, show(kind.bytes), grouped(kind.count), show(kind.peak), object.name.clone()]);
        }
    }
}

/// Returns the name of an object's file.
fn file(object: &ObjectView) -> &str {
    object.name.rsplit('/').next().unwrap_or_default()
}

/// Formats a figure that may be below 0.
pub(crate) fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "−" } else { "" }, show(bytes.unsigned_abs()))
}

/// Returns sentences on what a book left out. Empty if the book is whole.
pub(crate) fn left_out(book: &BookView) -> Vec<String> {
    let mut lines = Vec::new();
    if book.dropped > 0 {
        let entries = plural(book.dropped, "booking");
        lines.push(format!("the table of entries was full: {entries} of {} are missing", show(book.dropped_bytes)));
    }
    if book.unnamed > 0 {
        let bookings = plural(book.unnamed, "booking");
        lines.push(format!("the table of objects was full: {bookings} are counted under (others)"));
    }
    if book.unknown_frees > 0 {
        lines.push(format!("{} of memory that is in no book", plural(book.unknown_frees, "free")));
    }
    if book.dropped_stacks > 0 {
        lines.push(format!("the table of stacks was full: {} have none", plural(book.dropped_stacks, "booking")));
    }
    lines
}
