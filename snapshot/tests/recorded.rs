//! Tests with snapshots written by `PyTorch`: reading, and writing back with the same contents for
//! both readers, ours and Python's.

use cachalot_snapshot::{Format, Snapshot, read, write, write_file};
use flate2::read::GzDecoder;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the recorded snapshots, from `torch.cuda.memory._snapshot()` of 2.11.
const RECORDED: [&str; 2] = ["mlp_seed__stacks", "multistream_prefetch__stacks"];

fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/traces/{name}.pickle.gz"));
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(path).expect("a recorded snapshot")).read_to_end(&mut bytes).expect("gzip");
    bytes
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn written(snapshot: &Snapshot, format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, format, snapshot).expect("a vector takes everything");
    bytes
}

#[test]
fn recorded_snapshots_are_read_and_written_back_equal() {
    for name in RECORDED {
        let original = recorded(name);
        let snapshot = read(&original).expect(name);
        let events: usize = snapshot.device_traces.iter().map(Vec::len).sum();
        assert!(!snapshot.segments.is_empty() && events > 200, "{name}: {events}");
        // The model has a field for every key of PyTorch.
        assert!(snapshot.other.is_empty() && snapshot.segments.iter().all(|segment| segment.other.is_empty()));
        assert!(snapshot.device_traces[0].iter().all(|event| {
            event.details.as_ref().is_none_or(|details| details.other.is_empty()) && event.frames.is_some()
        }));
        assert!(snapshot.allocator_settings.as_ref().is_some_and(|settings| settings.other.is_empty()));
        for format in [Format::Pickle, Format::Json] {
            assert_eq!(read(&written(&snapshot, format)).expect(name), snapshot, "{name} as {format:?}");
        }
        let pickled = written(&snapshot, Format::Pickle);
        // The original shares texts, keys and stacks. Our pickle shares only stacks.
        assert!(pickled.len() < original.len() * 3, "{name}: {} of {}", pickled.len(), original.len());
    }
}

#[test]
fn python_finds_them_equal_too() {
    const PROGRAM: &str = "
import json, pickle, sys
original, pickled, text = (open(name, 'rb').read() for name in sys.argv[1:])
original, pickled = pickle.loads(original), pickle.loads(pickled)
assert pickled == original
assert json.loads(text) == json.loads(json.dumps(original))
print('equal')
";
    for name in RECORDED {
        let [original, pickled, text] = ["original", "pickle", "json"].map(|what| scratch(&format!("{name}.{what}")));
        std::fs::write(&original, recorded(name)).expect("the test's folder can be written");
        let snapshot = read(&recorded(name)).expect(name);
        for path in [&pickled, &text] {
            write_file(path, Format::of(path), &snapshot).expect("the test's folder can be written");
        }
        let mut command = Command::new("python3");
        let Ok(output) = command.args(["-c", PROGRAM]).args([original, pickled, text]).output() else {
            eprintln!("skipped: snapshots compared by Python (no python3)");
            return;
        };
        let told = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && told.0.trim() == "equal", "{name}: {told:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing() {
    let folder = scratch("is_a_folder");
    std::fs::create_dir_all(folder.join("inside")).expect("the test's folder can be written");
    let snapshot: Snapshot = Snapshot::default();
    assert!(write_file(&folder, Format::Pickle, &snapshot).is_err());
    assert!(write_file(&scratch("nowhere").join("x.pickle"), Format::Pickle, &snapshot).is_err());
}

#[test]
fn keys_that_are_not_known_are_kept() {
    // Blocks as written by PyTorch 2.0, with keys of a future version.
    let text = r#"{
        "segments": [{"device": 1, "address": 4096, "total_size": 2097152, "stream": 7, "colour": {"red": [1, 2.5, null]},
            "blocks": [{"size": 2097152, "state": "inactive", "history": [{"addr": 4096, "real_size": 512, "frames": []}]}]}],
        "device_traces": [[], [{"action": "later", "size": -1, "stream": 0, "forward_frames": ["a", true]}]],
        "weather": "fair"
    }"#;
    let snapshot = read(text.as_bytes()).expect("a snapshot");
    let past = snapshot.segments[0].blocks[0].history.as_ref().expect("a history");
    assert_eq!(past[0].other["real_size"], 512);
    assert_eq!((&snapshot.other["weather"], snapshot.device_traces[1][0].size), (&"fair".into(), -1));
    for format in [Format::Pickle, Format::Json] {
        assert_eq!(read(&written(&snapshot, format)).expect("a snapshot"), snapshot);
    }
    let original: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&written(&snapshot, Format::Json)).expect("JSON"), original);
}
