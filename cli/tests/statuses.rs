//! Exit statuses: equal meanings in every command, as docs/command.md lists them.

use crate::common::{cachalot, folder, trace, write};

/// The commands that read files, with more arguments.
const READERS: [&[&str]; 6] =
    [&["replay"], &["compare", "--repeat=1"], &["tune"], &["plan"], &["inspect"], &["snapshot"]];

#[test]
fn everything_that_holds_is_0() {
    let (record, snapshot) = (trace("mlp_seed.csv.gz"), trace("mlp_seed__stacks.pickle.gz"));
    for reader in READERS {
        let file = if reader[0] == "inspect" { &snapshot } else { &record };
        let mut arguments = reader.to_vec();
        let out = folder("holds").join("out.pickle");
        let (out, file) = (out.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        if reader[0] == "snapshot" {
            arguments.extend(["-o", out]);
        }
        arguments.push(file);
        let finished = cachalot(&arguments);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_used_is_2_and_named_in_a_line() {
    let place = folder("unusable");
    let missing = place.join("missing.csv");
    let wrong = write(&place, "wrong.csv", "action,addr,size,stream\nf,100,512,0\n");
    for reader in READERS {
        for file in [&missing, &wrong] {
            let mut arguments: Vec<String> = reader.iter().map(ToString::to_string).collect();
            if reader[0] == "snapshot" {
                arguments.extend(["-o".to_owned(), place.join("out.pickle").display().to_string()]);
            }
            arguments.push(file.display().to_string());
            let finished = cachalot(&arguments);
            assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{arguments:?}");
            assert_eq!(finished.errors.lines().count(), 1, "{arguments:?}: {}", finished.errors);
            assert!(finished.errors.contains(file.to_str().expect("UTF-8")), "{}", finished.errors);
        }
    }
    for command in ["replay", "compare", "tune", "predict", "plan", "inspect", "snapshot", "completions", "man"] {
        let finished = cachalot([command, "--no-such-option"]);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{command}");
    }
}

#[test]
fn a_check_that_fails_is_1() {
    let place = folder("checks");
    let late = "action,addr,size,stream\nA,100000000,2097152,0\na,100000000,1000,0\na,100000800,1000,0\n";
    let differs = write(&place, "differs.csv", late);
    let program = trace("mlp_seed.csv.gz");
    for arguments in [
        vec!["replay".to_owned(), "--check".to_owned(), differs.display().to_string()],
        vec!["replay".to_owned(), "--limit=100MiB".to_owned(), program.display().to_string()],
        vec!["plan".to_owned(), "--capacity=1MiB".to_owned(), program.display().to_string()],
    ] {
        assert_eq!(cachalot(&arguments).status, 1, "{arguments:?}");
    }
    // In `compare` and `tune`, a contender that runs out of memory is a result.
    for command in ["compare", "tune", "predict"] {
        let finished = cachalot([command, "--limit=100MiB", program.to_str().expect("UTF-8")]);
        assert_eq!(finished.status, 0, "{command}: {}", finished.errors);
    }
}
