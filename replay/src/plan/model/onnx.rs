//! Models of ONNX, in the wire format of protocol buffers.
//!
//! Of the format, these fields are read:
//!
//! ```text
//! model      7 graph  25 function …
//! graph      1 node …  5 initializer …  11 input …  12 output …  13 value …  15 sparse initializer …
//! node       1 input …  2 output …  3 name  4 operator  5 attribute …  7 domain
//! attribute  5 tensor  6 graph  11 graph …
//! value      1 name  2 type: 1 tensor: 1 kind of element, 2 shape: 1 dimension …: 1 number, 2 name
//! tensor     1 dimension …  2 kind of element  8 name         sparse: 1 tensor of its values
//! ```
//!
//! A model has a type for its inputs and outputs, and for the tensors between them if the shapes
//! were inferred. The message is not decoded as a whole, because weights are most of it, and
//! because a short foreign message could have millions of empty parts.

use super::{Graph, bounded, bytes, some};
use crate::plan::{Reading, Task};
use crate::trace::BadInput;
use cachalot_planner::operators::{Life, Memory, Output};
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

/// Operators whose output has the bytes of the first input.
const VIEWS: [&str; 5] = ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"];

/// Most graphs inside one another.
const MOST_DEPTH: u32 = 32;

/// What is said of shapes that the file does not have.
const INFER: &str = "`onnx.shape_inference.infer_shapes_path(IN, OUT)` writes a model with the shapes of all tensors";

/// Reads the graph of a model, and builds its problem.
pub(in crate::plan) fn load(file: &Path, model: &[u8], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let unreadable = |why: String| BadInput::whole(file, format!("this ONNX model cannot be read: {why}"));
    let (bodies, functions) = model_parts(model).map_err(unreadable)?;
    let parts = OnnxParts::read(bodies).map_err(unreadable)?;
    let mut builder = OnnxBuilder::new(&parts, reading);
    builder.build().map_err(unreadable)?;
    let OnnxBuilder { graph, gaps, nested, .. } = builder;
    if let Some(what) = gaps.told() {
        return Err(BadInput::whole(file, what));
    }
    let mut remarks = Vec::new();
    let outside = "what is allocated in it is not in the plan";
    match nested {
        0 => {}
        1 => remarks.push(format!("1 operator has a graph inside (`If`, `Loop`, `Scan`): {outside}")),
        many => remarks.push(format!("{many} operators have a graph inside (`If`, `Loop`, `Scan`): {outside}")),
    }
    if functions > 0 {
        remarks.push(format!("a call of a function of the model counts as one operator: {outside}"));
    }
    for (name, _) in reading.dimensions.iter().filter(|(name, _)| !gaps.named.contains(name.as_str())) {
        remarks.push(format!("no dimension is named `{name}`, which --dim gives"));
    }
    graph.problem(file, remarks)
}

/// A field of a message.
enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// Passes each field of a message to `each`, but for numbers of a fixed length.
fn fields<'m>(mut message: &'m [u8], mut each: impl FnMut(u32, Field<'m>) -> Result<(), String>) -> Result<(), String> {
    let damaged = |error: prost::DecodeError| error.to_string();
    while message.has_remaining() {
        let (tag, wire) = decode_key(&mut message).map_err(damaged)?;
        let field = match wire {
            WireType::Varint => Field::Number(decode_varint(&mut message).map_err(damaged)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut message).map_err(damaged)?;
                let length = usize::try_from(length).ok().filter(|&length| length <= message.len());
                let length = length.ok_or("a part is longer than what is left: the file is truncated")?;
                let (bytes, rest) = message.split_at(length);
                message = rest;
                Field::Bytes(bytes)
            }
            wire => {
                skip_field(wire, tag, &mut message, DecodeContext::default()).map_err(damaged)?;
                continue;
            }
        };
        each(tag, field)?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    str::from_utf8(bytes).map_err(|_| "a name is not UTF-8".to_owned())
}

/// Returns the graph of a model, and the number of its functions.
fn model_parts(model: &[u8]) -> Result<(&[u8], u64), String> {
    let (mut graph, mut functions) = (None, 0);
    fields(model, |tag, field| {
        match (tag, field) {
            (7, Field::Bytes(bytes)) if graph.replace(bytes).is_some() => return Err("it has two graphs".to_owned()),
            (25, _) => functions += 1,
            _ => {}
        }
        Ok(())
    })?;
    Ok((graph.ok_or("it has no graph")?, functions))
}

/// The parts of a graph.
#[derive(Default)]
struct OnnxParts<'m> {
    nodes: Vec<&'m [u8]>,
    /// The bytes of each weight.
    weights: Vec<(&'m str, u64)>,
    inputs: Vec<&'m str>,
    outputs: Vec<&'m str>,
    /// The type of each tensor that has one.
    types: HashMap<&'m str, &'m [u8]>,
}

impl<'m> OnnxParts<'m> {
    fn read(graph: &'m [u8]) -> Result<Self, String> {
        let mut parts = Self::default();
        fields(graph, |tag, field| {
            let Field::Bytes(bytes) = field else { return Ok(()) };
            match tag {
                1 => {
                    parts.nodes.push(bytes);
                    bounded(parts.nodes.len(), "operators")
                }
                5 => parts.weight(bytes),
                15 => fields(bytes, |tag, field| match (tag, field) {
                    (1, Field::Bytes(values)) => parts.weight(values),
                    _ => Ok(()),
                }),
                11 => {
                    let name = parts.value(bytes)?;
                    parts.inputs.push(name);
                    Ok(())
                }
                12 => {
                    let name = parts.value(bytes)?;
                    parts.outputs.push(name);
                    Ok(())
                }
                13 => parts.value(bytes).map(drop),
                _ => Ok(()),
            }
        })?;
        Ok(parts)
    }

    fn weight(&mut self, tensor: &'m [u8]) -> Result<(), String> {
        self.weights.push(weight(tensor)?);
        bounded(self.weights.len(), "weights")
    }

    /// Notes the type of a value, and returns its name.
    fn value(&mut self, value: &'m [u8]) -> Result<&'m str, String> {
        let (mut name, mut of) = ("", None);
        fields(value, |tag, field| {
            match (tag, field) {
                (1, Field::Bytes(bytes)) => name = text(bytes)?,
                (2, Field::Bytes(bytes)) => of = Some(bytes),
                _ => {}
            }
            Ok(())
        })?;
        if let Some(of) = of {
            self.types.insert(name, of);
        }
        bounded(self.types.len().max(self.inputs.len()).max(self.outputs.len()), "tensors")?;
        Ok(name)
    }
}

/// Returns the name and the bytes of a weight. What has no known length has 0 bytes.
fn weight(tensor: &[u8]) -> Result<(&str, u64), String> {
    let (mut name, mut kind, mut elements) = ("", 0, 1_u128);
    fields(tensor, |tag, field| {
        match (tag, field) {
            (1, Field::Number(number)) => elements = elements.saturating_mul(number.into()),
            // Writers may also put all dimensions into one field.
            (1, Field::Bytes(mut packed)) => {
                while packed.has_remaining() {
                    let number = decode_varint(&mut packed).map_err(|error| error.to_string())?;
                    elements = elements.saturating_mul(number.into());
                }
            }
            (2, Field::Number(number)) => kind = number,
            (8, Field::Bytes(bytes)) => name = text(bytes)?,
            _ => {}
        }
        Ok(())
    })?;
    let size = bits(kind).and_then(|bits| bytes(elements, bits).ok());
    Ok((name, size.unwrap_or(0)))
}

/// Returns the bits of an element. `None` for texts, and for kinds that are not known here.
fn bits(kind: u64) -> Option<u64> {
    Some(match kind {
        2 | 3 | 9 | 17..=20 | 24 => 8,
        4 | 5 | 10 | 16 => 16,
        1 | 6 | 12 => 32,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        21..=23 => 4,
        25 | 26 => 2,
        _ => return None,
    })
}

/// An operator.
#[derive(Default)]
struct Node<'m> {
    inputs: Vec<&'m str>,
    outputs: Vec<&'m str>,
    name: &'m str,
    operator: &'m str,
    domain: &'m str,
    /// The graphs among its attributes.
    bodies: Vec<&'m [u8]>,
    /// The tensor among its attributes, of a constant.
    constant: Option<&'m [u8]>,
}

impl<'m> Node<'m> {
    fn read(node: &'m [u8]) -> Result<Self, String> {
        let mut read = Self::default();
        fields(node, |tag, field| {
            let Field::Bytes(bytes) = field else { return Ok(()) };
            match tag {
                1 => read.inputs.push(text(bytes)?),
                2 => read.outputs.push(text(bytes)?),
                3 => read.name = text(bytes)?,
                4 => read.operator = text(bytes)?,
                5 => fields(bytes, |tag, field| {
                    match (tag, field) {
                        (5, Field::Bytes(tensor)) => read.constant = Some(tensor),
                        (6 | 11, Field::Bytes(graph)) => read.bodies.push(graph),
                        _ => {}
                    }
                    Ok(())
                })?,
                7 => read.domain = text(bytes)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(read)
    }

    fn is_standard(&self, operators: &[&str]) -> bool {
        matches!(self.domain, "" | "ai.onnx") && operators.contains(&self.operator)
    }
}

/// Adds every name that a graph inside an operator reads.
fn read_inside<'m>(graph: &'m [u8], depth: u32, reads: &mut Vec<&'m str>) -> Result<(), String> {
    if depth > MOST_DEPTH {
        return Err(format!("more than {MOST_DEPTH} graphs are inside one another"));
    }
    fields(graph, |tag, field| {
        if let (1, Field::Bytes(node)) = (tag, field) {
            let node = Node::read(node)?;
            reads.extend(node.inputs);
            node.bodies.iter().try_for_each(|body| read_inside(body, depth + 1, reads))?;
        }
        Ok(())
    })
}

/// What the file does not say of its shapes.
#[derive(Default)]
struct Gaps<'m> {
    /// Names of dimensions without a number.
    dimensions: BTreeSet<&'m str>,
    /// All names of dimensions.
    named: BTreeSet<&'m str>,
    /// Tensors with a dimension that has neither a number nor a name.
    nameless: Vec<String>,
    /// Tensors without a shape.
    shapeless: Vec<String>,
    /// Tensors without a length, with the reason.
    endless: Vec<String>,
}

impl Gaps<'_> {
    /// Returns the complaint about the gaps. `None` without any.
    fn told(&self) -> Option<String> {
        let count = |names: &[String]| match names.len() {
            1 => format!("tensor {} has", some(names)),
            many => format!("{many} tensors ({}) have", some(names)),
        };
        if let Some(first) = self.dimensions.first() {
            let names: Vec<String> = self.dimensions.iter().map(|&name| name.to_owned()).collect();
            let subject = match names.len() {
                1 => format!("the dimension {} has", some(&names)),
                many => format!("{many} dimensions ({}) have", some(&names)),
            };
            return Some(format!("{subject} no number: give it with `--dim {first}=N`"));
        }
        if !self.shapeless.is_empty() {
            return Some(format!("{} no shape in the file: {INFER}", count(&self.shapeless)));
        }
        if !self.nameless.is_empty() {
            let what =
                "a dimension with neither a number nor a name: fix the shapes of the inputs, and infer the others";
            return Some(format!("{} {what} ({INFER})", count(&self.nameless)));
        }
        self.endless.first().cloned()
    }
}

/// Builds the graph.
struct OnnxBuilder<'m, 'r> {
    parts: &'r OnnxParts<'m>,
    reading: &'r Reading,
    graph: Graph,
    /// The number of each tensor.
    numbers: HashMap<&'m str, u32>,
    outputs: HashSet<&'m str>,
    gaps: Gaps<'m>,
    /// Number of operators with graphs inside.
    nested: u64,
}

impl<'m, 'r> OnnxBuilder<'m, 'r> {
    fn new(parts: &'r OnnxParts<'m>, reading: &'r Reading) -> Self {
        let outputs = parts.outputs.iter().copied().collect();
        let (numbers, gaps) = (HashMap::new(), Gaps::default());
        Self { parts, reading, graph: Graph::new(reading), numbers, outputs, gaps, nested: 0 }
    }

    fn build(&mut self) -> Result<(), String> {
        for &(name, size) in &self.parts.weights {
            let number = self.graph.weight(name.to_owned(), size);
            self.numbers.insert(name, number);
        }
        // Models of old versions list their weights among the inputs.
        let inputs = self.parts.inputs.iter().filter(|&name| !self.numbers.contains_key(name)).copied();
        let inputs: Vec<&str> = inputs.collect();
        let inputs = inputs.into_iter().map(|name| self.tensor(name)).collect::<Result<Vec<u32>, _>>()?;
        self.graph.inputs(inputs.into_iter());
        for node in &self.parts.nodes {
            self.operator(&Node::read(node)?)?;
        }
        let unmade = self.outputs.iter().find(|name| !self.numbers.contains_key(*name));
        unmade.map_or(Ok(()), |name| Err(format!("no operator makes `{name}`, an output of the graph")))
    }

    fn operator(&mut self, node: &Node<'m>) -> Result<(), String> {
        let name = if node.name.is_empty() { node.operator } else { node.name }.to_owned();
        if node.is_standard(&["Constant"]) {
            for output in node.outputs.iter().filter(|output| !output.is_empty()) {
                let size = node.constant.map(weight).transpose()?.map_or(0, |(_, size)| size);
                let number = self.graph.weight((*output).to_owned(), size);
                self.numbers.insert(output, number);
            }
            self.graph.operator(name, Vec::new(), Vec::new());
            return Ok(());
        }
        let mut reads = node.inputs.clone();
        if !node.bodies.is_empty() {
            self.nested += 1;
            let mut inside = Vec::new();
            node.bodies.iter().try_for_each(|body| read_inside(body, 1, &mut inside))?;
            // Other names are of tensors inside.
            reads.extend(inside.into_iter().filter(|name| self.numbers.contains_key(name)));
        }
        let inputs = reads.iter().filter(|name| !name.is_empty()).map(|name| self.read(name));
        let inputs = inputs.collect::<Result<Vec<u32>, _>>()?;
        let is_view = node.is_standard(&VIEWS);
        let first = node.inputs.first().and_then(|name| self.numbers.get(name)).copied();
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for name in node.outputs.iter().filter(|name| !name.is_empty()) {
            let value = match self.numbers.get(name) {
                // A second maker is a mistake that the program is checked for.
                Some(&made) => made,
                None => self.tensor(name)?,
            };
            let memory = if is_view { self.graph.reshaped(value, first) } else { Memory::Fresh };
            outputs.push(Output { value, memory });
        }
        self.graph.operator(name, inputs, outputs);
        Ok(())
    }

    /// Returns the number of a tensor that an operator reads. One that nothing makes gets a number
    /// too, so that the check of the program names it.
    fn read(&mut self, name: &'m str) -> Result<u32, String> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let number = self.graph.tensor(name.to_owned(), 0, Life::Planned);
        self.numbers.insert(name, number);
        bounded(self.numbers.len(), "tensors").map(|()| number)
    }

    /// Adds a tensor that the graph makes, with the size from its type.
    fn tensor(&mut self, name: &'m str) -> Result<u32, String> {
        let size = self.size(name)?;
        let life = if self.outputs.contains(name) { Life::Kept } else { Life::Planned };
        let number = self.graph.tensor(name.to_owned(), size, life);
        self.numbers.insert(name, number);
        bounded(self.numbers.len(), "tensors").map(|()| number)
    }

    /// Returns the bytes of a tensor, or notes the gap and returns 0.
    fn size(&mut self, name: &'m str) -> Result<u64, String> {
        let (mut kind, mut shape, mut is_tensor) = (None, None, true);
        let of = self.parts.types.get(name).copied().unwrap_or_default();
        fields(of, |tag, field| match (tag, field) {
            (1, Field::Bytes(tensor)) => fields(tensor, |tag, field| {
                match (tag, field) {
                    (1, Field::Number(number)) => kind = Some(number),
                    (2, Field::Bytes(bytes)) => shape = Some(bytes),
                    _ => {}
                }
                Ok(())
            }),
            (4 | 5 | 8 | 9, _) => {
                is_tensor = false;
                Ok(())
            }
            _ => Ok(()),
        })?;
        let endless = match (is_tensor, kind.map(bits)) {
            (false, _) => Some("is a sequence, a map or another value that is not one tensor, and has no fixed length"),
            (true, Some(None)) => Some("has elements without a fixed length, as texts have"),
            (true, _) => None,
        };
        if let Some(what) = endless {
            self.gaps.endless.push(format!("`{name}` {what}"));
            return Ok(0);
        }
        let (Some(Some(bits)), Some(shape)) = (kind.map(bits), shape) else {
            self.gaps.shapeless.push(name.to_owned());
            return Ok(0);
        };
        let Some(elements) = self.elements(name, shape)? else { return Ok(0) };
        bytes(elements, bits).or_else(|what| {
            self.gaps.endless.push(format!("`{name}` {what}"));
            Ok(0)
        })
    }

    /// Returns the number of elements of a shape. `None` with a gap, which is noted.
    fn elements(&mut self, name: &str, shape: &'m [u8]) -> Result<Option<u128>, String> {
        let (mut elements, mut is_nameless) = (Some(1_u128), false);
        let (gaps, dimensions) = (&mut self.gaps, &self.reading.dimensions);
        fields(shape, |tag, field| {
            let (1, Field::Bytes(dimension)) = (tag, field) else { return Ok(()) };
            let (mut number, mut called) = (None, "");
            fields(dimension, |tag, field| {
                match (tag, field) {
                    // A negative number means that it is not known.
                    (1, Field::Number(value)) => number = Some(value).filter(|&value| i64::try_from(value).is_ok()),
                    (2, Field::Bytes(bytes)) => called = text(bytes)?,
                    _ => {}
                }
                Ok(())
            })?;
            if number.is_none() && !called.is_empty() {
                gaps.named.insert(called);
                number = dimensions.iter().find(|(name, _)| name == called).map(|(_, number)| *number);
                if number.is_none() {
                    gaps.dimensions.insert(called);
                }
            } else if number.is_none() {
                is_nameless = true;
            }
            elements = number.and_then(|number| Some(elements?.saturating_mul(number.into())));
            Ok(())
        })?;
        if is_nameless {
            self.gaps.nameless.push(name.to_owned());
        }
        Ok(elements)
    }
}
