//! Builds the text of `cachalot --version`: the version, and the commit if known to git.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut parts = Vec::new();
    // A copy of the crate inside another repository is untracked there, and has no commit.
    if git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some() {
        // The log of HEAD grows with every commit and every change of branch.
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        parts.extend(git(&["rev-parse", "--short=10", "HEAD"]).map(|commit| format!("commit {commit}")));
    }
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let details = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    println!("cargo::rustc-env=CACHALOT_VERSION={version}{details}");
}

/// Returns the first line of git's output, or `None` without git or after a failure.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}
