//! `--policy planned`: observes a part of a record, and serves the following part from a plan.

use crate::common::{cachalot, folder, write};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

/// Three requests. The third takes the place of the first.
const STEP: &str = "\
a,100000000,1000,0
a,100000400,2000,0
f,100000000,1000,0
c,100000000,1000,0
a,100000000,500,0
f,100000400,2000,0
c,100000400,2000,0
f,100000000,500,0
c,100000000,500,0
";

/// Builds a program of eight steps, with `odd` before the last step.
fn steps(odd: &str) -> String {
    let head = "action,addr,size,stream\nA,100000000,2097152,0\n";
    format!("{head}{}{odd}{}", STEP.repeat(7), STEP)
}

fn line(command: &[&str], file: &Path) -> Value {
    let arguments = command.iter().map(OsString::from).chain([file.into()]);
    let finished = cachalot(arguments);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    // In `compare`, the recording comes first.
    let mut lines = finished.json();
    assert!(lines.len() == 1 || command[0] == "compare");
    lines.remove(lines.len() - 1)
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} of {line} is no whole number"))
}

#[test]
fn the_steps_of_the_second_half_are_served_from_one_segment() {
    let file = write(&folder("planned_steps"), "steps.csv", steps(""));
    for command in [["replay", "--json", "--policy=planned"], ["compare", "--json", "--policy=planned"]] {
        let line = line(&command, &file);
        assert_eq!(line["policy"], "planned");
        let planned = &line["planned"];
        assert_eq!((number(planned, "plans"), number(planned, "served")), (1, 4 * 3));
        assert_eq!((number(planned, "peak_bytes"), number(planned, "lower_bound_bytes")), (3072, 3072));
        for deviation in ["lasting", "extra", "missing", "reordered", "occupied"] {
            assert_eq!(number(planned, deviation), 0, "{deviation}");
        }
        assert_eq!((number(&line, "peak_live_bytes"), number(&line, "peak_reserved_bytes")), (3000, 2 << 20));
        assert!(line["ns_per_op"].as_f64().expect("a number") > 0.0);
    }
}

#[test]
fn what_deviates_is_counted() {
    let odd = "a,100000000,700000,0\nf,100000000,700000,0\nc,100000000,700000,0\n";
    let file = write(&folder("planned_odd"), "odd.csv", steps(odd));
    let config = ["replay", "--json", "--config=policy:planned,fallback:bfc,plan_deadline_ms:100"];
    let line = line(&config, &file);
    assert_eq!(number(&line["planned"], "extra"), 1);
    assert_eq!(number(&line["planned"], "missing"), 0);
    assert!(number(&line, "peak_reserved_bytes") > 2 << 20);
}

#[test]
fn other_policies_say_nothing_of_plans() {
    let file = write(&folder("planned_others"), "steps.csv", steps(""));
    assert_eq!(line(&["replay", "--json", "--policy=slab"], &file).get("planned"), None);
    assert_eq!(line(&["compare", "--json", "--policy=slab"], &file).get("planned"), None);
}

#[test]
fn the_table_has_a_column_for_each_deviation() {
    let file = write(&folder("planned_table"), "steps.csv", steps(""));
    let finished = cachalot(["replay".into(), "--wide".into(), "--policy=planned".into(), file.into_os_string()]);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    for column in ["plan", "lower bound", "served", "lasting", "extra", "missing", "reordered", "occupied"] {
        assert!(finished.output.contains(column), "{column} is not in\n{}", finished.output);
    }
}

#[test]
fn a_program_that_does_not_repeat_is_cut_in_two() {
    // The second half has no request of the first half.
    let head = "action,addr,size,stream\nA,100000000,2097152,0\n";
    let step = |step: u64| {
        let bytes = step * 1000;
        format!("a,100000000,{bytes},0\nf,100000000,{bytes},0\nc,100000000,{bytes},0\n")
    };
    let body = (1..9).map(step).collect::<Vec<_>>().concat();
    let file = write(&folder("planned_halves"), "halves.csv", format!("{head}{body}"));
    let line = line(&["replay", "--json", "--policy=planned"], &file);
    let planned = &line["planned"];
    assert_eq!((number(planned, "plans"), number(planned, "served"), number(planned, "extra")), (1, 0, 4));
    assert_eq!((number(planned, "peak_bytes"), number(&line, "peak_live_bytes")), (4096, 8000));
}
