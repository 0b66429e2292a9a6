//! `cachalot view`: the data of the page, without a browser.

use crate::common::{Finished, cachalot, folder, trace, write};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;

/// The data of a device: the header, and the columns by name.
struct Data {
    header: Value,
    columns: HashMap<String, Vec<u64>>,
}

/// Runs `cachalot view` with `arguments` and an output. Returns the page.
fn view(output: &Path, arguments: &[&Path]) -> String {
    let output_of = [Path::new("view"), Path::new("--output"), output];
    let finished = cachalot(output_of.iter().chain(arguments));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    fs::read_to_string(output).expect("a page")
}

/// Decodes the data of a page.
fn sources(page: &str) -> Vec<Data> {
    let parts = page.split("class=\"source\">").skip(1);
    parts.map(|part| decode(part.split_once('<').expect("an end").0)).collect()
}

fn decode(text: &str) -> Data {
    let packed = STANDARD.decode(text).expect("base64");
    let mut bytes = Vec::new();
    GzDecoder::new(&*packed).read_to_end(&mut bytes).expect("gzip");
    let length = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[4..4 + length]).expect("JSON");
    let mut rest = bytes[4 + length..].iter();
    let mut columns = HashMap::new();
    for column in header["columns"].as_array().expect("columns") {
        let number = || {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = *rest.next().expect("a byte");
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        };
        let name = column[0].as_str().expect("a name").to_owned();
        let count = column[1].as_u64().expect("a number") as usize;
        columns.insert(name, std::iter::repeat_with(number).take(count).collect());
    }
    assert_eq!(rest.len(), 0, "bytes behind the columns");
    Data { header, columns }
}

impl Data {
    /// Returns the sums of differences in a column.
    fn summed(&self, name: &str) -> Vec<i64> {
        let differences =
            self.columns[name].iter().map(|value| (value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        differences
            .scan(0_i64, |sum, value| {
                *sum = sum.wrapping_add(value);
                Some(*sum)
            })
            .collect()
    }

    /// Returns the bytes of all blocks at a moment.
    fn active(&self, moment: i64) -> u64 {
        let births = self.summed("block_birth");
        let lives = births.iter().zip(&self.columns["block_life"]).zip(&self.columns["block_bytes"]);
        let alive = lives.filter(|((birth, life), _)| **birth <= moment && moment < **birth + life.cast_signed());
        alive.map(|(_, bytes)| bytes).sum()
    }
}

fn json_of(arguments: &[&Path]) -> Vec<Value> {
    let finished = cachalot(arguments);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    finished.json()
}

#[test]
fn the_page_agrees_with_inspect() {
    let mut improved = 0;
    let folder = folder("agrees");
    for name in ["mlp_seed__stacks", "multistream_prefetch__stacks"] {
        let file = trace(&format!("{name}.pickle.gz"));
        let [report] = json_of(&[Path::new("inspect"), Path::new("--json"), &file]).try_into().expect("one line");
        let page = view(&folder.join("page.html"), &[&file]);
        let [data] = sources(&page).try_into().unwrap_or_else(|_| panic!("{name}: one device"));
        let (answer, total) = (&data.header["answer"], &report["totals"][0]);
        let (told, peaks) = (&report["answers"][0], report["peaks"].as_array().expect("a list"));
        assert_eq!(answer["peak_reserved_bytes"], peaks[0]["reserved"], "{name}");
        let peak = &peaks[peaks.len() - 1];
        let fullest = &answer["fullest"];
        for (key, of) in [
            ("reserved_bytes", "reserved"),
            ("hole_bytes", "in_holes"),
            ("hole_segments", "hole_segments"),
            ("idle_bytes", "releasable"),
            ("idle_segments", "releasable_segments"),
        ] {
            assert_eq!((&fullest[key], &told["fullest"][key]), (&peak[of], &peak[of]), "{name}: {key}");
        }
        assert_eq!(answer["events"], total["events"], "{name}");
        assert_eq!(answer["of_record"]["better"], told["better"], "{name}");
        let sentence = told["sentence"].as_str().expect("a sentence");
        assert!(answer["sentence"].as_str().is_some_and(|text| text.starts_with(sentence)), "{name}");
        improved += u32::from(told["better"].is_object());
        let sum = |one: &Value, other: &Value| one.as_u64().expect("bytes") + other.as_u64().expect("bytes");
        let in_use = sum(&peak["allocated"], &peak["pending"]);
        assert_eq!(fullest["in_use_bytes"], in_use, "{name}");
        assert_eq!(data.active(data.header["peaks"][1].as_i64().expect("a moment")), in_use, "{name}");
        let last = data.summed("moment_state").len() as i64 - 1;
        assert_eq!(data.active(last), sum(&total["allocated"], &total["pending"]), "{name} at the end");
        assert_eq!(
            *data.summed("moment_reserved").last().expect("moments"),
            total["reserved"].as_i64().expect("bytes")
        );
    }
    assert_eq!(improved, 1, "a setting helps multistream_prefetch, and none helps mlp_seed");
}

#[test]
fn the_page_loads_nothing_and_names_no_other_site() {
    let page = view(&folder("alone").join("page.html"), &[&trace("mlp_seed__stacks.pickle.gz")]);
    for outside in ["http:", "https:", "src=", "href=", "import ", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'") && !page.contains("{{"));
}

#[test]
fn a_label_is_text_and_not_html() {
    let folder = folder("label");
    let file =
        write(&folder, "<b>&.json", json!({"segments": [{"address": 0, "total_size": 512, "blocks": []}]}).to_string());
    let page = view(&folder.join("page.html"), &[&file]);
    assert!(page.contains("<title>&lt;b&gt;&amp;.json</title>"));
    assert_eq!(
        sources(&page)[0].header["answer"]["sentence"],
        "512 B are reserved at the end, and 0 B of it in use; 512 B (100 %) are idle, and can be released."
    );
}

#[test]
fn each_device_and_each_configuration_is_a_source() {
    let folder = folder("sources");
    let (one, other) = (trace("mlp_seed__stacks.pickle.gz"), trace("gnn_graphs.csv.gz"));
    let config = [Path::new("--config"), Path::new("expandable_segments:True")];
    let page = view(&folder.join("page.html"), &[config[0], config[1], &one, &other]);
    let sources = sources(&page);
    let labels: Vec<_> = sources.iter().map(|data| data.header["label"].as_str().expect("a label")).collect();
    let with = |name: &str| format!("{name} · expandable_segments:True");
    let (first, second) = ("mlp_seed__stacks.pickle.gz", "gnn_graphs.csv.gz");
    assert_eq!(labels, [first, &with(first), second, &with(second)]);
    // The replay has the same requests, with their stacks.
    let at_end = |data: &Data| data.active(data.summed("moment_state").len() as i64 - 1);
    assert_eq!(at_end(&sources[0]), at_end(&sources[1]));
    let stacks = |data: &Data| data.columns["stack_length"].iter().filter(|&&length| length > 0).count();
    assert!(stacks(&sources[1]) > 5, "{}", stacks(&sources[1]));
    let text = sources[3].header["answer"]["sentence"].as_str().expect("text");
    assert!(
        text.starts_with(
            "With expandable_segments:True, the peak is 5.17 GiB instead of 15.73 GiB (−10.56 GiB −67.1 %). "
        ),
        "{text}"
    );
}

#[test]
fn each_device_of_a_snapshot_is_a_source() {
    let segment = |device: i64, bytes: u64| {
        let block = json!({"size": bytes, "state": "active_allocated", "frames": []});
        json!({"device": device, "address": 4096, "total_size": bytes, "blocks": [block]})
    };
    // Device 1 has events and no segment at the end.
    let event = json!({"action": "segment_free", "addr": 4096, "size": 2048, "stream": 3});
    let snapshot = json!({"segments": [segment(0, 512), segment(2, 1024)], "device_traces": [[], [event], []]});
    let folder = folder("devices");
    let page = view(&folder.join("page.html"), &[&write(&folder, "made.json", snapshot.to_string())]);
    let sources = sources(&page);
    let peak = |data: &Data| data.header["answer"]["peak_reserved_bytes"].clone();
    let in_use = |data: &Data| data.header["answer"]["fullest"]["in_use_bytes"].clone();
    let devices: Vec<_> = sources.iter().map(|data| data.header["device"].clone()).collect();
    assert_eq!(devices, [0, 1, 2]);
    assert_eq!(
        (sources.iter().map(peak).collect::<Vec<_>>(), sources.iter().map(in_use).collect::<Vec<_>>()),
        (vec![json!(512), json!(2048), json!(1024)], vec![json!(512), json!(0), json!(1024)])
    );
}

/// Before PyTorch 2.12, events have no pools, and the segments of the end have.
#[test]
fn a_segment_of_the_end_tells_its_pool_and_a_released_one_is_unknown() {
    let event = |action: &str, addr: u64, size: u64| json!({"action": action, "addr": addr, "size": size, "stream": 0});
    let [default, graph, gone] = [1_u64, 2, 3].map(|number| number << 30);
    let obtained = [default, graph, gone].map(|at| event("segment_alloc", at, 20 << 20));
    let made = [default, graph, gone].map(|at| event("alloc", at, 5 << 20));
    let freed = ["free_requested", "free_completed"].map(|action| event(action, gone, 5 << 20));
    let released = event("segment_free", gone, 20 << 20);
    let events: Vec<Value> = obtained.into_iter().chain(made).chain(freed).chain([released]).collect();
    let segment = |address: u64, pool: [u64; 2]| {
        let block =
            |address: u64, mib: u64, state: &str| json!({"address": address, "size": mib << 20, "state": state});
        let blocks = [block(address, 5, "active_allocated"), block(address + (5 << 20), 15, "inactive")];
        json!({"address": address, "total_size": 20 << 20, "segment_type": "large", "segment_pool_id": pool,
            "blocks": blocks})
    };
    let segments = [segment(default, [0, 0]), segment(graph, [4, 0])];
    let place = folder("pools");
    let snapshot = json!({"segments": segments, "device_traces": [events]});
    let file = write(&place, "pools.json", snapshot.to_string());
    let page = place.join("page.html");
    let finished = cachalot([Path::new("view"), Path::new("-o"), &page, &file]);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    let source = &sources(&fs::read_to_string(&page).expect("a page"))[0];
    let expected = json!([["0", [0, 0], "large"], ["0", [4, 0], "large"], ["0", null, "large"]]);
    assert_eq!(source.header["heaps"], expected);
}

#[test]
fn failures_notes_and_marks_are_there() {
    let event = |action: &str, time: u64, more: Value| {
        let mut event =
            json!({"action": action, "addr": 4096, "size": 512, "stream": 0, "time_us": time, "frames": []});
        event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        event
    };
    let snapshot = json!({
        "segments": [],
        "device_traces": [[
            event("segment_alloc", 10, json!({"size": 2_097_152})),
            event("alloc", 20, json!({"user_metadata": "step 1", "compile_context": "0/0"})),
            event("annotate", 25, json!({"user_metadata": "epoch 2"})),
            event("oom", 30, json!({"size": 1 << 30, "device_free": 4096})),
            event("free_requested", 40, json!({})),
            event("free_completed", 50, json!({})),
            event("segment_free", 60, json!({"size": 2_097_152})),
        ]],
        "external_annotations": [{"name": "## forward ##", "stage": "START", "device": 0, "time_us": 20}],
    });
    let folder = folder("marks");
    let page = view(&folder.join("page.html"), &[&write(&folder, "made.json", snapshot.to_string())]);
    let header = &sources(&page)[0].header;
    assert_eq!(
        header["failures"],
        json!([{"moment": 4, "bytes": 1 << 30, "stream": "0", "device_free": 4096, "stack": 0}])
    );
    assert_eq!(header["marks"], json!([{"moment": 1, "text": "## forward ##"}, {"moment": 3, "text": "epoch 2"}]));
    assert_eq!(header["notes"]["0"], "no stack recorded");
    assert!(header["notes"].as_object().expect("notes").values().any(|note| note == "step 1, compile 0/0"), "{header}");
    assert_eq!(header["answer"]["ooms"], 1);
}

#[test]
fn what_is_printed_is_the_answer() {
    let output = folder("printed").join("page.html");
    let arguments = [Path::new("view"), &trace("gpt2_varlen__oom.csv.gz"), Path::new("--output"), &output];
    let finished = cachalot(arguments);
    assert_eq!(
        finished.output,
        "gpt2_varlen__oom.csv.gz, device 0: A request of 1.26 GiB failed; enough would have been a limit of 9.12 GiB \
         instead of 9.00 GiB, or `expandable_segments:True`, with 8.88 GiB reserved, or free memory in one piece \
         (cachalot's `policy:stitched`), with 8.86 GiB reserved. 7.85 GiB were reserved at the peak, for at most 7.56 \
         GiB live (utilisation 96.3 %). When the most was in use, 278.14 MiB were stuck in holes of 143 segments. The \
         peak was at event 5,745 of 7,375.\n"
    );
    let [line] = json_of(&[&arguments[..], &[Path::new("--json")]].concat()).try_into().expect("one line");
    assert_eq!(
        (&line["label"], &line["answer"]["fullest"]["hole_segments"]),
        (&json!("gpt2_varlen__oom.csv.gz"), &json!(143))
    );
}

#[test]
fn only_a_page_is_replaced_without_a_name() {
    let place = folder("replaced");
    let record = place.join("mlp.csv.gz");
    fs::copy(trace("mlp_seed.csv.gz"), &record).expect("a copy");
    let page = place.join("mlp.html");
    for _ in 0..2 {
        let finished = cachalot([Path::new("view"), &record]);
        assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    }
    fs::write(&page, "<!doctype html>my own").expect("a file");
    let Finished { status, output, errors } = cachalot([Path::new("view"), &record]);
    assert_eq!((status, output.as_str()), (2, ""), "{errors}");
    assert!(errors.contains("mlp.html: exists, and is no page of `cachalot view`: name the page by -o"), "{errors}");
    assert_eq!(fs::read_to_string(&page).expect("the file"), "<!doctype html>my own");
    // A name is an order.
    assert_eq!(cachalot([Path::new("view"), &record, Path::new("-o"), &page]).status, 0);
}

#[test]
fn a_mistake_is_named_and_nothing_is_written() {
    let folder = folder("mistakes");
    let output = write(&folder, "page.html", "my own");
    let good = trace("mlp_seed.csv.gz");
    let text = write(&folder, "text.pickle", "hello");
    let empty = write(&folder, "empty.json", r#"{"segments": [], "device_traces": [[]]}"#);
    let refuse = |files: &[&Path], output: &Path, what: &str| {
        let Finished { status, output, errors } =
            cachalot([&[Path::new("view"), Path::new("-o"), output], files].concat());
        assert_eq!((status, output.as_str()), (2, ""), "{errors}");
        assert!(errors.contains(what), "{errors}");
    };
    refuse(&[&folder.join("none.pickle")], &output, "none.pickle: cannot be read: No such file");
    refuse(&[&good, &text], &output, "text.pickle: not a memory snapshot");
    refuse(&[&empty], &output, "empty.json: the snapshot has neither segments nor events");
    refuse(&[&good, &text], &text, "text.pickle: the output would replace an input");
    refuse(&[&good, Path::new("--config"), Path::new("colour:red")], &output, "colour");
    refuse(&[&good], &folder.join("nowhere/page.html"), "nowhere/page.html: cannot be written: No such file");
    assert_eq!(fs::read_to_string(&output).expect("the file"), "my own");
    assert_eq!(fs::read_to_string(&text).expect("the file"), "hello");
}
