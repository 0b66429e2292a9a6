//! Public planning problems in files outside the project.

use cachalot_planner::{Buffer, Problem};
use std::fs;
use std::path::PathBuf;

/// Environment variable with the folder of the public instances.
pub const VARIABLE: &str = "CACHALOT_PLANNING_DATA";

/// Returns the folder of the public instances. Without a folder, prints that `test` is skipped.
pub fn folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: {test}: {VARIABLE} does not say where the public instances lie");
    }
    folder
}

/// Reads a problem from a table `id,lower,upper,size` with half-open lives.
///
/// # Panics
/// If the file is missing or malformed.
pub fn read(name: &str, test: &str) -> Option<Problem> {
    let file = folder(test)?.join(name);
    let table = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let buffer = |line: &str| {
        let numbers: Vec<u64> = line.split(',').skip(1).map(|field| field.trim().parse().expect(line)).collect();
        Buffer { start: numbers[0], end: numbers[1], size: numbers[2], alignment: 1, fixed: None }
    };
    Some(Problem { buffers: table.lines().skip(1).map(buffer).collect(), ..Problem::default() })
}
