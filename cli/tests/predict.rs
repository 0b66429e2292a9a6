//! `cachalot predict`: peaks of recorded programs, of scaled programs, and of lists of requests.

use crate::common::{Finished, cachalot, folder, trace, write};
use cachalot_core::config::PLANNED;
use cachalot_policies::NAMES as POLICIES;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

fn predict(arguments: &[&str], file: &Path) -> Finished {
    let arguments = ["predict"].iter().chain(arguments).map(OsString::from);
    cachalot(arguments.chain([file.into()]))
}

/// The objects that `predict --json` prints.
fn lines(arguments: &[&str], file: &Path) -> Vec<Value> {
    let finished = predict(&[&["--json"], arguments].concat(), file);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    finished.json()
}

const MIB: u64 = 1 << 20;

/// A weight of 4 MiB, then two steps with an activation of 3 MiB and a gradient of the weight.
fn list() -> String {
    let step = |first: u64| {
        let (one, other) = (first, first + 1);
        format!("a,{one},{},0\na,{other},{},0\nf,{one},,\nf,{other},,\n", 3 * MIB, 4 * MIB)
    };
    format!("request,block,size,stream\na,0,{},0\n{}{}", 4 * MIB, step(1), step(1))
}

#[test]
fn a_recorded_program_has_the_recorded_peaks() {
    // Small segments depend on the addresses that a driver gives.
    for (name, reserved) in [("gpt2_varlen", 22_055_747_584_u64), ("vit_mixed_res", 7_904_165_888)] {
        let line = &lines(&["--policy=caching"], &trace(&format!("{name}.csv.gz")))[0];
        let predicted = line["peak_reserved_bytes"].as_u64().expect("bytes");
        assert!(predicted.abs_diff(reserved) <= 2 * MIB, "{name}: {predicted}");
        assert_eq!((&line["ooms"], &line["first_failed_request"]), (&0.into(), &Value::Null));
    }
}

#[test]
fn a_list_of_requests_is_a_program() {
    let place = folder("list");
    let file = write(&place, "step.csv", list());
    let all = lines(&[], &file);
    let policies: Vec<&str> = all.iter().map(|line| line["policy"].as_str().expect("a name")).collect();
    assert_eq!(policies, POLICIES.into_iter().filter(|&name| name != PLANNED).collect::<Vec<_>>());
    // 4, 3 and 4 MiB share a segment of 20 MiB.
    let caching = &all[0];
    let peaks = (&caching["peak_allocated_bytes"], &caching["peak_reserved_bytes"]);
    assert_eq!(peaks, (&(11 * MIB).into(), &(20 * MIB).into()));
}

#[test]
fn a_larger_batch_grows_activations_alone() {
    let place = folder("scaled");
    let file = write(&place, "step.csv", list());
    let line = &lines(&["--policy=caching", "--batch-scale=3"], &file)[0];
    assert_eq!((&line["scaled_requests"], &line["fixed_requests"]), (&2.into(), &3.into()));
    assert_eq!(line["peak_allocated_bytes"], (4 + 9 + 4) * MIB);
    let head = predict(&["--policy=caching", "--batch-scale=3"], &file).output;
    assert!(
        head.starts_with("step: 5 requests, of which 2 grow with 3 times the batch: 27 % of the bytes at the peak\n"),
        "{head}"
    );

    // A second record says that the gradient grows as well.
    let other = list().replace(&format!(",{}", 3 * MIB), &format!(",{}", 6 * MIB));
    let other = other.replacen(&format!("a,2,{}", 4 * MIB), &format!("a,2,{}", 5 * MIB), 2);
    let beside = format!("--beside={}", write(&place, "other.csv", other).display());
    let line = &lines(&["--policy=direct", "--batch-scale=3", &beside, "--beside-scale=2"], &file)[0];
    assert_eq!(line["peak_allocated_bytes"], (4 + 9 + 6) * MIB);
}

#[test]
fn what_does_not_fit_fails_under_a_limit() {
    let file = write(&folder("limit"), "step.csv", list());
    let line = &lines(&["--policy=direct", "--limit=8MiB"], &file)[0];
    assert_eq!((&line["limit_bytes"], &line["ooms"]), (&(8 * MIB).into(), &2.into()));
    assert_eq!((&line["first_failed_request"], &line["largest_failed_bytes"]), (&3.into(), &(4 * MIB).into()));
    let text = predict(&["--policy=direct", "--limit=8MiB"], &file).output;
    let said = "Does not fit into 8.00 MiB with direct: needs 11.00 MiB; no batch fits. 2 requests fail.\n";
    assert!(text.starts_with(&format!("{said}step: 5 requests, limit 8.00 MiB\n")), "{text}");
    let row = text.lines().find(|line| line.starts_with("direct ")).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["direct", "–", "–", "2", "3"], "no peak of what fails");
    let text = predict(&["--policy=direct", "--limit=11MiB"], &file).output;
    let said =
        "Fits into 11.00 MiB with direct: 11.00 MiB reserved at the peak; the largest batch is 1 times this\n  one.\n";
    assert!(text.starts_with(said), "{text}");
    let arguments = ["--policy=direct", "--limit=17MiB", "--batch=10", "--device=NVIDIA T4"];
    let text = predict(&arguments, &file).output;
    let said =
        "Fits into NVIDIA T4 (17.00 MiB) with direct: 11.00 MiB reserved at the peak; the largest batch is\n  30.\n";
    assert!(text.starts_with(said), "{text}");
    let line = &lines(&arguments, &file)[0];
    assert!(line["largest_batch_scale"].as_f64().is_some_and(|scale| (2.97..=3.0).contains(&scale)), "{line}");
    assert!(line["growing_percent"].as_f64().is_some_and(|percent| (27.0..28.0).contains(&percent)), "{line}");
}

#[test]
fn a_list_tells_where_requests_were_made() {
    let place = folder("sites");
    // Two steps: an activation of the size of the weight, and the weight's gradient.
    let step = |first: u64| {
        let (one, other) = (first, first + 1);
        let activation = format!("a,{one},{},0,forward mm train.py:3\n", 4 * MIB);
        let gradient = format!("a,{other},{},0,backward mm\nf,{one},,,backward\n", 4 * MIB);
        format!("{activation}{gradient}a,99,512,0,optimizer add\nf,99,,,optimizer\nf,{other},,,forward\n")
    };
    let rows = format!("a,0,{},0,forward empty train.py:1\n{}{}{}", 4 * MIB, step(1), step(1), step(1));
    let file = write(&place, "step.csv", format!("request,block,size,stream,site\n{rows}"));
    let line = &lines(&["--policy=direct", "--batch-scale=5"], &file)[0];
    assert_eq!((&line["scaled_requests"], &line["peak_allocated_bytes"]), (&3.into(), &((4 + 20 + 4) * MIB).into()));
    // Without the places, sizes do not tell, and the record is refused rather than said to fit.
    let bare: String = rows.lines().map(|row| row.split(',').take(4).collect::<Vec<_>>().join(",") + "\n").collect();
    let bare = write(&place, "bare.csv", format!("request,block,size,stream\n{bare}"));
    let finished = predict(&["--batch-scale=5"], &bare);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert!(finished.errors.contains("the record does not tell what grows with the batch: "), "{}", finished.errors);
    assert!(finished.errors.contains("give another record by --beside"), "{}", finished.errors);
    // Under a limit alone, only the largest batch is left out.
    let finished = predict(&["--limit=1GiB", "--policy=direct"], &bare);
    assert_eq!(finished.status, 0);
    assert!(finished.output.contains("\nThe largest batch is not known: "), "{}", finished.output);
}

#[test]
fn stacks_tell_what_grows() {
    let line = &lines(&["--policy=caching", "--batch-scale=2"], &trace("multistream_prefetch__stacks.pickle.gz"))[0];
    assert!(line["growing_percent"].as_f64().is_some_and(|percent| percent > 90.0), "{line}");
}

#[test]
fn a_script_is_handed_to_the_package_that_predicts_it() {
    let place = folder("script");
    let file = write(&place, "train.py", "import torch\n");
    let shown = file.display();
    for command in ["view", "compare", "tune", "inspect"] {
        let finished = cachalot([Path::new(command), &file]);
        let why = format!("this is a Python script: `python -m cachalot_gpu.predict {shown}` predicts its memory");
        assert_eq!((finished.status, finished.errors), (2, format!("{shown}: {why}\n")), "{command}");
    }
    // An interpreter that has the package, and prints its arguments.
    let has = write(&place, "has", "#!/bin/sh\n[ \"$1\" = -c ] && exit 0\necho \"$@\"\nexit 3\n");
    let has_not = write(&place, "has_not", "#!/bin/sh\nexit 1\n");
    for interpreter in [&has, &has_not] {
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(interpreter, executable).expect("a file of this test");
    }
    let script = file.to_str().expect("UTF-8");
    let run = |interpreter: &Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cachalot"));
        command.args(["predict", "--gpu", "T4", script, "--batch-size", "8", "--help"]);
        command.env("CACHALOT_PYTHON", interpreter).output().expect("the command runs")
    };
    let done = run(&has);
    let passed = format!("-m cachalot_gpu.predict --gpu T4 {script} --batch-size 8 --help\n");
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned()), (Some(3), passed));
    for (interpreter, why) in
        [(has_not, "does not find the package cachalot-gpu"), (place.join("none"), "cannot be executed")]
    {
        let done = run(&interpreter);
        assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(2), [].as_slice()));
        assert!(String::from_utf8_lossy(&done.stderr).contains(why), "{done:?}");
    }
}

#[test]
fn what_cannot_be_used_is_refused() {
    let place = folder("refused");
    let file = write(&place, "step.csv", list());
    let refuse = |arguments: &[&str], file: &Path| {
        let finished = predict(arguments, file);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{arguments:?}");
        finished.errors
    };
    let wrong = write(&place, "wrong.csv", "request,block,size,stream\na,1,x,0\n");
    assert!(refuse(&[], &wrong).ends_with("wrong.csv:2: the size `x` is not a whole number\n"));
    assert!(refuse(&[], &place.join("none.csv")).contains("none.csv: cannot be read"));
    assert!(refuse(&["--policy=planned"], &file).contains("`planned` cannot be predicted"));
    assert!(refuse(&["--batch-scale=0"], &file).contains("`0` is not a factor"));
    assert!(refuse(&["--beside-scale=2"], &file).contains("--beside <FILE>"));
    let short = write(&place, "short.csv", "request,block,size,stream\na,1,5,0\n");
    let beside = format!("--beside={}", short.display());
    let error = refuse(&["--batch-scale=2", &beside, "--beside-scale=2"], &file);
    assert!(error.contains("the records are of two programs: one has 5 requests, the other 1"), "{error}");
    let beside = format!("--beside={}", file.display());
    assert!(refuse(&[&beside, "--beside-scale=1"], &file).contains("the other record must have another batch size"));
}
