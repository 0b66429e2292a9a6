//! `emulated-driver install <folder> [--hide <symbols>] [--version <number>]`: puts a `libcuda.so.1` there.

use cachalot_emulated_driver::install;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "emulated-driver install <folder> [--hide <symbol,symbol,…>] [--version <1000*major+10*minor>]
emulated-driver symbols";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the arguments say and returns what to print.
fn run(arguments: &[String]) -> Result<String, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (folder, options) = match words.as_slice() {
        ["symbols"] => return Ok(install::symbols().join("\n")),
        ["install", folder, options @ ..] => (folder, options),
        _ => return Err(USAGE.to_owned()),
    };
    let mut hidden = Vec::new();
    for pair in options.chunks(2) {
        match pair {
            ["--hide", list] => hidden.extend(list.split(',').filter(|name| !name.is_empty())),
            ["--version", version] => {
                let version = version.parse().map_err(|_| format!("not a version: {version}"))?;
                hidden.extend(install::newer_than(version));
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    let path = install::install(Path::new(folder), &hidden).map_err(|why| why.to_string())?;
    Ok(path.display().to_string())
}
