//! The standard input, an empty table, and the exit status of `--fail-on-oom`.

use crate::common::{cachalot, cachalot_in, folder, trace, write};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `cachalot` with a file as the standard input. Returns the lines of `--json`.
fn piped(arguments: &[&str], file: &Path) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    let input = File::open(file).expect("a file");
    let output = command.args(arguments).arg("-").stdin(Stdio::from(input)).output().expect("the command runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn a_dash_is_the_standard_input() {
    let (record, snapshot) = (trace("mlp_seed.csv.gz"), trace("mlp_seed__stacks.pickle.gz"));
    let page = folder("dash").join("page.html");
    let output = format!("--output={}", page.display());
    for arguments in [&["replay", "--json"][..], &["compare", "--json", "--repeat=1", "--policy=caching"]] {
        let line = &piped(arguments, &record)[0];
        assert_eq!((&line["file"], &line["record"]), (&"-".into(), &"stdin".into()), "{arguments:?}");
    }
    assert_eq!(piped(&["predict", "--json", "--policy=caching"], &record)[0]["record"], "stdin");
    assert_eq!(piped(&["tune", "--json", "--trials=1"], &record)[0]["recorded"][0]["record"], "stdin");
    assert_eq!(piped(&["plan", "--json", "--algorithm=greedy-size"], &record)[0]["file"], "-");
    assert_eq!(piped(&["inspect", "--json"], &snapshot)[0]["answers"][0]["record"], "stdin");
    assert_eq!(piped(&["view", "--json", &output], &snapshot)[0]["label"], "stdin");
}

#[test]
fn a_table_without_buffers_has_a_plan_of_no_bytes() {
    let place = folder("empty");
    let table = write(&place, "table.csv", "id,lower,upper,size\n");
    let plan = place.join("plan.csv");
    let arguments = [Path::new("plan"), Path::new("--json"), Path::new("-o"), &plan, &table];
    let finished = cachalot(arguments);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let line = &finished.json()[0];
    assert_eq!((&line["buffers"], &line["peak_bytes"], &line["optimal"]), (&0.into(), &0.into(), &true.into()));
    assert_eq!(std::fs::read_to_string(plan).expect("a plan"), "id,lower,upper,size,offset\n");
}

#[test]
fn a_page_lies_beside_its_file() {
    let place = folder("beside");
    std::fs::copy(trace("mlp_seed__stacks.pickle.gz"), place.join("run.v1.pickle.gz")).expect("a copy");
    let finished = cachalot_in(&place, ["view", "run.v1.pickle.gz"]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    assert!(finished.output.ends_with("\nwritten to run.v1.html\n"), "{}", finished.output);
    assert!(place.join("run.v1.html").exists());
}

#[test]
fn lack_of_memory_fails_where_it_is_asked_for() {
    let file = trace("mlp_seed.csv.gz");
    let status = |arguments: &[&str]| {
        let finished = cachalot(arguments.iter().map(Path::new).chain([&*file]));
        assert_eq!(finished.errors, "", "{arguments:?}");
        finished.status
    };
    let limit = "--limit=450MiB";
    for command in [&["compare", "--repeat=1"][..], &["predict"]] {
        let with = |options: &[&str]| status(&[command, options].concat());
        assert_eq!(with(&[limit]), 0, "a result");
        assert_eq!(with(&["--fail-on-oom"]), 0, "{command:?}");
        assert_eq!(with(&["--fail-on-oom", "--limit=300MiB"]), 1, "{command:?}");
        assert_eq!(with(&["--fail-on-oom", "--limit=300MiB", "--policy=stitched"]), 1, "{command:?}");
        assert_eq!(with(&["--fail-on-oom", "--limit=600MiB", "--policy=stitched"]), 0, "{command:?}");
    }
}
