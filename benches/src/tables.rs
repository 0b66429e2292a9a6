//! Tables in Markdown.

use comfy_table::{CellAlignment, Table, presets};

/// Returns a table without rows. All columns but the first `left` are aligned right.
pub(crate) fn table<'a>(left: usize, header: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
