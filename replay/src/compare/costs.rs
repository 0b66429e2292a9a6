//! What the driver's calls cost on a device, by size: a table that is measured once and read from a file.

use crate::trace::BadInput;
use cachalot_core::simulated::Call;
use std::path::Path;

/// The table of an H200, with its source in its first lines.
const H200: &str = include_str!("h200.csv");

/// The columns of a table.
const COLUMNS: [&str; 3] = ["call", "bytes", "us"];

/// The cost of every call.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// By call: sizes in bytes with the microseconds each costs, ascending. Empty ⟹ the call costs nothing.
    points: [Vec<(u64, f64)>; Call::ALL.len()],
}

/// What the driver calls it.
pub const fn driver_name(call: Call) -> &'static str {
    match call {
        Call::Obtain => "cuMemAlloc",
        Call::Release => "cuMemFree",
        Call::MemoryInfo => "cuMemGetInfo",
        Call::CreateEvent => "cuEventCreate",
        Call::DestroyEvent => "cuEventDestroy",
        Call::Record => "cuEventRecord",
        Call::IsComplete => "cuEventQuery",
        Call::Wait => "cuEventSynchronize",
        Call::OrderBehind => "cuStreamWaitEvent",
        Call::Synchronize => "cuStreamSynchronize",
        Call::IsCapturing => "cuStreamIsCapturing",
        Call::Reserve => "cuMemAddressReserve",
        Call::Unreserve => "cuMemAddressFree",
        Call::Create => "cuMemCreate",
        Call::Destroy => "cuMemRelease",
        Call::Map => "cuMemMap",
        Call::SetAccess => "cuMemSetAccess",
        Call::Unmap => "cuMemUnmap",
    }
}

impl Costs {
    /// Those of an H200.
    ///
    /// # Panics
    /// Never: the table is part of the program, and a test reads it.
    pub fn h200() -> Self {
        Self::load_bytes(Path::new("h200.csv"), H200.as_bytes()).expect("the table in the program can be read")
    }

    /// Reads a table from a file.
    ///
    /// # Errors
    /// The first line that cannot be used, and why.
    pub fn load(file: &Path) -> Result<Self, BadInput> {
        let bytes = std::fs::read(file).map_err(|error| BadInput::whole(file, format!("cannot be read: {error}")))?;
        Self::load_bytes(file, &bytes)
    }

    /// Reads a table from the bytes of a file.
    ///
    /// # Errors
    /// The first line that cannot be used, and why.
    pub fn load_bytes(file: &Path, bytes: &[u8]) -> Result<Self, BadInput> {
        // A line ends with `\n`, and what `\r` is before it is trimmed: with the reader's own way of ending lines, a record
        // after `\r\n` is said to begin one line too early.
        let mut builder = csv::ReaderBuilder::new();
        builder.comment(Some(b'#')).trim(csv::Trim::All).terminator(csv::Terminator::Any(b'\n'));
        let mut reader = builder.from_reader(bytes);
        let not_a_table =
            || BadInput::whole(file, "not a table of costs: its first line without `#` must be `call,bytes,us`");
        let header = reader.headers().map_err(|_| not_a_table())?;
        if header != COLUMNS.as_slice() {
            return Err(not_a_table());
        }
        let mut costs = Self::default();
        for row in reader.records() {
            let line = |position: Option<&csv::Position>| position.map_or(0, csv::Position::line);
            let row = row.map_err(|error| BadInput::at(file, line(error.position()), error.to_string()))?;
            costs.add(&row).map_err(|what| BadInput::at(file, line(row.position()), what))?;
        }
        Ok(costs)
    }

    fn add(&mut self, row: &csv::StringRecord) -> Result<(), String> {
        let call = Call::ALL.into_iter().find(|&call| driver_name(call) == &row[0]).ok_or_else(|| {
            let known = Call::ALL.map(driver_name).join(", ");
            format!("unknown call `{}`: it must be one of {known}", &row[0])
        })?;
        let bytes = match &row[1] {
            "" => 0,
            bytes => bytes.parse().map_err(|_| format!("the size `{bytes}` is not a number of bytes"))?,
        };
        let us: f64 = row[2].parse().map_err(|_| format!("the cost `{}` is not a number of microseconds", &row[2]))?;
        if !(us.is_finite() && us >= 0.0) {
            return Err(format!("the cost `{}` is not a number of microseconds from 0 on", &row[2]));
        }
        let points = &mut self.points[call as usize];
        match points.last() {
            Some(&(last, _)) if last >= bytes || last == 0 => {
                Err(format!("the sizes of {} must ascend, or the call have one row without a size", &row[0]))
            }
            _ => {
                points.push((bytes, us));
                Ok(())
            }
        }
    }

    /// What a call on `bytes` costs, in microseconds: on the line between the two sizes around it; as the smallest size below
    /// that; beyond the largest on the line of the last two, as long as it rises.
    pub fn us(&self, call: Call, bytes: u64) -> f64 {
        let points = self.points[call as usize].as_slice();
        let above = points.partition_point(|&(size, _)| size < bytes);
        let line = |from: (u64, f64), to: (u64, f64)| {
            let slope = (to.1 - from.1) / (to.0 - from.0) as f64;
            from.1 + slope * (bytes - from.0) as f64
        };
        match (points, above) {
            ([], _) => 0.0,
            ([first, ..], 0) => first.1,
            ([.., before, last], above) if above == points.len() => line(*before, *last).max(last.1),
            ([only], _) => only.1,
            _ => line(points[above - 1], points[above]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Costs};
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    fn is(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn the_table_in_the_program_is_the_h200s() {
        let costs = Costs::h200();
        for (call, mib, us) in [
            (Call::Obtain, 2, 31.0),
            (Call::Obtain, 2000, 113.0),
            (Call::Release, 200, 98.0),
            (Call::Unmap, 20, 15.0),
            (Call::Destroy, 200, 74.0),
        ] {
            assert!(is(costs.us(call, mib * MIB), us), "{call:?} {mib} MiB");
        }
        assert!(is(costs.us(Call::Reserve, 1 << 40), 4.5));
        assert!(is(costs.us(Call::Wait, 0), 0.0));
    }

    #[test]
    fn between_and_beyond_the_sizes_costs_lie_on_lines() {
        let costs = Costs::h200();
        assert!(is(costs.us(Call::Obtain, 512), 31.0));
        assert!(is(costs.us(Call::Obtain, 11 * MIB), 31.5));
        assert!(is(costs.us(Call::Release, 1100 * MIB), 385.5));
        assert!(is(costs.us(Call::Release, 3800 * MIB), 1248.0));
        assert!(is(costs.us(Call::Map, 4000 * MIB), 0.5), "a falling line ends at the largest size");
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_line() {
        let refuse = |text: &str| Costs::load_bytes(Path::new("c.csv"), text.as_bytes()).expect_err(text).to_string();
        assert!(refuse("call,us\n").starts_with("c.csv: not a table of costs"));
        let header = "# a device\ncall,bytes,us\n";
        for (row, what) in [
            ("cudaMalloc,1,2", "unknown call `cudaMalloc`: it must be one of cuMemAlloc, cuMemFree"),
            ("cuMemFree,x,2", "the size `x` is not a number of bytes"),
            ("cuMemFree,1,x", "the cost `x` is not a number of microseconds"),
            ("cuMemFree,1,-1", "the cost `-1` is not a number of microseconds from 0 on"),
            ("cuMemFree,1,inf", "the cost `inf` is not a number of microseconds from 0 on"),
            ("cuMemFree,1", "CSV error"),
        ] {
            let error = refuse(&format!("{header}cuMemAlloc,,1\n{row}\n"));
            assert!(error.starts_with(&format!("c.csv:4: {what}")), "{error}");
        }
        for rows in ["cuMemFree,2,1\ncuMemFree,2,1", "cuMemFree,,1\ncuMemFree,2,1", "cuMemFree,2,1\ncuMemFree,,1"] {
            let error = refuse(&format!("{header}{rows}\n"));
            assert!(error.starts_with("c.csv:4: the sizes of cuMemFree must ascend"), "{error}");
        }
    }
}
