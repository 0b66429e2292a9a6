//! Models of ONNX and TensorFlow Lite: planned, and named by the other commands.

use crate::common::{cachalot, folder, write};
use std::path::Path;

/// A field of a message of protocol buffers, shorter than 128 bytes.
fn part(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag << 3 | 2, u8::try_from(bytes.len()).expect("a short part")], bytes].concat()
}

fn number(tag: u8, number: u8) -> Vec<u8> {
    vec![tag << 3, number]
}

/// A tensor of floats.
fn tensor(name: &str, dimensions: &[Vec<u8>]) -> Vec<u8> {
    let shape: Vec<u8> = dimensions.iter().flat_map(|dimension| part(1, dimension)).collect();
    let kind = [number(1, 1), part(2, &shape)].concat();
    [part(1, name.as_bytes()), part(2, &part(1, &kind))].concat()
}

/// x → Relu → a → Neg → y, of a batch by 100.
fn onnx() -> Vec<u8> {
    let shape = [part(2, b"batch"), number(1, 100)];
    let node = |operator: &str, input: &str, output: &str| {
        [part(1, input.as_bytes()), part(2, output.as_bytes()), part(4, operator.as_bytes())].concat()
    };
    let graph = [
        part(1, &node("Relu", "x", "a")),
        part(1, &node("Neg", "a", "y")),
        part(11, &tensor("x", &shape)),
        part(12, &tensor("y", &shape)),
        part(13, &tensor("a", &shape)),
    ]
    .concat();
    [number(1, 8), part(7, &graph)].concat()
}

#[test]
fn a_named_dimension_gets_its_number_from_the_command_line() {
    let folder = folder("dimension");
    let file = write(&folder, "model.onnx", onnx());
    let finished = cachalot([Path::new("plan"), &file]);
    let complaint = "the dimension `batch` has no number: give it with `--dim batch=N`";
    assert_eq!((finished.status, finished.errors), (2, format!("{}: {complaint}\n", file.display())));
    let output = folder.join("plan.csv");
    let options = ["plan", "--json", "--dim", "batch=8", "-o"].map(Path::new);
    let finished = cachalot(options.into_iter().chain([output.as_path(), &file]));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let line = &finished.json()[0];
    // Two tensors of 8 · 100 floats at a time, at multiples of 64.
    assert_eq!((&line["buffers"], &line["peak_bytes"]), (&3.into(), &6400.into()));
    let plan = std::fs::read_to_string(&output).expect("a plan");
    assert_eq!(plan.lines().next(), Some("id,device,size,offset"));
    for row in ["x,device,3200,", "a,device,3200,", "y,device,3200,"] {
        assert!(plan.lines().any(|line| line.starts_with(row)), "{plan}");
    }
    for wrong in ["batch", "batch=", "batch=-1", "=x"] {
        let options = ["plan", "--dim", wrong].map(Path::new);
        let finished = cachalot(options.into_iter().chain([file.as_path()]));
        assert_eq!(finished.status, 2);
        assert!(finished.errors.contains("expected NAME=N"), "{}", finished.errors);
    }
}

#[test]
fn a_model_is_sent_to_the_planner() {
    let folder = folder("sent");
    let tflite = b"\x1c\0\0\0TFL3\x14\0\x20\0".to_vec();
    for (name, content, what) in [("model.onnx", onnx(), "an ONNX model"), ("a.tflite", tflite, "TensorFlow Lite")] {
        let file = write(&folder, name, content);
        for command in ["inspect", "replay", "view", "tune"] {
            let finished = cachalot([Path::new(command), &file]);
            assert_eq!((finished.status, finished.errors.lines().count()), (2, 1), "{}", finished.errors);
            assert!(finished.errors.contains(what) && finished.errors.contains("for `cachalot plan`"));
        }
    }
}
