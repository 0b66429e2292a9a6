//! The result for people: the searched programs, the settings, and the table of candidates.

use super::{TuneArgs, TuneRecord};
use crate::commands::answer::{facts, rescue, sentence};
use crate::commands::bytes;
use crate::commands::table::{Column, Look, Table, column, extra};
use cachalot_replay::tune::{Aim, Budget, Cost, EXPANDABLE, Note, Options, Outcome, Part, Parts, Summary, Tried};
use std::fmt::Write as _;

/// The variable with the settings of PyTorch's allocator.
pub(super) const TORCH: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// The variable with the settings of cachalot.
pub(super) const CACHALOT: &str = "CACHALOT_CONF";

/// The places of two columns in both tables. If requests fail, they count more than the worst
/// program.
const WORST: usize = 3;
const OOMS: usize = 8;

/// The columns of a search for memory.
const MEMORY: [Column; 10] = [
    column("settings"),
    column("reserved"),
    column("held back"),
    column("worst"),
    extra("peaks together"),
    extra("held back together"),
    extra("driver time"),
    column("a request"),
    extra("OOMs"),
    column("note"),
];

/// The columns of a search for time.
const TIME: [Column; 10] = [
    column("settings"),
    column("driver time"),
    column("held back"),
    column("worst"),
    extra("peaks together"),
    extra("held back together"),
    column("reserved"),
    extra("a request"),
    extra("OOMs"),
    column("note"),
];

/// Returns the whole result.
pub(super) fn text(
    records: &[TuneRecord],
    parts: &Parts,
    options: &Options,
    outcome: &Outcome,
    args: &TuneArgs,
) -> String {
    let look = &args.look;
    let baseline = baseline(records, args);
    let mut lines: Vec<String> = records.iter().map(|record| look.fold(&held(record, args), 2)).collect();
    lines.push(String::new());
    lines.extend(searched(parts, outcome, look));
    let torch = outcome.torch.map(|number| &outcome.tried[number]);
    let before = failed(&outcome.tried[0]);
    let beyond = without_budget(parts, outcome, options);
    let found = |best, beyond| Found { best, before, baseline: &baseline, beyond };
    lines.extend(recommendation(("PyTorch's allocator", TORCH), &found(torch, beyond), options, look));
    let not_advised = advised_and_refused(records, parts, options, outcome);
    lines.extend(not_advised.iter().map(|line| format!("\n{}", look.fold(line, 2))));
    let mut best = torch;
    if !options.torch_only {
        best = outcome.cachalot.map(|number| &outcome.tried[number]);
        lines.extend(recommendation(("cachalot", CACHALOT), &found(best, None), options, look));
    }
    if best.is_none() && not_advised.is_none() {
        lines.extend(refused(parts, options, outcome).map(|line| format!("\n{}", look.fold(&line, 2))));
    }
    lines.push(String::new());
    lines.push(table(outcome, options, &baseline, args.most).render(look));
    lines.join("\n")
}

/// Returns the paragraph about a recording: the sentence of every report, and what the search does.
fn held(record: &TuneRecord, args: &TuneArgs) -> String {
    let TuneRecord { answer, part, .. } = record;
    let mut text = format!("{}: ", part.name);
    if answer.replayed_bytes.is_some() || answer.cut_to_events == Some(1) {
        text.push_str(&sentence(answer));
    } else {
        // The search tries settings although no report does.
        let _ = write!(text, "{}.", facts(answer));
        if let Some(rescue) = rescue(answer) {
            let _ = write!(text, " {rescue}.");
        }
    }
    if answer.better.is_none() && answer.rescues.is_empty() {
        text.push_str(" The search tries more settings.");
    }
    let calls = bytes::plural(record.emptied as u64, "call");
    match record.emptied {
        0 => {}
        _ if args.ignore_empty_cache => _ = write!(text, " The search leaves out {calls} of empty_cache()."),
        _ => _ = write!(text, " The program has {calls} of empty_cache()."),
    }
    match record.config.as_str() {
        _ if !record.tells_config => {
            text.push_str(" The record does not contain its settings, so the defaults are assumed.");
        }
        "" => {}
        config => _ = write!(text, " It was recorded with `{config}`."),
    }
    text
}

/// Returns the number of failed requests of all programs.
fn failed(tried: &Tried) -> u64 {
    tried.seen.ooms + tried.held_back.as_ref().map_or(0, |held| held.ooms)
}

/// Returns the name of the baseline.
fn baseline(records: &[TuneRecord], args: &TuneArgs) -> String {
    let own = |config: &str| if config.is_empty() { "the default".to_owned() } else { config.to_owned() };
    if let Some(text) = &args.baseline {
        return own(text);
    }
    let first = records.first().map_or("", |record| &record.config);
    if records.iter().all(|record| record.config == first) { own(first) } else { "as recorded".to_owned() }
}

/// Returns lines with the names of the searched and the held-back programs.
fn searched(parts: &Parts, outcome: &Outcome, look: &Look) -> Vec<String> {
    let names = |parts: &[Part]| parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    if parts.held.is_empty() {
        lines.push(look.fold(&format!("searched: {}", names(&parts.seen)), 2));
        let why = "nothing could be held back, because the program is too short to be cut: the gains are unchecked";
        lines.push(look.fold(why, 2));
    } else if parts.halves {
        lines.push(look.fold(&format!("searched: the first part of {}", names(&parts.seen)), 2));
        lines.push(look.fold(&format!("held back: the later part of {}", names(&parts.held)), 2));
    } else {
        lines.push(look.fold(&format!("searched: {}", names(&parts.seen)), 2));
        lines.push(look.fold(&format!("held back: {}", names(&parts.held)), 2));
    }
    let (count, why) = (outcome.tried.len(), if outcome.stopped { ", stopped by the deadline" } else { "" });
    let plural = if count == 1 { "" } else { "s" };
    lines.push(format!("{count} candidate{plural}{why}"));
    lines
}

/// The result of a search.
struct Found<'a> {
    /// The recommendation.
    best: Option<&'a Tried>,
    /// Number of requests that fail with the baseline.
    before: u64,
    /// The name of the baseline.
    baseline: &'a str,
    /// The candidate that would be best without the budget.
    beyond: Option<&'a Tried>,
}

/// Returns the clause on requests that fail with the baseline, or nothing if none does.
fn served(before: u64, now: u64) -> Option<String> {
    let requests = |count| bytes::plural(count, "failed request");
    match (before, now) {
        (0, _) => None,
        (_, 0) if before == 1 => Some("serves the request that failed".to_owned()),
        (_, 0) => Some(format!("serves all {} that failed", bytes::plural(before, "request"))),
        _ if now < before => Some(format!("{} instead of {before}", requests(now))),
        _ => Some(format!("still {}", requests(now))),
    }
}

/// Returns the lines of a recommendation.
fn recommendation((whom, variable): (&str, &str), found: &Found<'_>, options: &Options, look: &Look) -> Vec<String> {
    let Found { best, before, baseline, .. } = *found;
    let Some(best) = best else {
        let beyond = found.beyond.filter(|_| before == 0 && options.aim == Aim::Memory);
        let baseline = match baseline {
            "as recorded" => "the recorded settings",
            "the default" => "the default settings",
            config => config,
        };
        let none = if before > 0 {
            format!("For {whom}: no settings were found with which no request fails")
        } else {
            let bound = beyond.map_or_else(String::new, |beyond| {
                let gain = percent(changes(&beyond.seen, options.aim).0).replace(' ', "\u{a0}");
                let budget = options.budget.us_per_request;
                format!(
                    " within {budget}\u{a0}µs of driver time a request; without this bound, {gain} where it was searched with \
                     `{}` ({:.2}\u{a0}µs)",
                    beyond.config, beyond.seen.us_per_request
                )
            });
            format!("For {whom}: nothing better than {baseline} was found{bound}")
        };
        return vec![String::new(), look.fold(&none, 2)];
    };
    let (small, other) = match options.aim {
        Aim::Memory => ("reserved memory", "driver time"),
        Aim::Time => ("driver time", "reserved memory"),
    };
    // A line does not break before the sign of a percentage, or before a unit.
    let gain = |summary: &Summary| percent(changes(summary, options.aim).0).replace(' ', "\u{a0}");
    let mut line = format!("{} {small} where it was searched", gain(&best.seen));
    if let Some(held) = &best.held_back {
        line = format!("{line}, {} where it was held back", gain(held));
    }
    let cost = match options.aim {
        Aim::Memory => format!("{:.2}\u{a0}µs of {other} a request", best.seen.us_per_request),
        Aim::Time => format!("{} {other}", percent(best.seen.memory_change).replace(' ', "\u{a0}")),
    };
    let served = served(before, failed(best)).map_or(String::new(), |served| format!("{served}; "));
    let line = format!("For {whom}: {served}{line}, with {cost}");
    let mut lines = vec![String::new(), look.fold(&line, 2), format!("\n  {variable}={}", best.config)];
    if let Some(version) = best.needs_pytorch.filter(|_| variable == TORCH) {
        lines.push(look.fold(&format!("\n  PyTorch {version} or later: earlier versions stop at an unknown key"), 2));
    }
    lines
}

/// Returns a line about the setting that a recording's own sentence advises, and the search does
/// not.
fn advised_and_refused(records: &[TuneRecord], parts: &Parts, options: &Options, outcome: &Outcome) -> Option<String> {
    if outcome.torch.is_some() {
        return None;
    }
    let advised = records.iter().find_map(|record| record.answer.better.as_ref())?;
    let tried = outcome.tried.iter().find(|tried| tried.config == advised.config)?;
    let why = reason(tried, parts, options, outcome)
        .unwrap_or_else(|| "it gains too little where it was searched".to_owned());
    let name =
        if advised.config.is_empty() { "the default settings".to_owned() } else { format!("`{}`", advised.config) };
    Some(format!("The search does not recommend {name}, which the first sentence names: {why}"))
}

/// Returns a line with the largest gain of a refused candidate, and the reason for the refusal.
fn refused(parts: &Parts, options: &Options, outcome: &Outcome) -> Option<String> {
    let gain = |tried: &Tried| changes(&tried.seen, options.aim).0;
    let by_gain = |one: &&Tried, other: &&Tried| gain(one).total_cmp(&gain(other));
    let best = outcome.tried.iter().min_by(by_gain).filter(|best| gain(best) < -0.01)?;
    let why = reason(best, parts, options, outcome)?;
    Some(format!("{} would gain most, {} where it was searched, but {why}", best.config, percent(gain(best))))
}

/// Returns the reason for the refusal of a candidate.
fn reason(tried: &Tried, parts: &Parts, options: &Options, outcome: &Outcome) -> Option<String> {
    let base = &outcome.tried[0];
    match tried.note {
        Note::OverBudget => over_budget(&parts.seen, &tried.seen, &base.seen, options),
        Note::Worse => worst(&parts.seen, &tried.seen, &base.seen, options),
        Note::Unconfirmed => {
            let (held, base) = (tried.held_back.as_ref()?, base.held_back.as_ref()?);
            worst(&parts.held, held, base, options)
                .or_else(|| over_budget(&parts.held, held, base, options))
                .or_else(|| Some("it gains nothing where it was held back".to_owned()))
        }
        Note::Baseline | Note::Best | Note::Behind => None,
    }
}

/// Returns a text about the first program that exceeds the budget.
fn over_budget(parts: &[Part], summary: &Summary, base: &Summary, options: &Options) -> Option<String> {
    let Budget { us_per_request, memory_factor } = options.budget;
    let costs = parts.iter().zip(summary.programs.iter().zip(&base.programs));
    costs.filter(|(_, (cost, base))| cost.ooms >= base.ooms).find_map(|(part, (cost, base))| {
        let (now, before) = (cost.us_per_request_after_start(), base.us_per_request_after_start());
        let most = us_per_request.max(before);
        match options.aim {
            Aim::Memory if now > most && most > us_per_request => Some(format!(
                "{} then takes {now:.2} µs of driver time a request after its start, and {before:.2} µs as it is, \
                 which is above --time-budget {us_per_request} already",
                part.name
            )),
            Aim::Memory if now > most => Some(format!(
                "{} then takes {now:.2} µs of driver time a request after its start, more than --time-budget \
                 {us_per_request}",
                part.name
            )),
            Aim::Time if cost.reserved_bytes as f64 > base.reserved_bytes as f64 * memory_factor => {
                let (now, before) = (bytes::show(cost.reserved_bytes), bytes::show(base.reserved_bytes));
                Some(format!(
                    "{} then holds {now} instead of {before}, more than --memory-budget {memory_factor}",
                    part.name
                ))
            }
            Aim::Memory | Aim::Time => None,
        }
    })
}

/// Returns the candidate with the largest gain of those that PyTorch's allocator understands and
/// that only the budget refuses.
fn without_budget<'o>(parts: &Parts, outcome: &'o Outcome, options: &Options) -> Option<&'o Tried> {
    let base = outcome.tried[0].held_back.as_ref();
    let held = |tried: &Tried| {
        let (held, base) = (tried.held_back.as_ref()?, base?);
        let is_worse = worst(&parts.held, held, base, options).is_some();
        over_budget(&parts.held, held, base, options).filter(|_| !is_worse)
    };
    let is_over = |tried: &&Tried| match tried.note {
        Note::OverBudget => tried.is_of_torch,
        Note::Unconfirmed => tried.is_of_torch && held(tried).is_some(),
        _ => false,
    };
    let gain = |tried: &Tried| changes(&tried.seen, options.aim).0;
    let over = outcome.tried.iter().filter(is_over).filter(|tried| gain(tried) < -0.01);
    over.min_by(|one, other| gain(one).total_cmp(&gain(other)))
}

/// Returns a text about the program with the worst change, if it is worse than allowed.
fn worst(parts: &[Part], summary: &Summary, base: &Summary, options: &Options) -> Option<String> {
    let amount = |cost: &Cost| match options.aim {
        Aim::Memory => cost.reserved_bytes as f64,
        Aim::Time => cost.driver_ns as f64,
    };
    let change =
        |(cost, base): (&Cost, &Cost)| (cost.ooms.saturating_sub(base.ooms), amount(cost) / amount(base) - 1.0);
    let changes = summary.programs.iter().zip(&base.programs).map(change);
    let order = |one: &(&Part, (u64, f64)), other: &(&Part, (u64, f64))| one.1.partial_cmp(&other.1);
    let named = parts.iter().zip(changes);
    let (part, (ooms, harm)) = named.max_by(|one, other| order(one, other).unwrap_or(std::cmp::Ordering::Equal))?;
    if ooms > 0 {
        return Some(format!("{} then runs out of memory", part.name));
    }
    (harm > options.most_harm).then(|| format!("{} then changes by {}", part.name, percent(harm)))
}

/// Returns the change of the minimised quantity, and the change of the other quantity.
fn changes(summary: &Summary, aim: Aim) -> (f64, f64) {
    match aim {
        Aim::Memory => (summary.memory_change, summary.time_change),
        Aim::Time => (summary.time_change, summary.memory_change),
    }
}

fn table(outcome: &Outcome, options: &Options, baseline: &str, most: usize) -> Table {
    let rows = rows(outcome, most);
    let mut columns = match options.aim {
        Aim::Memory => MEMORY,
        Aim::Time => TIME,
    };
    if rows.iter().any(|&row| failed(&outcome.tried[row]) > 0) {
        (columns[WORST], columns[OOMS]) = (extra("worst"), column("OOMs"));
    }
    let mut table = Table::new(&columns);
    let recommended = if options.torch_only { outcome.torch } else { outcome.cachalot };
    for (at, &row) in rows.iter().enumerate() {
        if Some(row) == recommended {
            table.mark(at);
        }
        table.row(cells(&outcome.tried[row], &outcome.tried[0], options.aim, baseline));
    }
    table
}

/// Returns the numbers of the candidates with rows: the baseline, the recommendations, and up to
/// `most` others.
fn rows(outcome: &Outcome, most: usize) -> Vec<usize> {
    let mut others: Vec<&Tried> = Vec::new();
    let mut rows = Vec::new();
    for (number, tried) in outcome.tried.iter().enumerate() {
        let is_named = [Some(0), outcome.torch, outcome.cachalot].contains(&Some(number)) || tried.config == EXPANDABLE;
        // Of candidates with the same costs, the first is the simplest.
        let held = |one: &Tried| one.held_back.as_ref().map(|held| held.programs.clone());
        let is_known =
            others.iter().any(|other| other.seen.programs == tried.seen.programs && held(other) == held(tried));
        if !is_named && (is_known || others.len() >= most) {
            continue;
        }
        if !is_named {
            others.push(tried);
        }
        rows.push(number);
    }
    rows
}

fn cells(tried: &Tried, base: &Tried, aim: Aim, baseline: &str) -> Vec<String> {
    let Tried { seen, held_back, .. } = tried;
    let name = match tried.config.as_str() {
        _ if tried.note == Note::Baseline => baseline.to_owned(),
        "" => "the default".to_owned(),
        config => config.to_owned(),
    };
    let (first, other) = changes(seen, aim);
    let held = held_back.as_ref();
    let worst = held.map_or(seen.worst_change, |held| held.worst_change.max(seen.worst_change));
    let is_base = tried.note == Note::Baseline;
    let change = |change: f64| if is_base { String::new() } else { percent(change) };
    let mut cells = vec![
        name,
        change(first),
        held.map_or(String::new(), |held| change(changes(held, aim).0)),
        change(worst),
        bytes::show(seen.reserved_bytes),
        held.map_or(String::new(), |held| bytes::show(held.reserved_bytes)),
        change(other),
        format!("{:.2} µs", seen.us_per_request),
    ];
    // It is not known whether a candidate that was not checked serves what fails there.
    let is_unknown = held.is_none() && base.held_back.as_ref().is_some_and(|base| base.ooms > 0);
    cells.push(if is_unknown { String::new() } else { failed(tried).to_string() });
    cells.push(note(tried.note).to_owned());
    cells
}

fn note(note: Note) -> &'static str {
    match note {
        Note::Baseline => "baseline",
        Note::Best => "best",
        Note::Behind => "",
        Note::OverBudget => "over budget",
        Note::Worse => "worse",
        Note::Unconfirmed => "unconfirmed",
    }
}

/// Formats a change: `−67.1 %`.
pub(super) fn percent(change: f64) -> String {
    let sign = if change < -0.0005 {
        "−"
    } else if change > 0.0005 {
        "+"
    } else {
        ""
    };
    format!("{sign}{:.1} %", change.abs() * 100.0)
}
