//! Small models, built by hand, and what is planned of them.

use crate::plan::{Reading, Task, load_bytes};
use fastrand::Rng;
use std::path::Path;

/// Writers of ONNX.
mod onnx {
    /// A field of bytes.
    pub(super) fn part(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [varint(u64::from(tag) << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    }

    pub(super) fn number(tag: u8, value: u64) -> Vec<u8> {
        [varint(u64::from(tag) << 3), varint(value)].concat()
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A tensor with a type: dimensions are numbers or names.
    pub(super) fn value(name: &str, kind: u64, dimensions: &[&str]) -> Vec<u8> {
        let dimension = |text: &&str| match text.parse::<i64>() {
            Ok(known) => part(1, &number(1, known.cast_unsigned())),
            Err(_) => part(1, &part(2, text.as_bytes())),
        };
        let shape: Vec<u8> = dimensions.iter().flat_map(dimension).collect();
        let tensor = [number(1, kind), part(2, &shape)].concat();
        [part(1, name.as_bytes()), part(2, &part(1, &tensor))].concat()
    }

    pub(super) fn weight(name: &str, kind: u64, dimensions: &[u64]) -> Vec<u8> {
        let dimensions: Vec<u8> = dimensions.iter().flat_map(|&dimension| number(1, dimension)).collect();
        [dimensions, number(2, kind), part(8, name.as_bytes()), part(9, &[0; 40])].concat()
    }

    pub(super) fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
        let inputs = inputs.iter().flat_map(|name| part(1, name.as_bytes()));
        let outputs = outputs.iter().flat_map(|name| part(2, name.as_bytes()));
        let named = [part(3, format!("the {operator}").as_bytes()), part(4, operator.as_bytes())].concat();
        inputs.chain(outputs).chain(named).collect()
    }

    pub(super) fn model(graph: &[Vec<u8>]) -> Vec<u8> {
        [number(1, 8), part(2, b"tests"), part(7, &graph.concat()), part(8, &number(2, 17))].concat()
    }
}

fn plan(bytes: &[u8], reading: &Reading) -> Result<Task, String> {
    let mut tasks = load_bytes(Path::new("m"), bytes, reading).map_err(|error| error.to_string())?;
    assert_eq!(tasks.len(), 1);
    Ok(tasks.remove(0))
}

/// Returns start, end and size of each buffer.
fn lives(task: &Task) -> Vec<(u64, u64, u64)> {
    task.problem.buffers.iter().map(|buffer| (buffer.start, buffer.end, buffer.size)).collect()
}

/// x [n, 4] → Conv → a → Relu → b → Reshape → c; a, c → Add → y, with a weight and a constant.
fn small(batch: &str) -> Vec<Vec<u8>> {
    use onnx::{node, part, value, weight};
    let inside = [part(1, &node("Neg", &["b", "inner"], &["inner2"]))].concat();
    let attribute = [part(1, b"body"), part(6, &inside)].concat();
    vec![
        part(1, &node("Constant", &[], &["shape"])),
        part(1, &node("Conv", &["x", "w", ""], &["a"])),
        part(1, &node("Relu", &["a"], &["b"])),
        part(1, &node("Reshape", &["b", "shape"], &["c"])),
        part(1, &[node("If", &["a"], &["d"]), part(5, &attribute)].concat()),
        part(1, &node("Add", &["c", "d"], &["y"])),
        part(5, &weight("w", 1, &[10])),
        part(11, &value("x", 1, &[batch, "4"])),
        part(11, &value("w", 1, &["10"])),
        part(12, &value("y", 1, &[batch, "4"])),
        part(13, &value("a", 1, &[batch, "4"])),
        part(13, &value("b", 10, &[batch, "4"])),
        part(13, &value("c", 10, &["4", batch])),
        part(13, &value("d", 21, &["3"])),
    ]
}

#[test]
fn tensors_of_onnx_live_from_their_maker_to_their_last_reader() {
    let task = plan(&onnx::model(&small("8")), &Reading::default()).expect("a model");
    // x; a, which Conv makes and If reads; b with its view c; d; y.
    assert_eq!(lives(&task), [(0, 3, 128), (2, 6, 128), (3, 7, 64), (5, 7, 2), (6, u64::MAX, 128)]);
    assert!(task.problem.buffers.iter().all(|buffer| buffer.alignment == 64));
    assert_eq!(
        task.remarks,
        [
            "2 weights are not in the plan: 0.00 MiB",
            "1 operator has a graph inside (`If`, `Loop`, `Scan`): what is allocated in it is not in the plan"
        ]
    );
    let named = onnx::model(&small("batch"));
    let error = plan(&named, &Reading::default()).expect_err("no number");
    assert_eq!(error, "m: the dimension `batch` has no number: give it with `--dim batch=N`");
    let dimensions = vec![("batch".to_owned(), 8), ("bach".to_owned(), 1)];
    let given = plan(&named, &Reading { dimensions, ..Reading::default() }).expect("a model");
    assert_eq!(lives(&given), lives(&task));
    assert_eq!(given.remarks.last().map(String::as_str), Some("no dimension is named `bach`, which --dim gives"));
}

#[test]
fn what_onnx_does_not_say_is_named() {
    let without = |left_out: usize| {
        let mut graph = small("8");
        graph.remove(left_out);
        onnx::model(&graph)
    };
    let with = |more: Vec<u8>| onnx::model(&[small("8"), vec![more]].concat());
    let value = |name: &str, kind, dimensions: &[&str]| with(onnx::part(13, &onnx::value(name, kind, dimensions)));
    let unreadable = "m: this ONNX model cannot be read: ";
    let deep = (0..40).fold(onnx::node("Loop", &[], &[]), |inner, _| {
        let attribute = onnx::part(6, &onnx::part(1, &inner));
        [onnx::node("Loop", &["a"], &["deep"]), onnx::part(5, &attribute)].concat()
    });
    for (model, what) in [
        (without(10), "m: tensor `a` has no shape in the file: `onnx.shape_inference".to_owned()),
        (value("a", 1, &["-1"]), "m: tensor `a` has a dimension with neither a number nor a name".to_owned()),
        (value("a", 8, &["2"]), "m: `a` has elements without a fixed length".to_owned()),
        (value("a", 1, &["4611686018427387904", "8"]), "m: `a` is 1 EiB or larger".to_owned()),
        (
            with(onnx::part(13, &[onnx::part(1, b"a"), onnx::part(2, &onnx::part(4, b""))].concat())),
            "m: `a` is a sequence".to_owned(),
        ),
        (without(2), "m: operator 3 (`the Reshape`): `b` is read here, and no operator makes it before".to_owned()),
        (without(5), format!("{unreadable}no operator makes `y`, an output of the graph")),
        (
            with(onnx::part(1, &onnx::node("Conv", &["x"], &["a"]))),
            "m: operator 7 (`the Conv`): `a` is made here, but it exists already".to_owned(),
        ),
        (with(onnx::part(1, &deep)), format!("{unreadable}more than 32 graphs are inside one another")),
        (onnx::part(2, b"tests"), "m:1: nothing that can be planned".to_owned()),
        ([onnx::number(1, 8), onnx::part(2, b"tests")].concat(), format!("{unreadable}it has no graph")),
        (
            [onnx::number(1, 8), vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]].concat(),
            format!("{unreadable}a part is longer"),
        ),
    ] {
        let error = plan(&model, &Reading::default()).expect_err("an error");
        assert!(error.starts_with(&what), "{error}\n{what}");
    }
}

/// A writer of flatbuffers, in the order of the tree: each part comes after the table that refers
/// to it.
mod flat {
    pub(super) enum Part {
        Table(Vec<(usize, Part)>),
        List(Vec<Part>),
        Numbers(Vec<i32>),
        Bytes(Vec<u8>),
        Byte(i8),
        Number(u32),
    }

    pub(super) fn text(text: &str) -> Part {
        Part::Bytes(text.as_bytes().to_vec())
    }

    pub(super) fn file(root: &Part) -> Vec<u8> {
        let mut out = b"\0\0\0\0TFL3".to_vec();
        let at = write(root, &mut out);
        out[..4].copy_from_slice(&(at as u32).to_le_bytes());
        out
    }

    fn refer(out: &mut [u8], from: usize, to: usize) {
        out[from..from + 4].copy_from_slice(&((to - from) as u32).to_le_bytes());
    }

    fn counted(out: &mut Vec<u8>, count: usize) -> usize {
        out.resize(out.len().next_multiple_of(4), 0);
        let at = out.len();
        out.extend((count as u32).to_le_bytes());
        at
    }

    fn write(part: &Part, out: &mut Vec<u8>) -> usize {
        match part {
            Part::Table(fields) => {
                let slots = fields.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0);
                let vtable = counted(out, 0);
                out.truncate(vtable);
                out.extend(((4 + 2 * slots) as u16).to_le_bytes());
                out.extend(((4 + 4 * fields.len()) as u16).to_le_bytes());
                for slot in 0..slots {
                    let place = fields.iter().position(|(other, _)| *other == slot);
                    out.extend((place.map_or(0, |place| 4 + 4 * place) as u16).to_le_bytes());
                }
                let at = counted(out, 0);
                out[at..at + 4].copy_from_slice(&((at - vtable) as u32).to_le_bytes());
                out.resize(at + 4 + 4 * fields.len(), 0);
                for (place, (_, field)) in fields.iter().enumerate() {
                    let from = at + 4 + 4 * place;
                    match field {
                        Part::Byte(number) => out[from] = number.cast_unsigned(),
                        Part::Number(number) => out[from..from + 4].copy_from_slice(&number.to_le_bytes()),
                        other => {
                            let to = write(other, out);
                            refer(out, from, to);
                        }
                    }
                }
                at
            }
            Part::List(parts) => {
                let at = counted(out, parts.len());
                out.resize(at + 4 + 4 * parts.len(), 0);
                for (place, part) in parts.iter().enumerate() {
                    let to = write(part, out);
                    refer(out, at + 4 + 4 * place, to);
                }
                at
            }
            Part::Numbers(numbers) => {
                let at = counted(out, numbers.len());
                out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                at
            }
            Part::Bytes(bytes) => {
                let at = counted(out, bytes.len());
                out.extend(bytes);
                out.push(0);
                at
            }
            Part::Byte(_) | Part::Number(_) => unreachable!("in its table"),
        }
    }
}

use flat::Part::{Byte, Bytes, List, Number, Numbers, Table};

fn tensor(name: &str, kind: i8, shape: &[i32], buffer: u32) -> flat::Part {
    Table(vec![(0, Numbers(shape.to_vec())), (1, Byte(kind)), (2, Number(buffer)), (3, flat::text(name))])
}

fn operator(code: u32, inputs: &[i32], outputs: &[i32]) -> flat::Part {
    Table(vec![(0, Number(code)), (1, Numbers(inputs.to_vec())), (2, Numbers(outputs.to_vec()))])
}

/// x → CONV → a → RESHAPE → b → custom, with a variable → y.
fn small_tflite(operators: Vec<flat::Part>, more: flat::Part) -> Vec<u8> {
    let varies = Table(vec![(0, Numbers(vec![1, 4])), (1, Byte(9)), (3, flat::text("b")), (7, Numbers(vec![-1, 4]))]);
    let variable = Table(vec![(0, Numbers(vec![3])), (1, Byte(0)), (5, Byte(1))]);
    let tensors = vec![
        tensor("x", 0, &[1, 8], 0),
        tensor("w", 0, &[2, 2], 1),
        tensor("a", 9, &[2, 2], 0),
        varies,
        variable,
        tensor("y", 17, &[3], 0),
        tensor("nothing", 2, &[0], 0),
        more,
    ];
    let subgraph =
        |operators| Table(vec![(0, List(tensors)), (1, Numbers(vec![0])), (2, Numbers(vec![5])), (3, List(operators))]);
    let codes = vec![
        Table(vec![(0, Byte(3)), (3, Number(3))]),
        Table(vec![(0, Byte(22))]),
        Table(vec![(0, Byte(32)), (1, flat::text("mine")), (3, Number(32))]),
    ];
    let buffers = vec![Table(vec![]), Table(vec![(0, Bytes(vec![7; 16]))])];
    flat::file(&Table(vec![
        (0, Number(3)),
        (1, List(codes)),
        (2, List(vec![subgraph(operators), Table(vec![])])),
        (4, List(buffers)),
    ]))
}

fn operators() -> Vec<flat::Part> {
    vec![operator(0, &[0, 1, -1], &[2]), operator(1, &[2, 6], &[3]), operator(2, &[3, 4], &[5])]
}

#[test]
fn tensors_of_tensorflow_lite_live_from_their_maker_to_their_last_reader() {
    let model = small_tflite(operators(), tensor("unused", 0, &[5], 0));
    let task = plan(&model, &Reading::default()).expect("a model");
    // x and the variable; a with its view b; y.
    assert_eq!(lives(&task), [(0, 2, 32), (0, u64::MAX, 12), (1, 4, 4), (3, u64::MAX, 2)]);
    let rest = [
        "1 tensor may have another shape when the model runs, and counts with the stored one: `b (3)`",
        "the first of 2 subgraphs is planned: what the others need is not in the plan",
    ];
    assert_eq!(task.remarks[0], "2 weights are not in the plan: 0.00 MiB");
    assert_eq!(task.remarks[1..], rest);
}

#[test]
fn what_a_model_of_tensorflow_lite_does_not_have_is_named() {
    let plain = || tensor("unused", 0, &[5], 0);
    let with =
        |operator: flat::Part| small_tflite([operators(), vec![operator]].into_iter().flatten().collect(), plain());
    let kind = |kind, shape: &[i32]| {
        small_tflite(
            [operators(), vec![operator(0, &[0], &[7])]].into_iter().flatten().collect(),
            tensor("late", kind, shape, 0),
        )
    };
    let unreadable = "m: this model of TensorFlow Lite cannot be read: ";
    for (model, what) in [
        (with(operator(9, &[0], &[7])), format!("{unreadable}part 9 of 3 does not exist")),
        (with(operator(0, &[8], &[7])), format!("{unreadable}there is no tensor 8")),
        (with(operator(0, &[7], &[7])), "m: operator 4 (`builtin 3`): `unused (7)` is read here, and no".to_owned()),
        (with(operator(0, &[0], &[2])), "m: operator 4 (`builtin 3`): `a (2)` is made here, but it exists".to_owned()),
        (kind(5, &[1]), format!("{unreadable}`late (7)` has elements without a fixed length, as texts have")),
        (kind(0, &[-1, 2]), format!("{unreadable}`late (7)` has a dimension that is not known")),
        (kind(0, &[i32::MAX, i32::MAX, 9]), format!("{unreadable}`late (7)` is 1 EiB or larger")),
        (flat::file(&Table(vec![(0, Number(3))])), format!("{unreadable}it has no subgraph")),
    ] {
        let error = plan(&model, &Reading::default()).expect_err("an error");
        assert!(error.starts_with(&what), "{error}\n{what}");
    }
}

#[test]
fn a_model_that_is_cut_or_damaged_gets_one_line() {
    let models = [onnx::model(&small("8")), small_tflite(operators(), tensor("unused", 0, &[5], 0))];
    let check = |bytes: &[u8]| {
        if let Err(error) = load_bytes(Path::new("m"), bytes, &Reading::default()) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    };
    for model in &models {
        (0..model.len()).for_each(|end| check(&model[..end]));
        for seed in 0..20_000 {
            let mut random = Rng::with_seed(seed);
            let mut damaged = model.clone();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(8..damaged.len());
                damaged[place] = if random.bool() { random.u8(..) } else { [0, 0x7f, 0x80, 0xff][random.usize(..4)] };
            }
            check(&damaged);
        }
    }
}
