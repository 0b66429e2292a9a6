//! The cost of a step among growing numbers of objects: the table of `tests/results/growth.md`.

use crate::measure::Clock;
use cachalot_core::Error;
use cachalot_instructions::growth::{PROGRAMS, Program};
use cachalot_tests::figures::Table;

/// Measures every program with each of `counts` objects, `rounds` times. Returns the table.
///
/// # Errors
/// The errors of the allocator.
pub fn report(counts: &[u64], rounds: usize) -> Result<Table, Error> {
    let counted = counts.iter().map(|count| format!("{count} objects"));
    let header = ["objects", "configuration", "step"].map(str::to_owned).into_iter().chain(counted);
    let mut table = Table::new(header.chain(["growth".to_owned()]));
    for program in &PROGRAMS {
        let columns: Vec<Vec<f64>> =
            counts.iter().map(|&count| medians(program, count, rounds)).collect::<Result<_, Error>>()?;
        for (number, phase) in program.phases.iter().enumerate() {
            let times: Vec<f64> = columns.iter().map(|column| column[number]).collect();
            let growth = times.last().zip(times.first()).map_or(1.0, |(last, first)| last / first);
            let cells = times.iter().map(|time| format!("{time:.0}")).chain([format!("{growth:.2}")]);
            let names = [program.objects, program.config_or_default(), phase.step];
            table.add_row(names.map(str::to_owned).into_iter().chain(cells));
        }
    }
    Ok(table)
}

/// Returns the nanoseconds of a step of each phase, the median of the rounds.
fn medians(program: &Program, count: u64, rounds: usize) -> Result<Vec<f64>, Error> {
    let rounds: Vec<Vec<f64>> = (0..rounds.max(1))
        .map(|_| {
            let times = program.run(count, || Clock::Thread.now())?;
            Ok(times.iter().map(|time| time.as_secs_f64() * 1e9 / count as f64).collect())
        })
        .collect::<Result<_, Error>>()?;
    let median = |phase: usize| {
        let mut times: Vec<f64> = rounds.iter().map(|round| round[phase]).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok((0..program.phases.len()).map(median).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_every_program_has_a_row() {
        let table = report(&[10, 20], 1).expect("the device has the memory");
        let steps: usize = PROGRAMS.iter().map(|program| program.phases.len()).sum();
        assert_eq!(table.rows.len(), steps, "{table}");
        assert!(table.header.contains(&"20 objects".to_owned()), "{table}");
    }
}
