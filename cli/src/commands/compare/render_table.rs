//! The tables of the command: a table for each trace with a row for each contender, and a table
//! over all traces.

use super::{Compared, View, title};
use crate::commands::answer::sentence;
use crate::commands::bytes;
use crate::commands::table::{Column, Look, Table, column, extra};
use crate::commands::variation::{self, milliseconds};
use cachalot_core::simulated::Call;
use cachalot_replay::compare::{Contender, Figures};
use cachalot_replay::program::{DriverTime, median};
use std::fmt::Write as _;

/// The policy that is never marked as the best. The policy calls the driver for every request, and
/// serves as a yardstick.
const YARDSTICK: &str = "direct";

/// The calls in the first three columns of calls. The fourth column counts all remaining calls.
const CALLS: [&[Call]; 3] = [
    &[Call::Obtain],
    &[Call::Release],
    &[Call::Reserve, Call::Unreserve, Call::Create, Call::Destroy, Call::Map, Call::SetAccess, Call::Unmap],
];

/// The columns of a trace.
const COLUMNS: [Column; 14] = [
    column("contender"),
    column("peak reserved"),
    column("to the first"),
    column("utili\u{ad}sation"),
    extra("peak live"),
    extra("allocations"),
    extra("frees"),
    extra("mappings"),
    extra("others"),
    column("driver time"),
    extra("ns/op"),
    column("OOMs"),
    extra("largest failed"),
    extra("fragmentation"),
];

/// The columns of a trace in passes.
const PASSES_COLUMNS: [Column; 17] = [
    column("contender"),
    extra("peak reserved"),
    extra("to the first"),
    column("utili\u{ad}sation"),
    extra("peak live"),
    extra("allocations"),
    extra("frees"),
    extra("mappings"),
    extra("others"),
    extra("driver time"),
    column("cold"),
    column("steady"),
    column("longest stall"),
    extra("ns/op"),
    column("OOMs"),
    extra("largest failed"),
    extra("fragmentation"),
];

/// The columns over all traces.
const SUMMARY_COLUMNS: [Column; 8] = [
    column("contender"),
    extra("traces"),
    column("utili\u{ad}sation"),
    column("lowest"),
    column("driver calls"),
    column("driver time"),
    extra("ns/op"),
    column("OOMs"),
];

/// The columns over all traces in passes.
const PASSES_SUMMARY_COLUMNS: [Column; 11] = [
    column("contender"),
    extra("traces"),
    column("utili\u{ad}sation"),
    column("lowest"),
    extra("driver calls"),
    extra("driver time"),
    column("cold"),
    column("steady"),
    column("longest stall"),
    extra("ns/op"),
    extra("OOMs"),
];

/// Returns the tables of all traces, each with the trace's name above and the best contender below.
pub(super) fn each(compared: &[Compared], view: View, look: &Look) -> String {
    let mut text = String::new();
    for trace in compared {
        let live = trace.comparison.live.peak();
        let (operations, live) = (bytes::grouped(trace.comparison.operations as u64), bytes::show(live));
        let of = trace.cut_to.map_or(String::new(), |events| format!(" of the last {} events", bytes::grouped(events)));
        let mut head = format!("{}: {operations} operations, {live} live at the peak{of}", trace.name);
        match trace.emptied {
            (0, _) => {}
            (calls, true) => _ = write!(head, ", {} of empty_cache()", bytes::plural(calls as u64, "call")),
            (calls, false) => _ = write!(head, ", without {} of empty_cache()", bytes::plural(calls as u64, "call")),
        }
        if let Some(limit) = trace.comparison.limit {
            let _ = write!(head, ", limit {}", bytes::show(limit));
        }
        if !trace.tells_config {
            head.push_str("; the record does not contain its settings, so the defaults are assumed");
        }
        if let Some(answer) = &trace.answer {
            // An answer is about one pass, and a table in passes about all.
            let whose = if view == View::Passes { "In the first pass, " } else { "In the replay, " };
            let sentence = sentence(answer).replacen("In the replay, ", whose, 1);
            let _ = writeln!(text, "{}{}", gap(&text), look.fold(&sentence, 0));
        }
        let (head, table) = (look.fold(&head, 2), one(trace, view).render(look));
        let _ = write!(text, "{}{head}\n\n{table}\n", gap(&text));
        if let Some(advice) = advice(trace) {
            let _ = writeln!(text, "\n{advice}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns an empty line if text precedes.
fn gap(text: &str) -> &'static str {
    if text.is_empty() { "" } else { "\n" }
}

fn one(trace: &Compared, view: View) -> Table {
    let mut table = match view {
        View::Once => Table::new(&COLUMNS),
        View::Passes => Table::new(&PASSES_COLUMNS),
    };
    let first = trace.comparison.figures.first().and_then(|figures| figures.as_ref().ok());
    for (number, figures) in trace.comparison.figures.iter().enumerate() {
        let mut row = vec![trace.title(number)];
        if let Ok(figures) = figures {
            row.extend(cells(figures, first, view));
        }
        table.row(row);
    }
    if let Some(best) = best(trace) {
        table.mark(best);
    }
    table
}

fn cells(figures: &Figures, first: Option<&Figures>, view: View) -> Vec<String> {
    let largest = if figures.ooms == 0 { String::new() } else { bytes::show(figures.largest_failed_bytes) };
    let apart = first.filter(|first| !std::ptr::eq(*first, figures));
    let apart = apart.map(|first| bytes::difference(first.peak_reserved_bytes, figures.peak_reserved_bytes));
    let mut cells = vec![
        bytes::show(figures.peak_reserved_bytes),
        apart.unwrap_or_default(),
        percent(figures.utilisation()),
        bytes::show(figures.peak_live_bytes),
    ];
    cells.extend(calls(figures).map(|count| count.to_string()));
    cells.push(milliseconds(figures.driver_us()));
    if view == View::Passes {
        cells.extend(variation::cells(&figures.driver));
    }
    cells.extend([
        format!("{:.1}", figures.ns_per_op),
        figures.ooms.to_string(),
        largest,
        percent(figures.fragmentation),
    ]);
    cells
}

/// Returns the contender with the fewest failed requests. Among equals the least peak of reserved
/// memory decides, and then the least driver time.
fn best(trace: &Compared) -> Option<usize> {
    let ran =
        trace.comparison.figures.iter().enumerate().filter_map(|(at, figures)| Some((at, figures.as_ref().ok()?)));
    let candidates = ran.filter(|&(at, _)| trace.contenders[at].policy != YARDSTICK);
    let order = |(_, one): &(usize, &Figures), (_, other): &(usize, &Figures)| {
        let memory = (one.ooms, one.peak_reserved_bytes).cmp(&(other.ooms, other.peak_reserved_bytes));
        memory.then(one.driver_us().total_cmp(&other.driver_us()))
    };
    candidates.min_by(order).map(|(at, _)| at)
}

/// Returns a line that compares the best contender with the first. `None` if the first contender is
/// the best.
fn advice(trace: &Compared) -> Option<String> {
    let best = best(trace).filter(|&best| best > 0)?;
    let (Ok(first), Ok(figures)) = (&trace.comparison.figures[0], &trace.comparison.figures[best]) else { return None };
    let memory = bytes::difference(first.peak_reserved_bytes, figures.peak_reserved_bytes);
    let time = (figures.driver_us() - first.driver_us()) / 1000.0;
    let sign = if time < 0.0 { '−' } else { '+' };
    let mut line = format!("* against {}: {memory}, {sign}{:.2} ms of driver calls", trace.title(0), time.abs());
    if first.ooms > figures.ooms {
        let _ = write!(line, ", {} OOMs instead of {}", figures.ooms, first.ooms);
    }
    Some(line)
}

/// Returns the table over all traces, with a row for each contender. A row covers the traces with
/// figures.
pub(super) fn all(compared: &[Compared], contenders: &[Contender], view: View, look: &Look) -> String {
    let mut table = match view {
        View::Once => Table::new(&SUMMARY_COLUMNS),
        View::Passes => Table::new(&PASSES_SUMMARY_COLUMNS),
    };
    let mut standings = Vec::new();
    for (number, (title, place, is_yardstick)) in rows(contenders).enumerate() {
        let figures: Vec<&Figures> = compared.iter().filter_map(|trace| figures_of(trace, place)).collect();
        let mut row = vec![title, figures.len().to_string()];
        if !figures.is_empty() {
            row.extend(summary(&figures, view));
            if figures.len() == compared.len() && !is_yardstick {
                standings.push((number, failed(&figures), mean_utilisation(&figures)));
            }
        }
        table.row(row);
    }
    // Fewer failed requests are better; then a higher mean is.
    let best = standings.into_iter().min_by(|one, other| one.1.cmp(&other.1).then(other.2.total_cmp(&one.2)));
    if let Some((best, ..)) = best {
        table.mark(best);
    }
    let means = match view {
        View::Once => "utilisation: geometric mean; ns/op: median",
        View::Passes => "utilisation: geometric mean; cold, steady: of all allocations; ns/op: median",
    };
    format!("All {} traces ({means})\n\n{}", compared.len(), table.render(look))
}

/// Returns the rows over all traces: the recorded settings, and each named contender with its
/// number.
fn rows(contenders: &[Contender]) -> impl Iterator<Item = (String, Option<usize>, bool)> {
    let named = contenders.iter().enumerate();
    let named = named.map(|(at, contender)| (title(contender), Some(at), contender.policy == YARDSTICK));
    std::iter::once(("recorded settings".to_owned(), None, false)).chain(named)
}

/// Returns the figures of a named contender, or of the first row.
fn figures_of(trace: &Compared, contender: Option<usize>) -> Option<&Figures> {
    let place = contender.map_or(0, |contender| trace.places[contender]);
    trace.comparison.figures[place].as_ref().ok()
}

fn mean_utilisation(figures: &[&Figures]) -> f64 {
    (figures.iter().map(|figures| figures.utilisation().ln()).sum::<f64>() / figures.len() as f64).exp()
}

fn failed(figures: &[&Figures]) -> u64 {
    figures.iter().map(|figures| figures.ooms).sum()
}

fn summary(figures: &[&Figures], view: View) -> Vec<String> {
    let lowest = figures.iter().map(|figures| figures.utilisation()).fold(f64::INFINITY, f64::min);
    let mut times: Vec<f64> = figures.iter().map(|figures| figures.ns_per_op).collect();
    let mut cells = vec![
        percent(mean_utilisation(figures)),
        percent(lowest),
        figures.iter().map(|figures| figures.device_calls.iter().sum::<u64>()).sum::<u64>().to_string(),
        milliseconds(figures.iter().map(|figures| figures.driver_us()).sum()),
    ];
    if view == View::Passes {
        cells.extend(variation::cells(&DriverTime::sum(figures.iter().map(|figures| &figures.driver))));
    }
    cells.extend([format!("{:.1}", median(&mut times)), failed(figures).to_string()]);
    cells
}

/// Returns a line for each contender, with the traces in which the contender ran out of memory.
pub(super) fn failures(compared: &[Compared], contenders: &[Contender]) -> String {
    let line = |(title, place, _): (String, Option<usize>, bool)| {
        let failed = compared.iter().filter(|trace| figures_of(trace, place).is_some_and(|figures| figures.ooms > 0));
        let names: Vec<&str> = failed.map(|trace| trace.name.as_str()).collect();
        let (count, all) = (names.len(), compared.len());
        match count {
            0 => format!("{title}: no trace of {all} runs out of memory"),
            1 => format!("{title}: 1 trace of {all} runs out of memory: {}", names[0]),
            _ => format!("{title}: {count} traces of {all} run out of memory: {}", names.join(", ")),
        }
    };
    rows(contenders).map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the calls of each column, and the number of all remaining calls.
fn calls(figures: &Figures) -> [u64; CALLS.len() + 1] {
    let all: u64 = figures.device_calls.iter().sum();
    let [allocations, frees, mappings] =
        CALLS.map(|column| column.iter().map(|&call| figures.device_calls[call as usize]).sum::<u64>());
    [allocations, frees, mappings, all - allocations - frees - mappings]
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
