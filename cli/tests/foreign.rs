//! Files that people have and that are no snapshot: read as far as they can be, and else named.

use crate::common::{Finished, cachalot, folder, gzip, trace, write};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

/// Returns what `--json` prints about a file, without the name of the file.
fn told(command: &str, file: &Path) -> Vec<Value> {
    let finished = cachalot([Path::new(command), Path::new("--json"), file]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{command} {}", file.display());
    let mut lines = finished.json();
    lines.iter_mut().for_each(|line| _ = line.as_object_mut().expect("an object").remove("file"));
    lines
}

fn pickled() -> Vec<u8> {
    let mut pickle = Vec::new();
    let file = std::fs::File::open(trace("mlp_seed__stacks.pickle.gz")).expect("a snapshot");
    GzDecoder::new(file).read_to_end(&mut pickle).expect("a snapshot");
    pickle
}

/// Returns a page as `torch.cuda._memory_viz` writes it, of a pickle with its padding.
fn page(pickle: &[u8]) -> String {
    let files = json!([{ "name": "snapshot.pickle", "base64": STANDARD.encode(pickle) }]);
    let files = files.to_string().replace(r#"","name""#, r#"", "name""#).replace(r#""base64":""#, r#""base64": ""#);
    format!(
        "\n<!DOCTYPE html>\n<html>\n<head>\n</head>\n<body>\n<script type=\"module\">\nimport {{add_local_files}} from \
         \"https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js\"\nconst local_files = {files}\n\
         add_local_files(local_files, 'Active Memory Timeline')\n</script>\n</body>\n"
    )
}

#[test]
fn a_page_of_memory_viz_is_the_snapshot_inside() {
    let folder = folder("page");
    let mut pickle = pickled();
    let plain = write(&folder, "run.pickle", &pickle);
    pickle.extend(vec![0; 3 - pickle.len() % 3]);
    let html = page(&pickle);
    for file in [write(&folder, "run.html", &html), write(&folder, "run.html.gz", gzip(&html))] {
        for command in ["inspect", "replay", "plan"] {
            let (of_page, of_pickle) = (told(command, &file), told(command, &plain));
            assert_eq!(of_page.len(), of_pickle.len(), "{command}");
            for (page, pickle) in of_page.iter().zip(&of_pickle) {
                for key in ["totals", "peaks", "largest", "record", "events", "peak_reserved_bytes", "peak_bytes"] {
                    assert_eq!(page[key], pickle[key], "{command} {key}");
                }
            }
        }
    }
    // A page whose download ended early, at any byte, is no panic.
    for end in (0..html.len()).step_by(html.len() / 50) {
        let finished = cachalot([Path::new("inspect"), &write(&folder, "cut.html", &html[..end])]);
        // The last bytes of the page are not the snapshot's.
        let is_whole = end > html.len() - 400;
        assert_eq!((finished.status, finished.errors.lines().count()), if is_whole { (0, 0) } else { (2, 1) }, "{end}");
    }
    let damaged = html.replacen("\"base64\": \"g", "\"base64\": \"\u{7f}", 1);
    let said = refused("inspect", &write(&folder, "damaged.html", damaged));
    assert!(said.contains("the snapshot in the page is damaged"), "{said}");
}

#[test]
fn a_page_without_a_snapshot_is_named() {
    let folder = folder("no_page");
    let picture =
        "<html>\n<head><title>GPU Memory Timeline HTML</title></head><body><img src='data:image/png;base64,iVBOR'>";
    let other = "<!doctype html><html><body>A page</body></html>";
    for (name, content, what) in [("a.html", picture, "only a picture"), ("b.html", other, "this page has no snapshot")]
    {
        for command in ["inspect", "replay", "view", "plan"] {
            let said = refused(command, &write(&folder, name, content));
            assert!(said.contains(what), "{said}");
        }
    }
}

/// Builds a snapshot with a block of `bytes` bytes, allocated in its history.
fn snapshot(bytes: u64) -> Value {
    json!({
        "segments": [{
            "device": 0, "address": 4_194_304, "total_size": 2_097_152, "stream": 0, "segment_type": "small",
            "blocks": [
                { "address": 4_194_304, "size": bytes, "requested_size": bytes, "state": "active_allocated" },
                { "address": 4_194_304 + bytes, "size": 2_097_152 - bytes, "state": "inactive" },
            ],
        }],
        "device_traces": [[
            { "action": "segment_alloc", "addr": 4_194_304, "size": 2_097_152, "stream": 0 },
            { "action": "alloc", "addr": 4_194_304, "size": bytes, "stream": 0 },
        ]],
    })
}

#[test]
fn snapshots_wrapped_by_rank_are_records_of_their_own() {
    let folder = folder("ranks");
    let (one, two) = (snapshot(512), snapshot(1024));
    let by_rank = json!({ "0": one, "1": two, "world_size": 2 });
    let list = json!([one, two]);
    let pickle = |value: &Value| serde_pickle::to_vec(value, serde_pickle::SerOptions::new()).expect("a pickle");
    for (name, content) in [
        ("ranks.pickle", pickle(&by_rank)),
        ("ranks.json", by_rank.to_string().into()),
        ("list.pickle", pickle(&list)),
        ("list.json", list.to_string().into()),
    ] {
        let file = write(&folder, name, content);
        let base = name.split('.').next().expect("a name");
        let replayed = told("replay", &file);
        let names: Vec<_> = replayed.iter().map(|line| line["record"].as_str().expect("a name")).collect();
        assert_eq!(names, [format!("{base}#0"), format!("{base}#1")], "{name}");
        let inspected = told("inspect", &file);
        let allocated: Vec<_> = inspected.iter().map(|line| line["totals"][0]["allocated"].clone()).collect();
        assert_eq!(allocated, [512, 1024], "{name}");
        assert_eq!(inspected[1]["answers"][0]["record"], format!("{base}#1"), "{name}");
        let said = cachalot([Path::new("diff"), &file, &file]).errors;
        assert!(said.contains("there are 2 snapshots in the file, and one is expected"), "{said}");
        let page = folder.join(format!("{name}.html"));
        let viewed = cachalot([Path::new("view"), Path::new("-o"), &page, &file]);
        assert_eq!((viewed.status, viewed.errors.as_str()), (0, ""));
        assert!(viewed.output.contains(&format!("{name}#1")), "{}", viewed.output);
    }
    // One snapshot in a dictionary is that snapshot.
    let only = write(&folder, "only.pickle", pickle(&json!({ "snapshot": two, "rank": 3 })));
    assert_eq!(told("replay", &only)[0]["record"], "only");
    assert_eq!(cachalot([Path::new("diff"), &only, &only]).status, 0);
}

/// Runs a command on a file that it refuses. Returns the line without the name of the file.
fn refused(command: &str, file: &Path) -> String {
    let finished: Finished = cachalot([Path::new(command), file]);
    assert_eq!(
        (finished.status, finished.output.as_str()),
        (2, ""),
        "{command} {}: {}",
        file.display(),
        finished.errors
    );
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
    let shown = file.display().to_string();
    finished.errors.strip_prefix(&shown).unwrap_or_else(|| panic!("{}", finished.errors)).trim_end().to_owned()
}

#[test]
fn a_file_without_memory_is_named_by_every_command() {
    let folder = folder("named");
    let named: [(&str, &[u8], &str); 7] = [
        ("pointer.pickle", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n", "Git LFS"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture (PNG)"),
        ("model.pt", b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl", "a zip archive, as torch.save() writes it"),
        ("azure.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4808,10\n", "a table of requests"),
        (
            "mooncake.jsonl",
            b"{\"timestamp\": 0, \"input_length\": 6758, \"hash_ids\": [0, 1]}\n",
            "requests to a language model",
        ),
        (
            "error.txt",
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
            "the text of an error",
        ),
        (
            "dump.json",
            br#"{"General": {"API": "Vulkan"}, "Total": {"BlockCount": 1, "BlockBytes": 2097152, "AllocationCount": 1}}"#,
            "Vulkan Memory Allocator: 2.00 MiB in 1 block, of which 0.00 MiB are in 1 allocation",
        ),
    ];
    for (name, content, what) in named {
        for file in [write(&folder, name, content), write(&folder, &format!("{name}.gz"), gzip(content))] {
            for command in ["inspect", "replay", "view", "plan", "tune"] {
                let said = refused(command, &file);
                assert!(said.contains(what), "{command} {}: {said}", file.display());
            }
        }
    }
}

#[test]
fn a_profile_without_memory_is_named_by_every_command() {
    let folder = folder("no_memory");
    let profile = r#"{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "pid": 1}]}"#;
    let file = write(&folder, "trace.json", profile);
    for command in ["inspect", "replay", "view"] {
        let said = refused(command, &file);
        assert!(said.contains("this profile has no events of memory"), "{command}: {said}");
    }
    let said = cachalot([Path::new("diff"), &file, &file]).errors;
    assert!(said.contains("this profile has no events of memory"), "{said}");
}

#[test]
fn a_page_of_the_first_memory_viz_is_named() {
    let page = "\n<!DOCTYPE html>\n<html>\n<script>\nlet alloc_data = {\"actions\": [0, 1]}\n</script></html>";
    let said = refused("inspect", &write(&folder("old_page"), "trace.html", page));
    assert!(said.contains("the first memory_viz, of 2022"), "{said}");
}

#[test]
fn what_the_planner_reads_is_sent_to_the_planner() {
    let folder = folder("planner");
    for (name, content) in [
        ("table.csv", "id,lower,upper,size\n1,0,2,512\n"),
        (
            "program.json",
            r#"{"values": [{"name": "x", "size": 1}], "operators": [{"inputs": [], "outputs": [{"value": "x"}]}]}"#,
        ),
    ] {
        let file = write(&folder, name, content);
        for command in ["inspect", "replay", "view"] {
            let said = refused(command, &file);
            assert!(said.contains("for `cachalot plan`"), "{command}: {said}");
        }
        assert_eq!(cachalot([Path::new("plan"), &file]).status, 0);
    }
}

/// Returns the path of a file that was recorded or written for these tests.
fn foreign(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

/// Runs a command with `--json` on a file. Returns its first line, and what it says on the standard
/// error.
fn line(command: &[&str], file: &Path) -> (Value, String) {
    let finished = cachalot(command.iter().copied().map(Path::new).chain([Path::new("--json"), file]));
    assert_eq!(finished.status, 0, "{command:?} {}: {}", file.display(), finished.errors);
    (finished.json()[0].clone(), finished.errors)
}

#[test]
fn a_profile_is_a_record_of_its_memory_events() {
    // ResNet-50 on an H200, two steps after a warm-up. By the events: 190,156,288 bytes allocated
    // before the first, 611,858,944 at most, and 3,611,295,744 reserved at most.
    let file = foreign("resnet.kineto.json.gz");
    let (compared, said) = line(&["compare", "--policy=caching", "--repeat=1"], &file);
    assert_eq!(compared["record"], "resnet.kineto");
    // Nothing used most of it, and a replay starts without it.
    assert_eq!(compared["answer"]["peak_reserved_bytes"], 3_611_295_744_u64, "{compared}");
    assert_eq!(compared["peak_reserved_bytes"], compared["answer"]["replayed_bytes"], "{compared}");
    assert_eq!(compared["peak_live_bytes"], 611_858_944, "{compared}");
    assert!(said.contains("has neither streams nor segments"), "{said}");
    assert!(said.contains("is not freed in it counts as one block"), "{said}");
    for command in ["tune", "plan", "predict"] {
        let finished = cachalot([Path::new(command), Path::new("--json"), &file]);
        assert_eq!(finished.status, 0, "{command}: {}", finished.errors);
    }
    let page = folder("profile").join("page.html");
    let viewed = cachalot([Path::new("view"), Path::new("-o"), &page, &file]);
    assert_eq!(viewed.status, 0, "{}", viewed.errors);
    let said = refused("inspect", &file);
    assert!(said.contains("this is a record for `cachalot view`"), "{said}");
}

#[test]
fn a_profile_without_a_device_s_memory_is_named() {
    let folder = folder("profiles");
    let event = |name: &str, kind: i64| {
        json!({ "ph": "i", "name": name, "ts": 1.5, "args": {
        "Device Type": kind, "Device Id": -kind, "Addr": -1_099_511_627_776_i64, "Bytes": 512, "Total Allocated": 512,
    } })
    };
    for (name, events, what) in [
        ("none.json", json!([event("aten::empty", 1)]), "no events of memory: profile with profile_memory=True"),
        ("host.json", json!([event("[memory]", 0)]), "events of the host's memory only"),
    ] {
        for content in [json!({ "schemaVersion": 1, "traceEvents": events }), events.clone()] {
            let said = refused("replay", &write(&folder, name, content.to_string()));
            assert!(said.contains(what), "{said}");
        }
    }
    let cut = r#"{"schemaVersion": 1, "traceEvents": [{"ph": "i", "name": "[memory]", "ts": 1"#;
    assert!(
        refused("replay", &write(&folder, "cut.json", cut)).contains("the profile ends early: the file is truncated")
    );
    // Two devices, one of XPU with an address above 2^63.
    let mut two = [event("[memory]", 1), event("[memory]", 12)];
    two[1]["args"]["Device Id"] = 0.into();
    let both = write(&folder, "both.json", json!({ "traceEvents": two }).to_string());
    let names: Vec<Value> = cachalot([Path::new("replay"), Path::new("--json"), &both]).json();
    assert_eq!(names.iter().map(|line| &line["record"]).collect::<Vec<_>>(), ["both#-1", "both#0"]);
}

#[test]
fn a_log_of_rmm_is_a_record() {
    let file = foreign("rmm.csv");
    let (compared, said) = line(&["compare", "--policy=caching", "--repeat=1"], &file);
    assert_eq!((&compared["record"], &compared["peak_live_bytes"]), (&"rmm".into(), &4_194_304.into()), "{compared}");
    assert_eq!(compared["peak_reserved_bytes"], 4_194_304, "{compared}");
    assert_eq!(compared["ooms"], 1, "{compared}");
    let sentence = compared["answer"]["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains(" failed; the record does not tell the memory of the device, so nothing was tried. "));
    assert!(!sentence.contains("which had"), "{sentence}");
    assert!(said.contains("a log of RMM does not say what was held from the device"), "{said}");
    for command in ["tune", "plan", "predict", "replay"] {
        assert_eq!(cachalot([Path::new(command), Path::new("--json"), &file]).status, 0, "{command}");
    }
}

#[test]
fn a_timeline_says_its_peak() {
    // By a sum over the file: 543,667,272 bytes, most of them activations.
    for command in ["inspect", "replay", "view", "plan"] {
        let said = refused(command, &foreign("resnet.timeline.raw.json.gz"));
        assert!(
            said.contains("with at most 518.48 MiB in use (316.51 MiB of activations, 97.69 MiB of parameters"),
            "{said}"
        );
    }
}

#[test]
fn pickles_of_the_first_protocols_are_read() {
    for (number, name) in ["protocol0.pickle", "protocol1.pickle"].into_iter().enumerate() {
        let inspected = &told("inspect", &foreign(name))[0];
        let of = |key: &str| inspected["totals"][0][key].as_u64().expect(key);
        assert_eq!((of("allocated"), of("requested"), of("reserved")), (512, 500, 2 << 20), "{name}");
        assert!(inspected["largest"].to_string().contains("/caf\u{e9}/\u{4e2d}.py"), "{inspected}");
        assert_eq!(told("replay", &foreign(name))[0]["record"], format!("protocol{number}"));
    }
}
