//! Planning problems that lie in files, outside the project.

use cachalot_planner::{Buffer, Problem};
use std::fs;
use std::path::PathBuf;

/// The variable that says where the public instances lie.
pub const VARIABLE: &str = "CACHALOT_PLANNING_DATA";

/// The folder of the public instances. Without it, `test` says that it is skipped.
pub fn folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: {test}: {VARIABLE} does not say where the public instances lie");
    }
    folder
}

/// A problem of a table `id,lower,upper,size` with half-open lives.
///
/// # Panics
/// If there is none.
pub fn read(name: &str, test: &str) -> Option<Problem> {
    let file = folder(test)?.join(name);
    let table = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let buffer = |line: &str| {
        let numbers: Vec<u64> = line.split(',').skip(1).map(|field| field.trim().parse().expect(line)).collect();
        Buffer { start: numbers[0], end: numbers[1], size: numbers[2], alignment: 1, fixed: None }
    };
    Some(Problem { buffers: table.lines().skip(1).map(buffer).collect(), ..Problem::default() })
}
