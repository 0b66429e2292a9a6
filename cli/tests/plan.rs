//! `cachalot plan`: tables, operators and records in; figures, a table and a picture out.

use crate::common::{Finished, cachalot, folder, gzip, trace, write};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// `MiniMalloc`'s example of five buffers, with the optimum 12.
const FIVE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

fn plan<'a>(options: impl IntoIterator<Item = &'a str>, file: &'a Path) -> Finished {
    let file = file.to_str().expect("a name in UTF-8");
    cachalot(["plan"].into_iter().chain(options).chain([file]))
}

/// Returns the line of `--json`.
fn line<'a>(options: impl IntoIterator<Item = &'a str>, file: &'a Path) -> Value {
    let finished = plan(["--json"].into_iter().chain(options), file);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{}", finished.output);
    let mut lines = finished.json();
    assert_eq!(lines.len(), 1, "{}", finished.output);
    lines.remove(0)
}

/// Returns the lines of a table, by the names of the columns.
fn rows(file: &Path) -> Vec<HashMap<String, String>> {
    let mut reader = csv::Reader::from_path(file).expect("a table");
    reader.deserialize().map(|row| row.expect("a row")).collect()
}

#[test]
fn a_table() {
    let folder = folder("plan_table");
    let file = write(&folder, "five.csv", FIVE);
    let output = folder.join("plan.csv");
    let line = line(["-o", output.to_str().expect("UTF-8")], &file);
    assert_eq!(line["file"], json!(file.to_str()));
    assert_eq!(line["part"], Value::Null);
    assert_eq!((&line["buffers"], &line["peak_bytes"]), (&json!(5), &json!(12)));
    assert_eq!((&line["lower_bound_bytes"], &line["optimal"]), (&json!(12), &json!(true)));
    assert!(line["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{line}");
    assert!(line["algorithm"].is_string());
    let rows = rows(&output);
    assert_eq!(rows.iter().map(|row| row["id"].as_str()).collect::<Vec<_>>(), ["b1", "b2", "b3", "b4", "b5"]);
    let number = |row: &HashMap<String, String>, column: &str| row[column].parse::<u64>().expect("a number");
    for (one, other) in rows.iter().enumerate().flat_map(|(at, one)| rows[..at].iter().map(move |other| (one, other))) {
        let at_once = number(one, "lower") < number(other, "upper") && number(other, "lower") < number(one, "upper");
        let low = |row| number(row, "offset");
        let high = |row| number(row, "offset") + number(row, "size");
        assert!(!at_once || high(one) <= low(other) || high(other) <= low(one), "{one:?} {other:?}");
    }
}

#[test]
fn the_exact_search_says_that_a_problem_is_too_large_for_it() {
    let folder = folder("plan_too_large");
    let rows: String = (0..3000).fold("id,lower,upper,size\n".to_owned(), |mut text, id| {
        writeln!(text, "{id},0,1,1").expect("a string");
        text
    });
    let file = write(&folder, "large.csv", &rows);
    let alone = plan(["--algorithm", "exact"], &file);
    assert_eq!(alone.status, 1, "{}", alone.errors);
    assert!(alone.errors.contains("the problem is too large for the exact search; the portfolio"), "{}", alone.errors);
    assert_eq!(line([], &file)["optimal"], json!(true));
}

#[test]
fn memory_is_planned_into_the_gaps_of_a_buffer() {
    let folder = folder("plan_gaps");
    // `b` is in the gap of `a`; `c` beside the four bytes that `d` keeps in its gap.
    let text = "id,lower,upper,size,gaps,hint\na,0,9,8,3-6,-1\nb,3,6,8,,0\nd,20,29,8,23-26@4:8,\nc,23,26,4,,\n";
    let file = write(&folder, "gaps.csv", text);
    let output = folder.join("plan.csv");
    let line = line(["-o", output.to_str().expect("UTF-8")], &file);
    assert_eq!((&line["buffers"], &line["peak_bytes"], &line["optimal"]), (&json!(4), &json!(8), &json!(true)));
    let offsets: Vec<String> = rows(&output).into_iter().map(|row| row["offset"].clone()).collect();
    assert_eq!(offsets, ["0"; 4]);
}

/// A window after a gap without bytes follows no whole buffer: its low bytes are held, and no proof
/// is claimed.
#[test]
fn a_gap_that_cannot_be_planned_exactly_says_so() {
    let text = "id,lower,upper,size,gaps\na,0,9,8,3-4 4-6@4:8\nb,4,6,4,\n";
    let file = write(&folder("plan_gap_held"), "held.csv", text);
    let finished = plan(["--capacity=8"], &file);
    let why = "the bytes below a window are held in a gap that follows no time with all bytes";
    assert_eq!(finished.errors, format!("{}: line 2: {why}, so a smaller plan may exist\n", file.display()));
    assert!(finished.output.contains("not decided"), "{}", finished.output);
    assert_eq!(finished.status, 1);
}

#[test]
fn minimallocs_other_names_of_the_columns_are_read() {
    let place = folder("plan_names");
    // In `end`, a life has its last step.
    let other = "buffer_id,start,end,size\nb1,0,2,4\nb2,3,8,4\nb3,0,8,4\nb4,9,20,4\nb5,0,20,4\n";
    let names = FIVE.replace("id,lower", "buffer,begin");
    for (name, text) in [("end.csv", other), ("begin.csv", &names)] {
        let file = write(&place, name, text);
        let line = line([], &file);
        assert_eq!((&line["peak_bytes"], &line["optimal"]), (&json!(12), &json!(true)), "{name}");
    }
}

#[test]
fn the_table_for_people() {
    let file = write(&folder("plan_people"), "five.csv", FIVE);
    let finished = plan([], &file);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    for word in ["problem", "buffers", "12", "optimal", "five.csv"] {
        assert!(finished.output.contains(word), "{word}: {}", finished.output);
    }
}

#[test]
fn columns_in_any_order_alignment_and_fixed_offsets() {
    let folder = folder("plan_columns");
    let table = "size,offset,lower,id,upper,alignment\n10,64,0,a,4,64\n30,,0,b,4,32\n5,,2,c,9,1\n";
    let file = write(&folder, "columns.csv.gz", gzip(table));
    let output = folder.join("plan.csv");
    let line = line(["-o", output.to_str().expect("UTF-8")], &file);
    // `a` is fixed at 64 and has 10 bytes, so it ends at 74. The rest fits below it.
    assert_eq!((&line["peak_bytes"], &line["lower_bound_bytes"]), (&json!(74), &json!(74)));
    let text = fs::read_to_string(&output).expect("a table");
    assert!(text.starts_with("size,offset,lower,id,upper,alignment\n10,64,0,a,4,64\n"), "{text}");
    let rows = rows(&output);
    assert_eq!(rows[1]["offset"].parse::<u64>().expect("a number") % 32, 0);
}

#[test]
fn an_alignment_for_what_states_none() {
    let file = write(&folder("plan_alignment"), "two.csv", "id,lower,upper,size\na,0,2,10\nb,0,2,10\n");
    assert_eq!(line([], &file)["peak_bytes"], json!(20));
    // The upper one is at 16, and its end is not rounded up.
    assert_eq!(line(["--alignment", "16"], &file)["peak_bytes"], json!(16 + 10));
}

#[test]
fn every_algorithm_by_its_name() {
    let file = write(&folder("plan_algorithms"), "five.csv", FIVE);
    let mut names = Vec::new();
    let refused = plan(["--algorithm", "none"], &file);
    assert_eq!(refused.status, 2);
    let accepted = refused.errors.split_once("expected one of ").expect("the names").1;
    for name in accepted.lines().next().expect("a line").split(", ") {
        let line = line(["--algorithm", name], &file);
        assert_eq!(line["peak_bytes"], json!(12), "{name}");
        assert!(name == "portfolio" || line["algorithm"] == json!(name), "{line}");
        names.push(name);
    }
    for name in ["portfolio", "pushdown", "best-fit", "interval-move", "squeeze", "squeaky-wheel", "greedy-size"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn whether_it_fits() {
    let file = write(&folder("plan_capacity"), "five.csv", FIVE);
    let fits = line(["--capacity", "12"], &file);
    assert_eq!((&fits["answer"], &fits["capacity_bytes"]), (&json!("fits"), &json!(12)));
    assert!(fits["peak_bytes"].as_u64().is_some_and(|peak| peak <= 12));
    let finished = plan(["--json", "--capacity", "11"], &file);
    assert_eq!((finished.status, &finished.json()[0]["answer"]), (1, &json!("does not fit")));
    let people = plan(["--capacity", "11"], &file);
    assert!(people.output.contains("does not fit"), "{}", people.output);
}

#[test]
fn what_only_a_search_can_answer() {
    // `MiniMalloc`'s `InfeasibleTricky`: at most 4 bytes are live in any step, but every plan needs
    // 5 bytes.
    let table = "id,lower,upper,size\na,0,1,3\nb,0,3,1\nc,4,5,3\nd,2,5,1\ne,1,2,2\nf,3,4,2\ng,1,4,1\n";
    let file = write(&folder("plan_tricky"), "tricky.csv", table);
    for (algorithm, answer) in [("portfolio", "does not fit"), ("exact", "does not fit"), ("squeeze", "not decided")] {
        let finished = plan(["--json", "--capacity", "4", "--algorithm", algorithm], &file);
        assert_eq!((finished.status, &finished.json()[0]["answer"]), (1, &json!(answer)), "{algorithm}");
        let proven = answer == "does not fit";
        let best = line(["--algorithm", algorithm], &file);
        assert_eq!((&best["peak_bytes"], &best["optimal"]), (&json!(5), &json!(proven)), "{algorithm}");
        assert_eq!(best["lower_bound_bytes"], json!(if proven { 5 } else { 4 }), "{algorithm}");
    }
}

const OPERATORS: &str = r#"{
  "devices": [{"name": "gpu", "alignment": 256}, {"name": "host"}],
  "values": [{"name": "in", "size": 1000, "device": "host", "life": "external"}, {"name": "x", "size": 1000},
             {"name": "y", "size": 1000}, {"name": "part", "size": 100}, {"name": "z", "size": 1000},
             {"name": "out", "size": 1000, "device": "host", "life": "kept"}],
  "operators": [{"name": "copy", "inputs": ["in"], "outputs": [{"value": "x"}]},
                {"name": "slice", "inputs": ["x"], "outputs": [{"value": "part", "view": "x", "offset": 256}]},
                {"name": "relu", "inputs": ["x"], "outputs": [{"value": "y", "over": "x"}]},
                {"inputs": ["y", "part"], "outputs": [{"value": "z", "over": "y"}]},
                {"name": "back", "inputs": ["z"], "outputs": [{"value": "out"}]}]
}"#;

#[test]
fn operators() {
    let folder = folder("plan_operators");
    let file = write(&folder, "program.json", OPERATORS);
    let output = folder.join("places.csv");
    let finished = plan(["--json", "-o", output.to_str().expect("UTF-8")], &file);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let lines = finished.json();
    assert_eq!(lines.iter().map(|line| &line["part"]).collect::<Vec<_>>(), [&json!("gpu"), &json!("host")]);
    // `x` and `y` live at once: the upper one is at 1024.
    assert_eq!((&lines[0]["peak_bytes"], &lines[1]["peak_bytes"]), (&json!(1024 + 1000), &json!(1000)));
    let names = |entries: &Value| -> Vec<String> {
        let entries = entries.as_array().expect("a list");
        entries.iter().map(|entry| entry["value"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(
        (names(&lines[0]["taken"]), names(&lines[0]["refused"])),
        (vec!["part".to_owned(), "z".to_owned()], vec!["y".to_owned()])
    );
    let why = lines[0]["refused"][0]["why"].as_str().expect("a reason");
    assert_eq!(why, "it would change `part`, which operator 4 reads later");
    let rows = rows(&output);
    let offset = |name: &str| -> u64 {
        let row = rows.iter().find(|row| row["id"] == name).expect(name);
        row["offset"].parse().expect("a number")
    };
    assert_eq!((offset("part"), offset("z")), (offset("x") + 256, offset("y")));
    assert_eq!(rows.iter().filter(|row| row["device"] == "host").count(), 1);
    let people = plan([], &file);
    assert!(people.output.contains("2 forwards taken, 1 refused"), "{}", people.output);
    let apart = write(&folder, "apart.json", OPERATORS.replacen('{', "{\"share\": false,", 1));
    let lines = plan(["--json"], &apart).json();
    assert_eq!(names(&lines[0]["refused"]), ["part", "y", "z"]);
}

/// Builds a record in which every step allocates 300, then 700 until the 300 are freed, then keeps
/// a 900 into the next step.
fn steps(count: u64) -> String {
    let mut record = String::from("action,addr,size,stream\nA,10000000,2097152,0\n");
    for step in 0..count {
        let held = 0x1000_0000 + 0x10_0000 + step % 2 * 0x1_0000;
        let before = 0x1000_0000 + 0x10_0000 + (step + 1) % 2 * 0x1_0000;
        record += "a,10000000,300,0\na,10000200,700,0\nf,10000000,300,0\nc,10000000,300,0\n";
        writeln!(record, "a,{held:x},900,0").expect("text grows");
        if step > 0 {
            writeln!(record, "f,{before:x},900,0\nc,{before:x},900,0").expect("text grows");
        }
        record += "f,10000200,700,0\nc,10000200,700,0\n";
    }
    record
}

#[test]
fn a_record_is_planned_by_its_repeated_section() {
    let folder = folder("plan_record");
    let file = write(&folder, "steps.csv", steps(8));
    let output = folder.join("plan.csv");
    let one = line(["-o", output.to_str().expect("UTF-8")], &file);
    // Three allocations a step. The 900 live for more than a step, so two copies exist at all
    // times. All four are live at once: the 700, which leave most of their last 512 unused, are on
    // top.
    assert!(one["part"].as_str().is_some_and(|part| part.ends_with("repeated")), "{one}");
    assert_eq!((&one["buffers"], &one["peak_bytes"]), (&json!(4), &json!(512 + 2 * 1024 + 700)));
    let rows = rows(&output);
    let held: Vec<_> = rows.iter().filter(|row| row["size"] == "900").collect();
    assert_eq!(held.len(), 2);
    assert!(held.iter().all(|row| row["lower"] == "0"));
    assert_eq!(format!("{}#2", held[0]["id"]), held[1]["id"]);
    // The plan is a table, too.
    assert_eq!(line([], &output)["peak_bytes"], one["peak_bytes"]);
    let chosen = line(["--section", "0..3"], &file);
    assert_eq!((&chosen["part"], &chosen["buffers"]), (&json!("allocations 0..3"), &json!(3)));
    assert_eq!(line(["--alignment", "1", "--section", "0..3"], &file)["peak_bytes"], json!(1600));
}

#[test]
fn a_recorded_trace() {
    let line = line(["--algorithm", "pushdown"], &trace("mlp_seed.csv.gz"));
    assert!(line["part"].as_str().is_some_and(|part| part.ends_with("repeated")), "{line}");
    let whole = plan(["--algorithm", "pushdown", "--section", "0..64", "--json"], &trace("mlp_seed.csv.gz"));
    assert_eq!(whole.json()[0]["part"], json!("all allocations"));
    assert_eq!(whole.json()[0]["buffers"], json!(64));
    // A snapshot has a record for each device with events.
    let snapshot = plan(["--algorithm", "pushdown", "--json"], &trace("mlp_seed__stacks.pickle.gz"));
    assert_eq!((snapshot.status, snapshot.json()[0]["peak_bytes"].clone()), (0, line["peak_bytes"].clone()));
}

#[test]
fn a_picture() {
    let folder = folder("plan_picture");
    let file = write(&folder, "five.csv", FIVE);
    let picture = folder.join("plan.svg");
    line(["--plot", picture.to_str().expect("UTF-8")], &file);
    let image = fs::read_to_string(&picture).expect("a picture");
    let document = roxmltree::Document::parse(&image).expect("SVG");
    let filled = document
        .descendants()
        .filter(|node| node.has_tag_name("rect") && node.attribute("opacity").is_some_and(|opacity| opacity == "0.6"));
    assert_eq!(filled.count(), 5);
    let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    assert!(texts.iter().any(|text| text.ends_with("five.csv: peak 12 bytes, lower bound 12")), "{texts:?}");
}

#[test]
fn a_buffer_without_bytes_takes_no_room() {
    let folder = folder("plan_empty");
    let table = "id,lower,upper,size,offset\na,0,9,0,\nb,0,9,5,\nc,0,9,0,64\nd,0,9,7,\n";
    let file = write(&folder, "empty.csv", table);
    let output = folder.join("plan.csv");
    let line = line(["-o", output.to_str().expect("UTF-8")], &file);
    assert_eq!((&line["buffers"], &line["peak_bytes"], &line["optimal"]), (&json!(2), &json!(12), &json!(true)));
    let rows = rows(&output);
    let offsets: Vec<_> = rows.iter().map(|row| (row["id"].as_str(), row["offset"].as_str())).collect();
    assert_eq!((offsets[0], offsets[2]), (("a", "0"), ("c", "64")));
    let file = write(&folder, "nothing.csv", "id,lower,upper,size\na,0,9,0\n");
    let plotted = folder.join("nothing.svg");
    let finished = plan(["--plot", plotted.to_str().expect("UTF-8")], &file);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    assert!(finished.output.contains("optimal") && plotted.exists(), "{}", finished.output);
}

#[test]
fn what_a_plan_of_a_section_leaves_out_is_said() {
    // 5,000 bytes of weights before the steps, in a segment of 2 MiB.
    let record = steps(8).replace("A,10000000,2097152,0\n", "A,10000000,2097152,0\na,101c0000,5000,0\n");
    let file = write(&folder("plan_outside"), "steps.csv", record);
    let one = line([], &file);
    let planned = 512 + 2 * 1024 + 700;
    assert_eq!((&one["peak_bytes"], &one["throughout_bytes"]), (&json!(planned), &json!(5120)));
    assert_eq!((&one["outside_bytes"], &one["held_bytes"]), (&json!(5120), &json!((2 << 20) - 5120)));
    let people = plan([], &file);
    let held = "3.18 KiB planned; the recorded allocator held 2.00 MiB for these buffers";
    for part in [held, "5.00 KiB held throughout are not in the plan"] {
        assert!(people.output.contains(part), "{part}: {}", people.output);
    }
    let whole = plan(["--section", "0..99"], &file);
    assert!(!whole.output.contains("throughout"), "{}", whole.output);
}

#[test]
fn a_picture_shows_every_buffer() {
    let folder = folder("plan_narrow");
    // A step of 100,000, and a byte of a million: both less than a pixel.
    let table = "id,lower,upper,size\nlong,0,100000,1000000\nshort,500,501,1000000\nflat,0,100000,1\n";
    let file = write(&folder, "narrow.csv", table);
    let picture = folder.join("plan.svg");
    line(["--plot", picture.to_str().expect("UTF-8")], &file);
    let image = fs::read_to_string(&picture).expect("a picture");
    let document = roxmltree::Document::parse(&image).expect("SVG");
    let sides: Vec<u32> = document
        .descendants()
        .filter(|node| node.has_tag_name("rect"))
        .flat_map(|node| ["width", "height"].map(|side| node.attribute(side).expect(side).parse().expect("a number")))
        .collect();
    assert!(sides.len() >= 8 && sides.iter().all(|&side| side > 0), "{sides:?}");
}

#[test]
fn several_files() {
    let folder = folder("plan_several");
    let one = write(&folder, "one.csv", FIVE);
    let two = write(&folder, "two.csv", "id,lower,upper,size\na,0,1,7\n");
    let missing = folder.join("none.csv");
    let finished = cachalot([Path::new("plan"), Path::new("--json"), &one, &missing, &two]);
    assert_eq!(finished.status, 2);
    let peaks: Vec<_> = finished.json().iter().map(|line| line["peak_bytes"].clone()).collect();
    assert_eq!(peaks, [json!(12), json!(7)]);
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
}
