//! Measures the calls of a program on an allocator that has served the program before.

use super::{Program, Run, Subject};
use cachalot_core::Error;
use std::time::Instant;

/// Repeats a program `repeat` times, after an earlier run, and returns the median time of a call in
/// nanoseconds. If a plan is announced, only calls after its start count.
///
/// Between two runs all blocks are freed, but the cache is kept, as in a program that repeats its
/// steps.
///
/// # Errors
/// Those of the allocator.
pub fn nanoseconds_per_call(run: &mut Run<impl Subject>, program: &Program, repeat: u32) -> Result<f64, Error> {
    let (before, served) = program.at_plan();
    let mut times = Vec::with_capacity(repeat as usize);
    for _ in 0..repeat {
        run.clean_up(program)?;
        run.perform_all(before)?;
        let start = Instant::now();
        run.perform_all(served)?;
        times.push(start.elapsed().as_nanos() as f64 / served.len().max(1) as f64);
    }
    Ok(median(&mut times))
}

/// Returns the middle value, or the mean of the two middle values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_of_the_sorted_values() {
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!((median(&mut [7.0]) - 7.0).abs() < f64::EPSILON);
    }
}
