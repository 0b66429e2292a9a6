//! Runs the command on the recorded traces of the repository, and on files built for a test.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit status and output of a command.
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Finished {
    /// Returns the lines of `--json`.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.output.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// Runs `cachalot` with `arguments`.
pub(crate) fn cachalot<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Finished {
    finish(Command::new(env!("CARGO_BIN_EXE_cachalot")).args(arguments))
}

/// Runs `cachalot` with `arguments` in a folder.
pub(crate) fn cachalot_in<S: AsRef<std::ffi::OsStr>>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Finished {
    finish(Command::new(env!("CARGO_BIN_EXE_cachalot")).args(arguments).current_dir(folder))
}

/// Runs a command and waits for the end.
pub(crate) fn finish(command: &mut Command) -> Finished {
    let output = command.output().expect("the command runs");
    Finished {
        status: output.status.code().expect("the command ends by itself"),
        output: String::from_utf8(output.stdout).expect("text"),
        errors: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Returns the folder of the recorded traces.
pub(crate) fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces")
}

/// Returns the path of a recorded trace.
pub(crate) fn trace(name: &str) -> PathBuf {
    traces().join(name)
}

/// Returns every recorded trace with the given ending, by name.
pub(crate) fn traces_with(ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(traces()).expect("the folder of traces");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

/// Returns the decompressed text of a recorded trace.
pub(crate) fn text_of(name: &str) -> String {
    let mut text = String::new();
    let file = fs::File::open(trace(name)).expect(name);
    GzDecoder::new(file).read_to_string(&mut text).expect(name);
    text
}

/// Creates an empty folder for one test of the caller's file.
#[track_caller]
pub(crate) fn folder(test: &str) -> PathBuf {
    let file = Path::new(Location::caller().file()).file_stem().expect("a file has a name");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file).join(test);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("an old folder goes");
    }
    fs::create_dir_all(&folder).expect("a new folder");
    folder
}

/// Writes a file.
pub(crate) fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, content).expect(name);
    file
}

/// Compresses bytes by gzip.
pub(crate) fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_ref()).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}
