//! The tables that a person reads: a row for each trace and contender, then one for each contender over all traces.

use super::Compared;
use crate::commands::bytes;
use cachalot_core::simulated::Call;
use cachalot_replay::compare::{Contender, Figures};
use cachalot_replay::program::median;
use comfy_table::{CellAlignment, Table, TableComponent, presets};

/// What is shown of a configuration that has no settings.
const DEFAULT: &str = "(default)";

/// The calls in the columns of the table; all others are in a fourth.
const COLUMNS: [&[Call]; 3] = [
    &[Call::Obtain],
    &[Call::Release],
    &[Call::Reserve, Call::Unreserve, Call::Create, Call::Destroy, Call::Map, Call::SetAccess, Call::Unmap],
];

/// The row of every trace and contender.
pub(super) fn each(compared: &[Compared], contenders: &[Contender]) -> Table {
    let mut table = new_table(
        &["trace", "policy", "configuration"],
        &[
            "utilisation",
            "peak live",
            "peak reserved",
            "allocations",
            "frees",
            "mappings",
            "others",
            "driver time",
            "ns/op",
            "OOMs",
            "largest",
            "fragmentation",
        ],
    );
    for trace in compared {
        for (contender, figures) in contenders.iter().zip(&trace.comparison.figures) {
            let mut row = vec![trace.name.clone()];
            row.extend(names(contender));
            if let Ok(figures) = figures {
                row.extend(cells(figures));
            }
            table.add_row(row);
        }
    }
    table
}

fn cells(figures: &Figures) -> Vec<String> {
    let largest = if figures.ooms == 0 { String::new() } else { bytes::show(figures.largest_failed_bytes) };
    let mut cells = vec![
        percent(figures.utilisation()),
        bytes::show(figures.peak_live_bytes),
        bytes::show(figures.peak_reserved_bytes),
    ];
    cells.extend(calls(figures).map(|count| count.to_string()));
    cells.extend([
        milliseconds(figures.driver_us),
        format!("{:.1}", figures.ns_per_op),
        figures.ooms.to_string(),
        largest,
        percent(figures.fragmentation),
    ]);
    cells
}

/// The row of every contender, over all traces that it ran to the end.
pub(super) fn all(compared: &[Compared], contenders: &[Contender]) -> Table {
    let mut table = new_table(
        &["policy", "configuration"],
        &["traces", "utilisation (geometric mean)", "lowest", "driver calls", "driver time", "ns/op (median)", "OOMs"],
    );
    for (number, contender) in contenders.iter().enumerate() {
        let figures: Vec<&Figures> =
            compared.iter().filter_map(|trace| trace.comparison.figures[number].as_ref().ok()).collect();
        let mut row = Vec::from(names(contender));
        row.push(figures.len().to_string());
        if !figures.is_empty() {
            row.extend(summary(&figures));
        }
        table.add_row(row);
    }
    table
}

fn summary(figures: &[&Figures]) -> [String; 6] {
    let utilisations = || figures.iter().map(|figures| figures.utilisation());
    let mean = (utilisations().map(f64::ln).sum::<f64>() / figures.len() as f64).exp();
    let lowest = utilisations().fold(f64::INFINITY, f64::min);
    let mut times: Vec<f64> = figures.iter().map(|figures| figures.ns_per_op).collect();
    [
        percent(mean),
        percent(lowest),
        figures.iter().map(|figures| figures.device_calls.iter().sum::<u64>()).sum::<u64>().to_string(),
        milliseconds(figures.iter().map(|figures| figures.driver_us).sum()),
        format!("{:.1}", median(&mut times)),
        figures.iter().map(|figures| figures.ooms).sum::<u64>().to_string(),
    ]
}

/// A table with `names` on the left and `figures` on the right.
fn new_table(names: &[&str], figures: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for part in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(part, '─');
    }
    table.set_header(names.iter().chain(figures));
    for column in table.column_iter_mut().skip(names.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn names(contender: &Contender) -> [String; 2] {
    let text = if contender.text.is_empty() { DEFAULT } else { &contender.text };
    [contender.policy.to_owned(), text.to_owned()]
}

/// The calls of each column, and all others.
fn calls(figures: &Figures) -> [u64; COLUMNS.len() + 1] {
    let all: u64 = figures.device_calls.iter().sum();
    let [allocations, frees, mappings] =
        COLUMNS.map(|column| column.iter().map(|&call| figures.device_calls[call as usize]).sum::<u64>());
    [allocations, frees, mappings, all - allocations - frees - mappings]
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn milliseconds(us: f64) -> String {
    format!("{:.2} ms", us / 1000.0)
}
