//! The lines of `--json`.

use super::Compared;
use crate::commands::answer::Told;
use crate::commands::replay::PlannedFigures;
use cachalot_core::simulated::Call;
use cachalot_replay::compare::{Contender, Figures};
use serde::{Serialize, Serializer};
use std::io::{self, Write};

/// A trace with a contender.
#[derive(Serialize)]
struct ContenderLine<'a> {
    schema: u32,
    file: &'a str,
    record: &'a str,
    is_recorded: bool,
    tells_config: bool,
    policy: &'static str,
    config: &'a str,
    utilisation: f64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    #[serde(serialize_with = "by_name")]
    device_calls: [u64; Call::ALL.len()],
    driver_us: f64,
    #[serde(serialize_with = "us_by_name")]
    driver_us_by_call: [u64; Call::ALL.len()],
    allocations: u64,
    passes: usize,
    cold_us_per_allocation: f64,
    steady_us_per_allocation: Option<f64>,
    longest_stall_us: f64,
    ns_per_op: f64,
    ooms: u64,
    largest_failed_bytes: u64,
    fragmentation: f64,
    operations: usize,
    limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<PlannedFigures>,
    /// Only in the line of the first row, about which the answer is.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Told>,
}

/// Prints a line for each trace and contender.
pub(super) fn write(compared: &[Compared]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for trace in compared {
        for (number, (contender, figures)) in trace.contenders.iter().zip(&trace.comparison.figures).enumerate() {
            if let Ok(figures) = figures {
                let answer = trace.answer.as_ref().filter(|_| number == 0).map(Told::from);
                serde_json::to_writer(&mut output, &line(trace, (number, contender), figures, answer))?;
                writeln!(output)?;
            }
        }
    }
    Ok(())
}

fn line<'a>(
    trace: &'a Compared,
    (number, contender): (usize, &'a Contender),
    figures: &Figures,
    answer: Option<Told>,
) -> ContenderLine<'a> {
    ContenderLine {
        schema: crate::commands::SCHEMA,
        file: &trace.file,
        record: &trace.name,
        is_recorded: number == 0 && trace.is_recorded,
        tells_config: trace.tells_config,
        policy: contender.policy,
        config: &contender.text,
        utilisation: figures.utilisation(),
        peak_live_bytes: figures.peak_live_bytes,
        peak_reserved_bytes: figures.peak_reserved_bytes,
        device_calls: figures.device_calls,
        driver_us: figures.driver_us(),
        driver_us_by_call: figures.driver_ns,
        allocations: figures.driver.allocations,
        passes: figures.driver.passes_ns.len(),
        cold_us_per_allocation: figures.driver.cold_us(),
        steady_us_per_allocation: figures.driver.steady_us(),
        longest_stall_us: figures.driver.longest_stall_ns as f64 / 1000.0,
        ns_per_op: figures.ns_per_op,
        ooms: figures.ooms,
        largest_failed_bytes: figures.largest_failed_bytes,
        fragmentation: figures.fragmentation,
        operations: trace.comparison.operations,
        limit_bytes: trace.comparison.limit,
        planned: figures.planned.map(PlannedFigures::from),
        answer,
    }
}

/// Counts as an object, by the driver's name of each call.
fn by_name<S: Serializer>(calls: &[u64; Call::ALL.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Call::ALL.into_iter().zip(calls).map(|(call, count)| (call.driver_name(), count)))
}

/// Nanoseconds as an object of microseconds, by the driver's name of each call.
fn us_by_name<S: Serializer>(ns: &[u64; Call::ALL.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Call::ALL.into_iter().zip(ns).map(|(call, &ns)| (call.driver_name(), ns as f64 / 1000.0)))
}
