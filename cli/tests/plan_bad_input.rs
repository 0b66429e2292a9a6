//! Invalid input of `cachalot plan` gets one line with the place and the accepted values, and exit
//! status 2.

use crate::common::{cachalot, folder, write};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Plans an invalid file. The error must be the line `complaint` about the file.
fn refuse(file: &Path, complaint: &str) {
    let finished = cachalot([Path::new("plan"), file]);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{}", finished.errors);
    assert_eq!(finished.errors, format!("{}{complaint}\n", file.display()));
}

/// Expects an error in the third line of a table, with any line ending.
fn refuse_line(test: &str, header: &str, line: &str, complaint: &str) {
    let good = "a,0,9,100,64,0,".split(',').take(header.split(',').count()).collect::<Vec<_>>().join(",");
    for end in ["\n", "\r\n"] {
        let file = write(&folder(test), "table.csv", [header, &good, line, ""].join(end));
        refuse(&file, &format!(":3: {complaint}"));
    }
}

const PLAIN: &str = "id,lower,upper,size";
const FULL: &str = "id,lower,upper,size,alignment,offset";

#[test]
fn what_is_no_number() {
    let words = "a whole number of at most 64 bits";
    refuse_line("plan_lower", PLAIN, "b,x,9,1", &format!("column 2: lower `x`: expected {words}"));
    refuse_line("plan_sign", PLAIN, "b,-1,9,1", &format!("column 2: lower `-1`: expected {words}"));
    refuse_line("plan_empty", PLAIN, "b,,9,1", &format!("column 2: lower ``: expected {words}"));
    let wide = "99999999999999999999";
    refuse_line("plan_wide", PLAIN, &format!("b,0,{wide},1"), &format!("column 3: upper `{wide}`: expected {words}"));
}

#[test]
fn lives_and_sizes() {
    refuse_line("plan_life", PLAIN, "b,9,9,1", "column 3: upper `9`: expected a number above lower, 9");
    for size in ["1152921504606846976", "1.5", "1KiB", ""] {
        let accepted = "a whole number of bytes from 0 to 1152921504606846975";
        refuse_line(
            "plan_size",
            PLAIN,
            &format!("b,0,9,{size}"),
            &format!("column 4: size `{size}`: expected {accepted}"),
        );
    }
}

#[test]
fn alignments_and_offsets() {
    for alignment in ["0", "3", "-8"] {
        let complaint = format!("column 5: alignment `{alignment}`: expected a power of two below 1152921504606846976");
        refuse_line("plan_power", FULL, &format!("b,0,9,1,{alignment},"), &complaint);
    }
    let accepted = "nothing, or a multiple of the alignment 64 below 1152921504606846976";
    refuse_line("plan_multiple", FULL, "b,0,9,1,64,32", &format!("column 6: offset `32`: expected {accepted}"));
    let clash = "bytes 96..97 overlap 0..100 of line 2, and both live at 5";
    refuse_line("plan_clash", FULL, "b,5,9,1,32,96", clash);
}

#[test]
fn gaps() {
    let refuse_gaps = |test: &str, gaps: &str, accepted: &str| {
        let header = format!("{FULL},gaps");
        refuse_line(
            test,
            &header,
            &format!("b,2,9,8,1,,{gaps}"),
            &format!("column 7: gaps `{gaps}`: expected {accepted}"),
        );
    };
    let form = "nothing, or gaps FROM-TO or FROM-TO@LOW:HIGH with spaces between";
    refuse_gaps("plan_gap", "3", form);
    refuse_gaps("plan_gap_back", "4-3", form);
    refuse_gaps("plan_gap_outside", "1-3", "gaps in turn, between 2 and 9");
    refuse_gaps("plan_gap_twice", "3-5 4-6", "gaps in turn, between 2 and 9");
    refuse_gaps("plan_gap_window", "3-5@0:9", "windows of at most the size, 8");
    refuse_gaps("plan_gap_all", "2-9", "a time of its life with all bytes");
    let last = "b,5,4,1";
    refuse_line("plan_end", "id,start,end,size", last, "column 3: end `4`: expected a number from lower on, 5");
}

#[test]
fn ids() {
    let complaint = "column 1: id `a` is on line 2, too: each buffer needs a different id";
    refuse_line("plan_id", PLAIN, "a,0,9,1", complaint);
    refuse_line("plan_id_empty", PLAIN, "a,0,9,0", complaint);
}

#[test]
fn columns() {
    let accepted = "expected id, lower, upper, size and, if wanted, alignment, offset and gaps";
    let header = |test: &str, header: &str, complaint: &str| {
        let file = write(&folder(test), "table.csv", format!("{header}\na,0,9,1,1,0\n"));
        refuse(&file, &format!(":1: {complaint}"));
    };
    header("plan_unknown", "id,lower,upper,size,color", &format!("column 5: unknown name `color`: {accepted}"));
    header("plan_same", "id,buffer,lower,upper,size", &format!("column 2: `id` is there twice: {accepted}"));
    header("plan_twice", "id,lower,lower,size", &format!("column 3: `lower` is there twice: {accepted}"));
    header("plan_missing", "id,lower,upper", &format!("column 4: no column is named `size`: {accepted}"));
    refuse_line("plan_short", PLAIN, "b,0,9", "the line has 3 fields, the header has 4");
    let file = write(&folder("plan_other"), "notes.txt", "hello\n");
    let finished = cachalot([Path::new("plan"), &file]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains(":1: nothing that can be planned: expected a table with"), "{}", finished.errors);
}

const PROGRAM: &str = r#"{
  "devices": [{"name": "gpu", "alignment": 256}],
  "values": [
    {"name": "x", "size": 1000},
    {"name": "y", "size": 2000, "life": "kept"}
  ],
  "operators": [
    {"name": "make", "outputs": [{"value": "x"}]},
    {"name": "use", "inputs": ["x"], "outputs": [{"value": "y"}]}
  ]
}
"#;

/// Expects an error for the program after a change.
fn refuse_program(test: &str, (from, to): (&str, &str), complaint: &str) {
    assert!(PROGRAM.contains(from), "{from}");
    let file = write(&folder(test), "program.json", PROGRAM.replace(from, to));
    refuse(&file, complaint);
}

#[test]
fn names_in_programs() {
    refuse_program(
        "plan_no_value",
        (r#"["x"]"#, r#"["é", "z"]"#),
        ":9: column 32: no value is named `é`: expected one of `values`",
    );
    refuse_program(
        "plan_no_device",
        (r#""size": 1000"#, r#""size": 1000, "device": "tpu""#),
        ":4: column 43: there is no device `tpu`: expected one of gpu",
    );
    refuse_program(
        "plan_same_value",
        (r#""name": "y""#, r#""name": "x""#),
        ":5: column 14: there is a value `x` already",
    );
}

#[test]
fn what_programs_do() {
    refuse_program(
        "plan_early",
        (r#"{"name": "make", "#, r#"{"name": "make", "inputs": ["y"], "#),
        ":8: column 5: `y` is read here, and no operator makes it before",
    );
    refuse_program(
        "plan_again",
        (r#"[{"value": "y"}]"#, r#"[{"value": "x"}]"#),
        ":9: column 5: `x` is made here, but it exists already",
    );
    refuse_program(
        "plan_outside",
        (r#"{"value": "y"}"#, r#"{"value": "y", "view": "x"}"#),
        ":9: column 5: `y` reaches beyond the end of `x`: only its inside is accepted",
    );
    let accepted = "an output has at most one of `view`, `over` and `update`, and `offset` only with the first two";
    refuse_program(
        "plan_both",
        (r#"{"value": "y"}"#, r#"{"value": "y", "view": "x", "over": "x"}"#),
        &format!(":9: column 50: {accepted}"),
    );
    refuse_program(
        "plan_outputs",
        (r#"{"value": "x"}"#, r#"{"value": "x", "offset": 1}"#),
        &format!(":8: column 34: {accepted}"),
    );
}

#[test]
fn fields_of_programs() {
    refuse_program("plan_program_power", ("256", "100"), ":2: column 44: alignment 100: expected a power of two");
    refuse_program("plan_program_size", ("1000", "-1"), ":4: column 27: invalid value: integer `-1`, expected u64");
    let file = write(&folder("plan_program_field"), "program.json", PROGRAM.replace("\"life\"", "\"live\""));
    let finished = cachalot([Path::new("plan"), &file]);
    assert_eq!(finished.status, 2);
    let complaint = finished.errors.strip_prefix(&format!("{}:5: column ", file.display())).expect(&finished.errors);
    assert!(
        complaint.contains("unknown field `live`, expected one of `name`, `size`, `device`, `life`"),
        "{complaint}"
    );
    // The JSON parser stops inside the preceding character.
    let what = ":5: column 15: control character (\\u0000-\\u001F) found while parsing a string";
    refuse_program("plan_program_control", (r#""y""#, "\"\u{467}\u{1}\""), what);
    let file = write(&folder("plan_program_cut"), "program.json", &PROGRAM[..PROGRAM.len() - 4]);
    let finished = cachalot([Path::new("plan"), &file]);
    assert!(finished.errors.contains(":10: column ") && finished.status == 2, "{}", finished.errors);
}

#[test]
fn the_schema_names_the_accepted_fields() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operators.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(file).expect("the schema")).expect("JSON");
    let fields = |object: &Value| -> Vec<String> {
        let mut fields: Vec<_> = object["properties"].as_object().expect("an object").keys().cloned().collect();
        fields.sort_unstable();
        fields
    };
    let refused = |object: &str, document: &str| {
        let file = write(&folder(&format!("plan_schema_{object}")), "program.json", document);
        let errors = cachalot([Path::new("plan"), &file]).errors;
        let accepted = errors.split_once("expected one of ").expect(&errors).1;
        let mut fields: Vec<_> = accepted.trim().split(", ").map(|field| field.trim_matches('`').to_owned()).collect();
        fields.sort_unstable();
        fields
    };
    let around = |list: &str, entry: &str| {
        let lists = ["devices", "values", "operators"].map(|name| {
            let entry = if name == list { entry } else { "" };
            format!("\"{name}\": [{entry}]")
        });
        format!("{{{}}}", lists.join(", "))
    };
    let wrong = "{\"wrong\": 1}";
    assert_eq!(refused("program", wrong), fields(&schema));
    for (object, document) in [
        ("device", around("devices", wrong)),
        ("value", around("values", wrong)),
        ("operator", around("operators", wrong)),
        ("output", around("operators", &format!("{{\"outputs\": [{wrong}]}}"))),
    ] {
        assert_eq!(refused(object, &document), fields(&schema["$defs"][object]), "{object}");
    }
}

#[test]
fn options() {
    let file = write(&folder("plan_options"), "table.csv", "id,lower,upper,size\na,0,9,1\n");
    let file = file.to_str().expect("UTF-8");
    for (option, value, accepted) in [
        ("--deadline", "0", "expected a number of seconds above 0"),
        ("--deadline", "soon", "expected a number of seconds above 0"),
        ("--alignment", "3", "expected a power of two"),
        ("--section", "9..3", "expected FROM..TO with FROM below TO"),
        ("--capacity", "much", "not a number of bytes"),
        ("--algorithm", "magic", "expected one of portfolio, exact, pushdown"),
    ] {
        let finished = cachalot(["plan", option, value, file]);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{option} {value}");
        assert!(finished.errors.contains(accepted), "{option} {value}: {}", finished.errors);
    }
    let finished = cachalot(["plan", "-o", "plan.csv", file, file]);
    assert_eq!((finished.status, finished.errors.as_str()), (2, "--output takes the plan of one FILE, not of 2\n"));
}

#[test]
fn sections_of_records() {
    let record = "action,addr,size,stream\nA,200000,2097152,0\na,200000,512,0\n";
    let file = write(&folder("plan_section"), "record.csv", record);
    let finished = cachalot(["plan", "--section", "5..9", file.to_str().expect("UTF-8")]);
    let complaint = ": the section holds no allocations: expected FROM..TO within 0..1";
    assert_eq!((finished.status, finished.errors), (2, format!("{}{complaint}\n", file.display())));
}
