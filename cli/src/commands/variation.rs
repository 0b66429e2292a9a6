//! Options that vary the run of a recorded program.

use cachalot_replay::program::{DriverTime, LeftOut};

/// Options of `replay` and `compare`.
#[derive(clap::Args)]
pub(crate) struct Variation {
    /// Run each program N times on one allocator, and show the driver's time; between two passes
    /// all blocks are freed in the order of the requests, and the cache stays
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) passes: Option<u32>,
    /// Make freed blocks free at once, at `f` of the record instead of `c`, even if still in use on
    /// other streams
    #[arg(long)]
    ignore_record_stream: bool,
    /// Serve the requests of captured graphs from the default pool
    #[arg(long)]
    ignore_captures: bool,
    /// Leave out the recorded calls that empty the cache
    #[arg(long)]
    pub(crate) ignore_empty_cache: bool,
    /// The memory limit as a multiple of the program's peak of requested bytes, such as 1.05
    #[arg(long, value_name = "FACTOR", value_parser = factor, conflicts_with = "limit")]
    pub(crate) limit_factor: Option<f64>,
}

impl Variation {
    /// Returns the recorded calls to leave out.
    pub(crate) fn left_out(&self) -> LeftOut {
        let empty_cache = self.ignore_empty_cache;
        LeftOut { empty_cache, record_stream: self.ignore_record_stream, captures: self.ignore_captures }
    }
}

/// Parses a multiple.
fn factor(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a factor: expected a number above 0 and up to 1000, such as 1.05");
    let factor: f64 = text.parse().map_err(|_| wrong())?;
    if factor > 0.0 && factor <= 1000.0 { Ok(factor) } else { Err(wrong()) }
}

/// Writes the driver's time an allocation, in the first pass and in the later ones, and the longest
/// stall.
pub(crate) fn cells(driver: &DriverTime) -> [String; 3] {
    let steady = driver.steady_us().map_or(String::new(), microseconds);
    [microseconds(driver.cold_us()), steady, milliseconds(driver.longest_stall_ns as f64 / 1000.0)]
}

/// Writes a time of less than a microsecond with all figures that matter.
pub(crate) fn microseconds(us: f64) -> String {
    format!("{us:.3} µs")
}

/// Writes a time in microseconds as milliseconds.
pub(crate) fn milliseconds(us: f64) -> String {
    let ms = us / 1000.0;
    if ms < 1000.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::{factor, milliseconds};

    #[test]
    fn a_factor_is_a_number_above_zero() {
        assert_eq!(factor("1.05"), Ok(1.05));
        assert_eq!(factor("3"), Ok(3.0));
        for text in ["", "0", "-1", "nan", "inf", "1001", "1.05x", "5%"] {
            let error = factor(text).expect_err(text);
            assert!(error.contains(&format!("`{text}` is not a factor")), "{error}");
        }
    }

    #[test]
    fn long_times_have_no_decimals() {
        assert_eq!((milliseconds(999_990.0), milliseconds(1_097_400.0)), ("999.99 ms".into(), "1097 ms".into()));
    }
}
