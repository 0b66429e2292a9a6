//! Every object of `--json` fits the JSON schema in `docs/`.

use crate::common::{cachalot, folder, trace, write};
use jsonschema::Validator;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Checks that every object fits the command's schema.
fn fit(command: &str, options: &[&str], files: &[&Path]) {
    let arguments = [command, "--json"].iter().chain(options).map(OsString::from).collect::<Vec<_>>();
    let finished = cachalot(arguments.into_iter().chain(files.iter().map(OsString::from)));
    let lines = finished.json();
    assert!(!lines.is_empty(), "{command} {options:?}: {}", finished.errors);
    let validator = validator(command);
    for line in lines {
        let faults: Vec<String> =
            validator.iter_errors(&line).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
        assert!(faults.is_empty(), "{command} {options:?}: {faults:#?}");
        assert_eq!(not_words(&line), Vec::<String>::new(), "{command} {options:?}");
        assert_eq!(line["schema"], 1);
    }
}

/// Returns the keys that are no words, or words joined by dots as PyTorch's statistics are.
fn not_words(value: &Value) -> Vec<String> {
    let is_word = |key: &str| {
        !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.'))
    };
    match value {
        Value::Object(object) => {
            let own = object.keys().filter(|key| !is_word(key)).cloned();
            own.chain(object.values().flat_map(not_words)).collect()
        }
        Value::Array(values) => values.iter().flat_map(not_words).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn validator(command: &str) -> Validator {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/{command}.schema.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    // An undocumented key is a fault.
    assert_eq!(schema["additionalProperties"], false, "{command}");
    jsonschema::validator_for(&schema).expect("a schema")
}

/// A snapshot without events.
fn without_events(place: &Path) -> PathBuf {
    let block = json!({"size": 512, "state": "active_allocated"});
    let segment = json!({"address": 4096, "total_size": 1024, "blocks": [block]});
    write(place, "end.json", json!({"segments": [segment], "device_traces": []}).to_string())
}

#[test]
fn replays_comparisons_and_predictions_fit() {
    let (small, failed) = (trace("mlp_seed.csv.gz"), trace("gpt2_varlen__oom.csv.gz"));
    let spill = "--config=expandable_segments:True,spill:1G";
    for options in [&["--check"][..], &["--passes=2"], &["--policy=planned"], &[spill]] {
        fit("replay", options, &[&small]);
    }
    let list = write(&folder("lists"), "list.csv", "request,block,size,stream\na,0,100,0\nf,0,,\n");
    for options in [&[][..], &["--passes=2", "--policy=caching"], &["--limit=256MiB"]] {
        fit("compare", options, &[&small]);
    }
    fit("compare", &["--policy=caching"], &[&failed]);
    fit("predict", &["--policy=caching,bfc", "--limit=300MiB"], &[&small, &list]);
    fit("predict", &["--policy=caching", "--batch-scale=2"], &[&trace("mlp_seed__stacks.pickle.gz")]);
    fit("tune", &["--trials=8"], &[&small, &failed]);
    fit("tune", &["--trials=2", "--baseline=", "--apply-to=torch"], &[&small]);
}

#[test]
fn plans_fit() {
    let place = folder("plans");
    let table = write(&place, "table.csv", "id,lower,upper,size\na,0,2,512\nb,1,3,512\n");
    let empty = write(&place, "empty.csv", "id,lower,upper,size\n");
    let values = [("x", "persistent"), ("y", "planned"), ("z", "planned"), ("w", "planned")];
    let values = values.map(|(name, life)| json!({"name": name, "size": 4096, "life": life}));
    let program = json!({
        "values": values,
        "operators": [
            {"name": "mul", "inputs": ["x"], "outputs": [{"value": "y"}]},
            {"name": "add", "inputs": ["y"], "outputs": [{"value": "z", "over": "y"}]},
            {"name": "again", "inputs": ["z", "x"], "outputs": [{"value": "w", "over": "x"}]},
        ],
    });
    let program = write(&place, "program.json", program.to_string());
    fit("plan", &[], &[&table, &empty, &program, &trace("mlp_seed.csv.gz")]);
    fit("plan", &["--capacity=600"], &[&table]);
}

#[test]
fn reports_on_snapshots_fit() {
    let place = folder("reports");
    let (one, other) = (trace("mlp_seed__stacks.pickle.gz"), trace("multistream_prefetch__stacks.pickle.gz"));
    let failed = place.join("failed.pickle");
    let made = cachalot([Path::new("snapshot"), &trace("gpt2_varlen__oom.csv.gz"), Path::new("-o"), &failed]);
    assert_eq!(made.status, 0, "{}", made.errors);
    fit("inspect", &["--most=2"], &[&one, &other, &failed, &without_events(&place)]);
    fit("diff", &[], &[&one, &other]);
    fit("diff", &["--at=reserved", "--fail-above=1MiB"], &[&one, &other]);
    let page = place.join("page.html");
    let output = format!("--output={}", page.display());
    fit("view", &[&output], &[&failed, &without_events(&place)]);
    fit("view", &[&output, "--config=expandable_segments:True"], &[&one]);
}
