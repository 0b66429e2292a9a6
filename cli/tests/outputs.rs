//! Output files of the commands: the effect on an old file, on a link, on a device, and on a full
//! disk.

use crate::common::{cachalot, cachalot_in, folder, trace, write};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns every way to name an output, after the rest of the command.
fn commands(folder: &Path) -> Vec<Vec<String>> {
    let mut table = "id,lower,upper,size\n".to_owned();
    for row in 0..200 {
        writeln!(table, "{row},{row},{},512", row + 2).expect("a string takes everything");
    }
    let table = write(folder, "input.csv", table).display().to_string();
    let record = trace("mlp_seed.csv.gz").display().to_string();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    vec![
        words(&["snapshot", &record, "-o"]),
        words(&["plan", "--algorithm=greedy-size", &table, "-o"]),
        words(&["plan", "--algorithm=greedy-size", &table, "--plot"]),
        words(&["compare", "--policy=direct", "--repeat=1", &record, "--plot"]),
    ]
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name().into());
    let mut names: Vec<PathBuf> = entries.collect();
    names.sort();
    names
}

#[test]
fn a_link_stays_and_its_target_is_written() {
    let place = folder("outputs_link");
    for (number, mut command) in commands(&place).into_iter().enumerate() {
        let [target, link] = ["target", "link"].map(|name| place.join(format!("{name}{number}")));
        symlink(&target, &link).expect("a link");
        // A file with the name is the user's own.
        let neighbour = write(&place, &format!("link{number}.part"), "the user's");
        command.push(link.display().to_string());
        let finished = cachalot(&command);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{command:?}");
        assert!(link.is_symlink() && fs::metadata(&target).expect("the target").len() > 1024, "{command:?}");
        assert_eq!(fs::read_to_string(neighbour).expect("it stays"), "the user's");
    }
}

#[test]
fn a_full_device_is_a_complaint_and_stays() {
    let place = folder("outputs_device");
    // Writes through a link: a command that replaces the named file replaces the link, not the
    // machine's device.
    symlink("/dev/full", place.join("full")).expect("a link");
    for mut command in commands(&place) {
        command.push("full".to_owned());
        let finished = cachalot_in(&place, &command);
        assert_eq!(finished.status, 2, "{command:?}");
        assert!(finished.errors.contains("full: ") && finished.errors.lines().count() == 1, "{}", finished.errors);
        assert!(place.join("full").is_symlink(), "{command:?}");
        assert!(fs::metadata("/dev/full").expect("it exists").file_type().is_char_device());
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_else() {
    let place = folder("outputs_disk");
    for old in [None, Some("old")] {
        for command in commands(&place) {
            let file = place.join("output");
            match old {
                Some(old) => fs::write(&file, old).expect("the folder can be written"),
                None => assert!(!file.exists(), "{command:?}"),
            }
            // The limit on the length of files, in blocks of 512 bytes, stands in for a full disk.
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cachalot")]);
            let output = shell.args(&command).arg(&file).output().expect("a shell");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {errors}");
            assert!(errors.contains("File too large") && errors.lines().count() == 1, "{command:?}: {errors}");
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), old, "{command:?}");
            let left = [Some("input.csv"), old.map(|_| "output")].into_iter().flatten().map(PathBuf::from);
            assert_eq!(names(&place), left.collect::<Vec<_>>(), "{command:?}");
        }
    }
}

#[test]
fn standard_output_is_written_in_order_wherever_it_leads() {
    let place = folder("outputs_stdout");
    // Writes through a link, as above.
    let link = place.join("stdout");
    symlink("/dev/stdout", &link).expect("a link");
    for mut command in commands(&place) {
        command.push(link.display().to_string());
        let run = || {
            let mut run = Command::new(env!("CARGO_BIN_EXE_cachalot"));
            run.args(&command);
            run
        };
        let piped = run().output().expect("the command runs");
        assert!(piped.status.success() && piped.stderr.is_empty(), "{command:?}");
        // Measured times differ from run to run, in bytes but not in the number of lines.
        let lines = |bytes: &[u8]| bytes.split(|&byte| byte == b'\n').count();
        let file = write(&place, "file", "before\n");
        let to = fs::File::options().append(true).open(&file).expect("the test's own");
        assert!(run().stdout(to).status().expect("the command runs").success(), "{command:?}");
        let written = fs::read(&file).expect("the test's own");
        assert!(written.starts_with(b"before\n"), "{command:?}");
        assert_eq!(lines(&written), lines(&piped.stdout) + 1, "{command:?}");
        assert!(link.is_symlink(), "{command:?}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let place = folder("outputs_gone");
    let [record, snapshot] =
        ["mlp_seed.csv.gz", "mlp_seed__stacks.pickle.gz"].map(|name| trace(name).display().to_string());
    let (missing, page) = ("missing.pickle", place.join("page.html").display().to_string());
    for (command, expected) in [
        (vec!["diff", &snapshot, &snapshot], 0),
        (vec!["diff", missing, missing], 2),
        (vec!["inspect", &snapshot], 0),
        (vec!["inspect", missing], 2),
        (vec!["replay", &record], 0),
        (vec!["replay", missing], 2),
        (vec!["compare", missing], 2),
        (vec!["tune", missing], 2),
        (vec!["predict", missing], 2),
        (vec!["plan", missing], 2),
        (vec!["view", missing, "-o", &page], 2),
        (vec!["export", "--to", "csv", missing, "-o", &page], 2),
        (vec!["snapshot", missing, "-o", &page], 2),
        (vec!["ledger", missing], 2),
        (vec!["park", "nobody of this name"], 2),
        (vec!["status", "nobody of this name"], 2),
        (vec!["top", "--once"], 0),
        (vec!["run", "--", "./no such program"], 127),
        (vec!["completions", "bash"], 0),
        (vec!["man", "plan"], 0),
        (vec!["man", "nothing"], 2),
        (vec!["--help"], 0),
        (vec![], 2),
    ] {
        let (reader, output) = std::io::pipe().expect("a pipe");
        drop(reader);
        let errors = output.try_clone().expect("the same end");
        let mut run = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        let status = run.args(&command).current_dir(&place).stdout(output).stderr(errors).status().expect("it runs");
        assert_eq!(status.code(), Some(expected), "{command:?}");
    }
}
