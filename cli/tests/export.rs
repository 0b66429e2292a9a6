//! `cachalot export`: every format has the totals of `inspect`, and independent readers accept it.
//!
//! `CACHALOT_READERS` and `CACHALOT_READERS_NODE` name folders with the readers, created by
//! `scripts/setup/readers.sh`. Without them the tests of the readers say so in a line.

use crate::common::{Finished, cachalot, finish, folder, trace, write};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The recorded snapshots with stacks.
const SNAPSHOTS: [&str; 2] = ["mlp_seed__stacks.pickle.gz", "multistream_prefetch__stacks.pickle.gz"];

fn export(file: &Path, format: &str, options: &[&str], output: &Path) -> Finished {
    let words = ["export", "--to", format].into_iter().chain(options.iter().copied()).map(AsRef::as_ref);
    cachalot(words.chain(["-o".as_ref(), output.as_os_str(), file.as_os_str()]))
}

/// Exports a file, and returns the path of the export.
fn exported(test: &str, file: &Path, format: &str, options: &[&str]) -> PathBuf {
    let output = folder(test).join(format!("out.{format}"));
    let finished = export(file, format, options, &output);
    assert_eq!(
        (finished.status, finished.output.as_str(), finished.errors.as_str()),
        (0, "", ""),
        "{}",
        file.display()
    );
    output
}

fn inspect(file: &Path) -> Value {
    let [report] =
        cachalot(["inspect".as_ref(), "--json".as_ref(), file.as_os_str()]).json().try_into().expect("a line");
    report
}

/// Returns a figure of the only device.
fn total(report: &Value, key: &str) -> u64 {
    report["totals"][0][key].as_u64().expect(key)
}

/// Returns the figure of a peak. A peak of both quantities stands for each.
fn peak(report: &Value, of: &str, key: &str) -> u64 {
    let peaks = report["peaks"].as_array().expect("a list");
    let of = if of == "allocated" { "in_use" } else { of };
    let found = peaks.iter().find(|peak| peak["of"] == of || peak["of"] == "both").expect(of);
    found[key].as_u64().expect(key)
}

/// Says, past the test runner, that a test needs a reader that is not there.
fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what} (CACHALOT_READERS is not set: scripts/setup/readers.sh)");
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers").join(name)
}

/// Runs a script of `tests/readers` on a file. `None` without the readers.
pub(crate) fn read(name: &str, file: &Path) -> Option<Value> {
    let (program, variable, readers) = if script(name).extension().is_some_and(|extension| extension == "js") {
        ("node", "NODE_PATH", std::env::var_os("CACHALOT_READERS_NODE"))
    } else {
        ("python3", "PYTHONPATH", std::env::var_os("CACHALOT_READERS"))
    };
    let Some(readers) = readers else {
        skip(name);
        return None;
    };
    let finished = finish(Command::new(program).arg(script(name)).arg(file).env(variable, readers));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""), "{name}");
    Some(serde_json::from_str(&finished.output).expect("JSON"))
}

/// A field of a protobuf message.
enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// Reads the fields of a protobuf message: the wire format, without a schema.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (&byte, rest) = message.split_first().expect("a whole number");
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut message)),
            2 => {
                let length = varint(&mut message) as usize;
                let (bytes, rest) = message.split_at(length);
                message = rest;
                Field::Bytes(bytes)
            }
            other => panic!("a field of type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

fn bytes_of<'m>(fields: &[(u64, Field<'m>)], number: u64) -> Vec<&'m [u8]> {
    let bytes = fields.iter().filter_map(|(of, field)| match field {
        Field::Bytes(bytes) if *of == number => Some(*bytes),
        _ => None,
    });
    bytes.collect()
}

fn number_of(fields: &[(u64, Field<'_>)], number: u64) -> Option<u64> {
    fields.iter().find_map(|(of, field)| match field {
        Field::Number(value) if *of == number => Some(*value),
        _ => None,
    })
}

fn decompressed(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(fs::File::open(file).expect("a file")).read_to_end(&mut bytes).expect("gzip");
    bytes
}

#[test]
fn perfetto_counters_have_the_totals_and_peaks_of_inspect() {
    for name in SNAPSHOTS {
        let report = inspect(&trace(name));
        let file = exported("perfetto", &trace(name), "perfetto", &[]);
        // Trace.packet = 1; TracePacket.track_event = 11, track_descriptor = 60.
        let bytes = fs::read(file).expect("a file");
        let (mut names, mut values) = (BTreeMap::new(), BTreeMap::<u64, Vec<u64>>::new());
        for packet in bytes_of(&fields(&bytes), 1).into_iter().map(fields) {
            for track in bytes_of(&packet, 60).into_iter().map(fields) {
                let uuid = number_of(&track, 1).expect("a uuid");
                let text = String::from_utf8(bytes_of(&track, 2)[0].to_vec()).expect("text");
                names.insert(uuid, (text, number_of(&track, 5)));
            }
            for event in bytes_of(&packet, 11).into_iter().map(fields) {
                if number_of(&event, 9) == Some(4) {
                    let track = number_of(&event, 11).expect("a track");
                    values.entry(track).or_default().push(number_of(&event, 30).unwrap_or(0));
                }
            }
        }
        let is_device = |parent: &Option<u64>| parent.is_some_and(|parent| names[&parent].0 == "device 0");
        let of = |wanted: &str| {
            let found = names.iter().find(|(_, (name, parent))| name == wanted && is_device(parent)).expect(wanted);
            &values[found.0]
        };
        for key in ["reserved", "allocated", "pending"] {
            assert_eq!(of(key).last(), Some(&total(&report, key)), "{name} {key}");
        }
        assert_eq!(of("reserved").iter().max(), Some(&peak(&report, "reserved", "reserved")), "{name}");
        assert_eq!(of("allocated").iter().max(), Some(&peak(&report, "allocated", "allocated")), "{name}");
    }
}

#[test]
fn perfetto_s_schema_reads_the_trace() {
    for name in SNAPSHOTS {
        let report = inspect(&trace(name));
        let file = exported("perfetto_schema", &trace(name), "perfetto", &["--blocks=50"]);
        let Some(read) = read("perfetto_trace.py", &file) else { return };
        let root = format!("{name}/device 0");
        let counters = read["counters"].as_object().expect("an object");
        for key in ["reserved", "allocated", "pending"] {
            assert_eq!(counters[&format!("{root}/{key}")]["last"], total(&report, key), "{name} {key}");
        }
        // The counters of pools and streams add up to those of the device.
        let is_place = |path: &&String| path.ends_with("/reserved") && **path != format!("{root}/reserved");
        let of_places: Vec<_> = counters.keys().filter(is_place).collect();
        let sum: u64 = of_places.iter().map(|path| counters[*path]["last"].as_u64().expect("bytes")).sum();
        assert_eq!(sum, total(&report, "reserved"), "{name}: {of_places:?}");
        assert!(of_places.len() as u64 >= total(&report, "streams"), "{name}: {of_places:?}");
        let slices = read["slices"].as_array().expect("a list");
        let blocks: Vec<_> = slices.iter().filter(|slice| slice["track"] == format!("{root}/blocks")).collect();
        assert_eq!(blocks.len(), 50, "{name}");
        assert!(blocks.iter().all(|block| block["notes"]["bytes"].as_u64().is_some_and(|bytes| bytes >= 512)));
        let own = |block: &&&Value| block["name"].as_str().is_some_and(|name| name.contains("record_traces.py"));
        assert!(blocks.iter().filter(own).count() > 5, "{name}: {blocks:?}");
        // Times are those of the snapshot: nanoseconds since 1970, within the years 2020 to 2100.
        let start = counters[&format!("{root}/reserved")]["start"].as_u64().expect("a time");
        assert!((1_577_000_000_000_000_000..4_102_000_000_000_000_000).contains(&start), "{start}");
    }
}

/// Builds a snapshot with annotations, marks, a failed request, a private pool and a segment that
/// is released.
fn made_up() -> Value {
    let event = |action: &str, addr: u64, size: u64, time_us: u64| {
        json!({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": [
            {"name": "step", "filename": "train.py", "line": 5}]})
    };
    let mark =
        |name: &str, stage: &str, time_us: u64| json!({"name": name, "stage": stage, "device": 0, "time_us": time_us});
    json!({
        "segments": [{"device": 0, "address": 0x20_0000, "total_size": 0x20_0000, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 1], "is_expandable": false, "blocks": [
                {"address": 0x20_0000, "size": 0x10_0000, "requested_size": 0xf_ff00, "state": "active_allocated"},
                {"address": 0x30_0000, "size": 0x10_0000, "requested_size": 0, "state": "inactive"}]}],
        "device_traces": [[
            event("segment_alloc", 0x100_0000, 0x40_0000, 1_000_000),
            event("alloc", 0x100_0000, 0x30_0000, 1_000_000),
            event("segment_alloc", 0x20_0000, 0x20_0000, 1_000_010),
            event("alloc", 0x20_0000, 0xf_ff00, 1_000_010),
            event("free_requested", 0x100_0000, 0x30_0000, 1_000_020),
            event("free_completed", 0x100_0000, 0x30_0000, 1_000_020),
            event("segment_free", 0x100_0000, 0x40_0000, 1_000_030),
            {"action": "oom", "device_free": 7, "size": 0x4000_0000, "stream": 0, "time_us": 1_000_040, "frames": []},
            {"action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": 1_000_050, "user_metadata": "epoch 3"},
        ]],
        "external_annotations": [
            mark("ProfilerStep#1", "START", 1_000_005), mark("forward", "START", 1_000_006),
            mark("forward", "END", 1_000_015), mark("ProfilerStep#1", "END", 1_000_025), mark("open", "START", 1_000_030),
        ],
    })
}

#[test]
fn perfetto_shows_annotations_marks_failures_and_pools_on_the_profiler_s_clock() {
    let place = folder("made_up");
    let file = write(&place, "made_up.json", made_up().to_string());
    let profile = write(&place, "profile.json", r#"{"traceEvents": [], "baseTimeNanoseconds": 1000000000}"#);
    let options = format!("--profile={}", profile.display());
    let output = exported("made_up_out", &file, "perfetto", &[&options]);
    let Some(read) = read("perfetto_trace.py", &output) else { return };
    let root = "made_up.json/device 0";
    let slice = |track: &str| -> Vec<(String, u64, u64)> {
        let all = read["slices"].as_array().expect("a list").iter();
        let found = all.filter(|slice| slice["track"] == format!("{root}/{track}"));
        let time = |slice: &Value, key: &str| slice[key].as_u64().expect(key);
        let name = |slice: &Value| slice["name"].as_str().expect("a name").to_owned();
        let mut found: Vec<_> = found.map(|slice| (name(slice), time(slice, "start"), time(slice, "end"))).collect();
        found.sort();
        found
    };
    let owned = |slices: &[(&str, u64, u64)]| -> Vec<_> {
        slices.iter().map(|&(name, start, end)| (name.to_owned(), start, end)).collect()
    };
    let expected = [("ProfilerStep#1", 5000, 25_000), ("forward", 6000, 15_000), ("open", 30_000, 30_000)];
    assert_eq!(slice("annotations"), owned(&expected));
    assert_eq!(slice("blocks"), owned(&[("step train.py:5", 1, 20_001), ("step train.py:5", 10_001, 50_000)]));
    assert_eq!(
        read["instants"],
        json!([
            {"track": format!("{root}/marks"), "name": "out of memory", "time": 40_000},
            {"track": format!("{root}/marks"), "name": "epoch 3", "time": 50_000},
        ])
    );
    let counters = read["counters"].as_object().expect("an object");
    let figures =
        |path: &str| ["first", "most", "last"].map(|key| counters[&format!("{root}/{path}")][key].as_u64().expect(key));
    assert_eq!(figures("reserved"), [0, 0x60_0000, 0x20_0000]);
    assert_eq!(figures("allocated"), [0, 0x40_0000, 0x10_0000]);
    assert_eq!(figures("pending"), [0, 0x30_0000, 0]);
    assert_eq!(figures("pool 0.1, default stream/reserved"), [0, 0x20_0000, 0x20_0000]);
    assert_eq!(figures("released segments, default stream/reserved"), [0, 0x40_0000, 0]);
}

/// Returns the sums of a pprof file's sample values, read without a schema.
fn pprof_sums(file: &Path) -> Vec<u64> {
    let bytes = decompressed(file);
    let mut sums = vec![0; 4];
    // Profile.sample = 2; Sample.value = 2, packed.
    for sample in bytes_of(&fields(&bytes), 2).into_iter().map(fields) {
        for packed in bytes_of(&sample, 2) {
            // Each number as a field, so that `fields` reads them: a tag before each.
            let mut at = 0;
            for sum in &mut sums {
                let length = packed[at..].iter().position(|byte| byte & 0x80 == 0).expect("a number") + 1;
                let field = [&[8], &packed[at..at + length]].concat();
                *sum += number_of(&fields(&field), 1).expect("a number");
                at += length;
            }
            assert_eq!(at, packed.len());
        }
    }
    sums
}

#[test]
fn pprof_samples_add_up_to_the_totals_at_every_time() {
    for name in SNAPSHOTS {
        let report = inspect(&trace(name));
        for at in ["end", "reserved", "allocated"] {
            let file = exported("pprof", &trace(name), "pprof", &[&format!("--at={at}")]);
            let figure = |key| if at == "end" { total(&report, key) } else { peak(&report, at, key) };
            let sums = pprof_sums(&file);
            assert_eq!(sums[1..], ["allocated", "pending", "reserved"].map(figure), "{name} {at}");
        }
    }
}

#[test]
fn pprof_s_reader_finds_the_stacks() {
    let name = SNAPSHOTS[1];
    let report = inspect(&trace(name));
    let Some(read) = read("pprof_profile.js", &exported("pprof_reader", &trace(name), "pprof", &[])) else { return };
    let types = ["allocated_objects count", "allocated_space bytes", "pending_space bytes", "reserved_space bytes"];
    assert_eq!(read["types"], json!(types));
    assert_eq!(read["standard"], "allocated_space");
    let samples = read["samples"].as_array().expect("a list");
    let of = |stack: &Value| {
        let stack = if stack.as_array().is_some_and(Vec::is_empty) {
            json!([":0 (no stack was recorded)"])
        } else {
            stack.clone()
        };
        let found: Vec<_> = samples.iter().filter(|sample| sample["stack"] == stack).collect();
        assert_eq!(found.len(), 1, "{stack}");
        found[0]
    };
    // Each group of `inspect` is a sample, and no other sample has blocks.
    let groups = report["largest"].as_array().expect("a list");
    for group in groups {
        let sample = of(&group["stack"]);
        let held = group["bytes"].as_u64().expect("bytes") - group["pending"].as_u64().expect("bytes");
        assert_eq!((&sample["values"][1], &sample["values"][2]), (&json!(held), &group["pending"]), "{group}");
        assert_eq!(sample["labels"], json!({"device": 0}));
    }
    let has_blocks = |sample: &&Value| sample["values"][1] != 0 || sample["values"][2] != 0;
    assert_eq!(samples.iter().filter(has_blocks).count(), groups.len());
    assert!(samples.len() > groups.len(), "segments have stacks, too");
}

#[test]
fn openmetrics_has_the_totals_and_prometheus_reads_it() {
    for name in SNAPSHOTS {
        let report = inspect(&trace(name));
        let file = exported("openmetrics", &trace(name), "openmetrics", &[]);
        let text = fs::read_to_string(&file).expect("text");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        for (family, key) in [
            ("reserved_bytes", "reserved"),
            ("allocated_bytes", "allocated"),
            ("pending_bytes", "pending"),
            ("requested_bytes", "requested"),
            ("free_bytes", "cached"),
            ("largest_free_bytes", "largest_free"),
            ("releasable_bytes", "releasable"),
            ("held_segments", "segments"),
            ("allocated_blocks", "allocations"),
            ("recorded_events", "events"),
        ] {
            let line = format!("\ncachalot_{family}{{device=\"0\"}} {}\n", total(&report, key));
            assert!(text.contains(&line), "{name}: {line}{text}");
        }
        let Some(read) = read("metrics_text.py", &file) else { return };
        for key in ["reserved", "allocated", "pending"] {
            let samples = read[format!("cachalot_pool_{key}_bytes")]["samples"].as_array().expect("a list");
            let sum: f64 = samples.iter().map(|sample| sample["value"].as_f64().expect("a number")).sum();
            assert_eq!((sum as u64, samples.len() as u64), (total(&report, key), total(&report, "streams")), "{name}");
        }
    }
}

#[test]
fn a_record_replays_like_the_snapshot() {
    // The third record starts in the middle of its program.
    let place = folder("csv_middle");
    let replay = |file: &Path| {
        let finished = cachalot(["replay".as_ref(), "--json".as_ref(), "--check".as_ref(), file.as_os_str()]);
        let [mut line] = finished.json().try_into().expect("one line");
        line.as_object_mut()
            .expect("an object")
            .retain(|key, _| !["file", "record"].contains(&key.as_str()) && !key.contains("ns_per"));
        (finished.status, line)
    };
    for name in SNAPSHOTS {
        for output in ["out.csv", "out.csv.gz"].map(|name| place.join(name)) {
            let finished = export(&trace(name), "csv", &[], &output);
            assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
            assert_eq!(replay(&output), replay(&trace(name)), "{name}");
        }
    }
    let mut cut: Value = {
        let finished = cachalot([
            "snapshot".as_ref(),
            "-o".as_ref(),
            place.join("whole.json").as_os_str(),
            trace(SNAPSHOTS[0]).as_os_str(),
        ]);
        assert_eq!(finished.status, 0, "{}", finished.errors);
        serde_json::from_slice(&fs::read(place.join("whole.json")).expect("a file")).expect("JSON")
    };
    cut["device_traces"][0].as_array_mut().expect("a list").drain(..40);
    let file = write(&place, "cut.json", cut.to_string());
    let output = place.join("middle.csv");
    assert_eq!(export(&file, "csv", &[], &output).status, 0);
    assert_eq!(replay(&output), replay(&file));
}

#[test]
#[cfg(feature = "sqlite")]
fn a_database_has_every_block_event_and_stack() {
    for name in SNAPSHOTS {
        let report = inspect(&trace(name));
        let file = exported("sqlite", &trace(name), "sqlite", &[]);
        let database = rusqlite::Connection::open(file).expect("a database");
        let number = |query: &str| -> u64 {
            database.query_row(query, [], |row| row.get::<_, i64>(0)).expect(query).cast_unsigned()
        };
        assert_eq!(number("SELECT sum(bytes) FROM segments"), total(&report, "reserved"), "{name}");
        assert_eq!(number("SELECT count(*) FROM segments"), total(&report, "segments"), "{name}");
        let held = "SELECT sum(bytes) FROM blocks WHERE state = 'active_allocated'";
        assert_eq!(number(held), total(&report, "allocated"), "{name}");
        assert_eq!(number("SELECT sum(pending) FROM live"), total(&report, "pending"), "{name}");
        assert_eq!(number("SELECT count(*) FROM events"), total(&report, "events"), "{name}");
        for key in ["reserved", "allocated", "pending"] {
            let last = format!("SELECT {key} FROM events ORDER BY number DESC LIMIT 1");
            assert_eq!(number(&last), total(&report, key), "{name} {key}");
        }
        assert_eq!(number("SELECT max(reserved) FROM events"), peak(&report, "reserved", "reserved"), "{name}");
        assert_eq!(number("SELECT max(allocated) FROM events"), peak(&report, "allocated", "allocated"), "{name}");
        // The groups of `live` are those of `inspect`.
        let mut query = database.prepare("SELECT bytes, blocks FROM live ORDER BY bytes DESC").expect("a query");
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
        let rows: Vec<(i64, i64)> = rows.map(|row| row.expect("a row")).collect();
        let groups = report["largest"].as_array().expect("a list").iter();
        let groups: Vec<(i64, i64)> = groups
            .map(|group| (group["bytes"].as_i64().expect("bytes"), group["blocks"].as_i64().expect("blocks")))
            .collect();
        assert_eq!(rows, groups, "{name}");
        let orphans = "SELECT count(*) FROM events WHERE stack_id NOT IN (SELECT stack_id FROM frames WHERE depth = 0)";
        assert_eq!(number(orphans), 0, "{name}");
        assert!(number("SELECT count(*) FROM frames") > number("SELECT count(*) FROM stacks"), "{name}");
        let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
        assert_eq!(check, "ok", "{name}");
    }
}

#[test]
fn what_cannot_be_exported_is_refused_and_nothing_is_written() {
    let place = folder("refused");
    let output = place.join("out");
    let file = write(&place, "made_up.json", made_up().to_string());
    let refused = |format: &str, options: &[&str], file: &Path, what: &str| {
        let finished = export(file, format, options, &output);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{format}");
        assert!(finished.errors.contains(what), "{}", finished.errors);
        assert!(!output.exists());
    };
    refused("csv", &["--at=reserved"], &file, "--at is not an option of this format");
    refused("pprof", &["--blocks=3"], &file, "--blocks is not an option of this format");
    refused("csv", &["--device=4"], &file, "device 4 has no events: expected 0");
    refused("pprof", &[], Path::new("missing.pickle"), "missing.pickle: cannot be read");
    refused("sqlite", &[], &trace("mlp_seed.csv.gz"), "expected a memory snapshot");
    let option = format!("--profile={}", file.display());
    refused("perfetto", &[&option], &file, "not a trace of torch.profiler");
    let nowhere = export(&file, "sqlite", &[], &place.join("none/out.db"));
    assert_eq!(nowhere.status, 2, "{}", nowhere.errors);
    let left: Vec<_> =
        fs::read_dir(&place).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["made_up.json"]);
}

#[test]
fn a_compressed_trace_has_the_bytes_of_the_other() {
    let place = folder("compressed");
    let [plain, compressed] = ["out.trace", "out.trace.gz"].map(|name| {
        let output = place.join(name);
        assert_eq!(export(&trace(SNAPSHOTS[0]), "perfetto", &[], &output).status, 0);
        output
    });
    assert_eq!(decompressed(&compressed), fs::read(plain).expect("a file"));
}
