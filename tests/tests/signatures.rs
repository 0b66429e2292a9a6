//! Signs a release as `scripts/release/sign.sh` does, and checks it by the commands of
//! docs/releasing.md: they accept what was signed, and refuse a changed byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the commands of the section "Check a release", for a release signed by the test's key.
fn commands() -> Vec<String> {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/releasing.md")).expect("the page");
    let section = page.split_once("\n## Check a release\n").expect("the section").1;
    let block = section.split_once("```sh\n").and_then(|(_, rest)| rest.split_once("```")).expect("commands").0;
    block.lines().map(|line| line.replace("ALLOWED_SIGNERS", "../signers").replace("IDENTITY", "releases")).collect()
}

/// Returns which of the page's commands accept a release.
fn accepted(release: &Path) -> Vec<bool> {
    let run = |line: &String| Command::new("sh").args(["-c", line]).current_dir(release).output().expect("a shell");
    commands().iter().map(|line| run(line).status.success()).collect()
}

/// Makes a signed release of three files. `None`: there is no ssh-keygen.
fn signed() -> Option<PathBuf> {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("signatures");
    let _ = fs::remove_dir_all(&work);
    let release = work.join("release");
    fs::create_dir_all(release.join("crates")).expect("a folder");
    for file in ["library.tar.gz", "crates/one.crate", "crates/two with a space.crate"] {
        fs::write(release.join(file), file).expect("a file");
    }
    let key = work.join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    if made.is_err() {
        println!("skipped: signatures (no ssh-keygen)");
        return None;
    }
    let public = fs::read_to_string(key.with_extension("pub")).expect("the public key");
    fs::write(work.join("signers"), format!("releases {public}")).expect("a file");
    let script = Path::new(ROOT).join("scripts/release/sign.sh");
    let done = Command::new(script).arg(&release).arg("https://example.org").arg(&key).output().expect("the script");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(release)
}

#[test]
fn the_pages_commands_accept_a_release_and_refuse_a_changed_byte() {
    let Some(release) = signed() else { return };
    assert_eq!(accepted(&release), [true; 3]);
    let cases = [
        ("crates/two with a space.crate", [false, true, true]),
        // Not the checksums themselves, but a name.
        ("SHA256SUMS", [false, false, true]),
        ("provenance.json", [true, true, false]),
    ];
    for (file, expected) in cases {
        let was = fs::read(release.join(file)).expect("the file");
        let mut changed = was.clone();
        let at = changed.len() - 3;
        changed[at] ^= 1;
        fs::write(release.join(file), changed).expect("the file");
        assert_eq!(accepted(&release), expected, "{file}");
        fs::write(release.join(file), was).expect("the file");
    }
}
