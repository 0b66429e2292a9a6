//! Tables of the costs of driver calls on a device, read from files.

use crate::trace::BadInput;
use cachalot_core::simulated::{Call, CostPoint, DriverCosts};
use std::path::Path;

/// The columns of a table.
const COLUMNS: [&str; 3] = ["call", "bytes", "us"];

/// Reads a table of costs from a file.
///
/// # Errors
/// The first unusable line, and the reason.
pub fn load_costs(file: &Path) -> Result<DriverCosts, BadInput> {
    let bytes = std::fs::read(file).map_err(|error| BadInput::whole(file, format!("cannot be read: {error}")))?;
    parse_costs(file, &bytes)
}

/// Reads a table of costs from the bytes of a file.
///
/// # Errors
/// The first unusable line, and the reason.
pub fn parse_costs(file: &Path, bytes: &[u8]) -> Result<DriverCosts, BadInput> {
    // A line ends with `\n`, and what `\r` is before it is trimmed: with the reader's own way of
    // ending lines, a record after `\r\n` is said to start one line too early.
    let mut builder = csv::ReaderBuilder::new();
    builder.comment(Some(b'#')).trim(csv::Trim::All).terminator(csv::Terminator::Any(b'\n'));
    let mut reader = builder.from_reader(bytes);
    let not_a_table =
        || BadInput::whole(file, "not a table of costs: its first line without `#` must be `call,bytes,us`");
    let header = reader.headers().map_err(|_| not_a_table())?;
    if header != COLUMNS.as_slice() {
        return Err(not_a_table());
    }
    let mut points: [Vec<CostPoint>; Call::ALL.len()] = Default::default();
    for row in reader.records() {
        let line = |position: Option<&csv::Position>| position.map_or(0, csv::Position::line);
        let row = row.map_err(|error| BadInput::at(file, line(error.position()), error.to_string()))?;
        add(&mut points, &row).map_err(|what| BadInput::at(file, line(row.position()), what))?;
    }
    let mut costs = DriverCosts::free();
    for (call, points) in Call::ALL.into_iter().zip(points) {
        let ascends = costs.set(call, points);
        debug_assert!(ascends, "`add` refuses sizes that do not ascend");
    }
    Ok(costs)
}

/// Adds a row of the table to the points of a call.
fn add(points: &mut [Vec<CostPoint>; Call::ALL.len()], row: &csv::StringRecord) -> Result<(), String> {
    let call = Call::ALL.into_iter().find(|call| call.driver_name() == &row[0]).ok_or_else(|| {
        let known = Call::ALL.map(Call::driver_name).join(", ");
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
    let points = &mut points[call as usize];
    match points.last() {
        Some(&CostPoint { bytes: last, .. }) if last >= bytes || last == 0 => {
            Err(format!("the sizes of {} must ascend, or the call have one row without a size", &row[0]))
        }
        _ => {
            points.push(CostPoint { bytes, ns: (us * 1000.0).round() as u64 });
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, CostPoint, parse_costs};
    use std::path::Path;

    #[test]
    fn a_table_sets_the_costs_of_the_calls_it_has() {
        let text =
            "# A device.\ncall,bytes,us\ncuMemAlloc,2097152,0.6\ncuMemAlloc,4194304, 2.0004\ncuMemGetInfo,,3.2\n";
        let costs = parse_costs(Path::new("c.csv"), text.as_bytes()).expect("a table");
        let point = |bytes, ns| CostPoint { bytes, ns };
        assert_eq!(costs.points(Call::Obtain), [point(2 << 20, 600), point(4 << 20, 2_000)]);
        assert_eq!(costs.points(Call::MemoryInfo), [point(0, 3_200)]);
        assert_eq!(costs.ns(Call::Obtain, 3 << 20), 1_300);
        assert_eq!(costs.points(Call::Release), []);
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_line() {
        let refuse = |text: &str| parse_costs(Path::new("c.csv"), text.as_bytes()).expect_err(text).to_string();
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
