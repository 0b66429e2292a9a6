//! Reads pickles. A pickle is a program for a stack machine. All values are in one table.

use super::error::Error;
use super::input::Input;
use super::lines::{self, Number};
use super::memo::Memo;
use super::opcode::{
    APPEND, APPENDS, BINBYTES, BINBYTES8, BINFLOAT, BINGET, BININT, BININT1, BININT2, BINPUT, BINSTRING, BINUNICODE,
    BINUNICODE8, DICT, DUP, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, FLOAT, FRAME, GET, INT, LIST, LONG, LONG_BINGET,
    LONG_BINPUT, LONG1, LONG4, MARK, MEMOIZE, NEWFALSE, NEWTRUE, NONE, POP, POP_MARK, PROTO, PUT, SETITEM, SETITEMS,
    SHORT_BINBYTES, SHORT_BINSTRING, SHORT_BINUNICODE, STOP, STRING, TUPLE, TUPLE1, TUPLE2, TUPLE3, UNICODE,
};
use super::tree::{At, Node, Tree, Value};
use crate::harvest::{self, EventList};
use crate::model::{Annotation, Event, Segment, Settings, Snapshot};
use crate::shared;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::Read;

/// The snapshots of a file. The name is empty if the file is one snapshot.
type Wrapped<T> = Vec<(String, T)>;

/// A snapshot with events of any type.
type With<T> = Snapshot<Vec<Segment>, Vec<Vec<T>>>;

/// The highest accepted protocol.
const PROTOCOL: u8 = 5;

/// Reads a pickle.
///
/// A value with several references is read for each reference, except for stacks and their frames,
/// which are shared. A few bytes can so expand to any number of values. At most 8 values are read
/// for each byte of the pickle, and at least 65,536 are allowed. Every 32 bytes of a text count as
/// another value.
///
/// # Errors
/// If the pickle is cut off, has an operation beyond plain values, expands beyond the limit, or is
/// no `T`.
pub fn from_slice<T: DeserializeOwned>(pickle: &[u8]) -> Result<T, Error> {
    let mut machine = Machine::new(pickle, None);
    let value = machine.run()?;
    shared::reading(|| T::deserialize(At::new(&machine.tree, value)))
}

/// Reads the snapshots of a file in parts. Each event is built as soon as the dictionary is
/// complete, and the pickled values are dropped.
pub(crate) fn snapshots_from(reader: impl Read) -> Result<Wrapped<Snapshot>, Error> {
    shared::reading(|| {
        harvest::reading(|| {
            let mut keep = harvest::keep;
            let mut machine = Machine::new(reader, Some(&mut keep));
            let value = machine.run()?;
            let tree = machine.into_tree();
            let read = each(At::new(&tree, value), |at| {
                if at.is_list() {
                    return Ok(Snapshot { segments: Vec::deserialize(at)?, ..Snapshot::default() });
                }
                Snapshot::<Vec<Segment>, Vec<EventList>>::deserialize(at)
            })?;
            drop(tree);
            Ok(gathered(read, harvest::take(), |event| event))
        })
    })
}

/// Reads a value, or each snapshot that it wraps, with its name.
fn each<'t, T>(at: At<'t>, read: impl Fn(At<'t>) -> Result<T, Error>) -> Result<Wrapped<T>, Error> {
    let mut wrapped = at.snapshots();
    if let [(name, _)] = &mut wrapped[..] {
        name.clear();
    }
    if wrapped.is_empty() {
        wrapped.push((String::new(), at));
    }
    wrapped.into_iter().map(|(name, at)| Ok((name, read(at)?))).collect()
}

/// Gives each snapshot its events.
fn gathered<T: Clone>(
    mut read: Wrapped<Snapshot<Vec<Segment>, Vec<EventList>>>,
    made: Vec<T>,
    convert: impl FnMut(Event) -> T,
) -> Wrapped<With<T>> {
    // The events of all snapshots are in one list, so one call takes them apart.
    let lists: Vec<Vec<EventList>> =
        read.iter_mut().map(|(_, snapshot)| std::mem::take(&mut snapshot.device_traces)).collect();
    let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
    let mut events = harvest::gather(lists.into_iter().flatten().collect(), made, convert).into_iter();
    let next = |((name, snapshot), count): ((String, Snapshot<_, _>), usize)| {
        (name, snapshot.map_traces(|_| events.by_ref().take(count).collect()))
    };
    read.into_iter().zip(counts).map(next).collect()
}

/// A snapshot without the keys that [`outlines_from`] leaves out.
#[derive(Deserialize)]
struct Outline {
    segments: Vec<Segment>,
    #[serde(default)]
    device_traces: Vec<EventList>,
    #[serde(default)]
    allocator_settings: Option<Settings>,
    #[serde(default)]
    external_annotations: Option<Vec<Annotation>>,
}

impl Outline {
    fn into_snapshot(self) -> Snapshot<Vec<Segment>, Vec<EventList>> {
        let Self { segments, device_traces, allocator_settings, external_annotations } = self;
        Snapshot { segments, device_traces, allocator_settings, external_annotations, ..Snapshot::default() }
    }
}

/// Reads snapshots like [`snapshots_from`], and converts each event as soon as the event is built.
/// Host memory and unknown keys are left out.
pub(crate) fn outlines_from<T: Clone>(
    reader: impl Read,
    mut convert: impl FnMut(Event) -> T,
) -> Result<Wrapped<With<T>>, Error> {
    shared::reading(|| {
        let mut made = Vec::new();
        let mut keep = |event| {
            made.push(convert(event));
            made.len() as u32 - 1
        };
        let mut machine = Machine::new(reader, Some(&mut keep));
        let value = machine.run()?;
        let tree = machine.into_tree();
        let read = each(At::new(&tree, value), |at| {
            if at.is_list() {
                return Ok(Snapshot { segments: Vec::deserialize(at)?, ..Snapshot::default() });
            }
            Outline::deserialize(at).map(Outline::into_snapshot)
        })?;
        drop(tree);
        Ok(gathered(read, made, convert))
    })
}

/// Takes a finished event and returns the number of the event.
type Harvester<'h> = &'h mut dyn FnMut(Event) -> u32;

struct Machine<'h, R> {
    input: Input<R>,
    tree: Tree,
    stack: Vec<Value>,
    /// Length of the stack at each mark.
    marks: Vec<usize>,
    memo: Memo,
    /// Number of `MEMOIZE` operations so far, which is the number of the next memoized value.
    memoized: u32,
    /// Takes dictionaries with an `action`, which become events at once.
    harvester: Option<Harvester<'h>>,
}

impl<'h, R: Read> Machine<'h, R> {
    fn new(from: R, harvester: Option<Harvester<'h>>) -> Self {
        Self {
            input: Input::new(from),
            tree: Tree::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            memoized: 0,
            harvester,
        }
    }

    /// Drops the machine and returns the table of values.
    fn into_tree(self) -> Tree {
        self.tree
    }

    fn invalid(&self, what: impl Into<String>) -> Error {
        Error::Invalid(self.input.at().saturating_sub(1), what.into())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.input.array()
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Error> {
        self.input.byte()
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn long_length(&mut self) -> Result<usize, Error> {
        let length = u64::from_le_bytes(self.array()?);
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self, length: usize) -> Result<(), Error> {
        let text = str::from_utf8(self.input.take(length)?);
        let value = text.map(|text| self.tree.text(text)).ok();
        let value = value.ok_or_else(|| self.invalid("a text is not UTF-8"))?;
        self.stack.push(value);
        Ok(())
    }

    fn bytes(&mut self, length: usize) -> Result<(), Error> {
        let bytes = self.input.take(length)?.into();
        self.push(Node::Bytes(bytes));
        Ok(())
    }

    fn long(&mut self, length: usize) -> Result<(), Error> {
        let mut whole = [0; size_of::<i128>()];
        let bytes = self.input.take(length)?;
        let Some(place) = whole.get_mut(..length) else {
            return Err(self.invalid("a number of more than 128 bits"));
        };
        place.copy_from_slice(bytes);
        if bytes.last().is_some_and(|&byte| byte >= 0x80) {
            whole[length..].fill(0xff);
        }
        let value = i128::from_le_bytes(whole);
        match i64::try_from(value) {
            Ok(value) => self.stack.push(Value::Int(value)),
            Err(_) => self.push(Node::Long(Box::new(value))),
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Error> {
        // Values below a mark stay out of reach until the mark is removed.
        if self.marks.last().is_some_and(|&mark| self.stack.len() <= mark) {
            return Err(self.invalid("an operation needs a value, and none is above the latest mark"));
        }
        self.stack.pop().ok_or_else(|| self.invalid("an operation needs a value, and the stack is empty"))
    }

    fn top(&self) -> Result<Value, Error> {
        self.stack.last().copied().ok_or_else(|| self.invalid("an operation needs a value, and the stack is empty"))
    }

    /// Removes the latest mark. Returns the mark's position on the stack.
    fn pop_mark(&mut self) -> Result<usize, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.invalid("an operation needs a mark, and none is set"))?;
        if mark > self.stack.len() {
            return Err(self.invalid("the stack is shorter than at the latest mark"));
        }
        Ok(mark)
    }

    fn push(&mut self, node: Node) {
        let value = self.tree.add(node);
        self.stack.push(value);
    }

    /// Moves the values from `from` to the top of the stack into the list below.
    fn append(&mut self, from: usize) -> Result<(), Error> {
        let list = from.checked_sub(1).and_then(|below| self.tree.list_mut(self.stack[below]));
        let Some(list) = list else { return Err(self.invalid("entries are added to a value that is no list")) };
        list.extend_from_slice(&self.stack[from..]);
        self.stack.truncate(from);
        Ok(())
    }

    /// Moves the keys and values from `from` to the top of the stack into the dictionary below.
    fn add_items(&mut self, from: usize) -> Result<(), Error> {
        let (pairs, rest) = self.stack[from..].as_chunks();
        let below = from.checked_sub(1).map(|below| self.stack[below]);
        let dict = below.filter(|_| rest.is_empty()).and_then(|below| self.tree.dict_mut(below));
        let Some(dict) = dict else {
            return Err(self.invalid("entries are added to a value that is no dictionary, or a key has no value"));
        };
        dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
        self.stack.truncate(from);
        Ok(())
    }

    /// Adds entries like [`add_items`](Self::add_items). A complete event is converted.
    fn set_items(&mut self, from: usize) -> Result<(), Error> {
        self.add_items(from)?;
        if let Some(&dict) = from.checked_sub(1).and_then(|below| self.stack.get(below)) {
            self.harvest(dict);
        }
        Ok(())
    }

    /// Converts a dictionary with an action into an event.
    fn harvest(&mut self, dict: Value) {
        if self.harvester.is_none() || !self.tree.prepare_event(dict) {
            return;
        }
        self.tree.allow(self.input.at());
        // A dictionary that is no event stays, and fails later if the model expects an event
        // there.
        let read = self.tree.counted(|tree| Event::read(At::new(tree, dict)));
        if let (Ok(event), Some(keep)) = (read, &mut self.harvester) {
            self.tree.replace(dict, Node::Event(keep(event)));
        }
    }

    fn memoize(&mut self, number: u32) -> Result<(), Error> {
        let top = self.top()?;
        let node = self.tree.node_of(top);
        self.memo.insert(number, node);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), Error> {
        let node = self.memo.get(number);
        let node = node.ok_or_else(|| self.invalid(format!("there is no value {number} to refer to")))?;
        // A small value is not looked up here: its node may be far away, and most nodes are none.
        self.stack.push(Value::Node(node));
        Ok(())
    }

    fn tuple(&mut self, length: usize) -> Result<(), Error> {
        let mut entries = Vec::with_capacity(length);
        for _ in 0..length {
            entries.push(self.pop()?);
        }
        entries.reverse();
        self.push(Node::List(Box::new(entries)));
        Ok(())
    }

    /// Runs the pickle to the end and returns the final value.
    fn run(&mut self) -> Result<Value, Error> {
        loop {
            let operation = self.byte()?;
            if operation == STOP {
                self.tree.allow(self.input.at());
                return self.pop();
            }
            self.step(operation)?;
        }
    }

    fn step(&mut self, operation: u8) -> Result<(), Error> {
        match operation {
            PROTO => {
                let protocol = self.byte()?;
                if protocol > PROTOCOL {
                    return Err(self.invalid(format!("protocol {protocol}, and {PROTOCOL} is the highest known")));
                }
            }
            FRAME => drop(self.array::<8>()?),
            MARK => self.marks.push(self.stack.len()),
            POP => drop(self.pop()?),
            POP_MARK => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
            }
            DUP => self.stack.push(self.top()?),
            NONE => self.stack.push(Value::None),
            NEWTRUE => self.stack.push(Value::Bool(true)),
            NEWFALSE => self.stack.push(Value::Bool(false)),
            BININT => {
                let int = i32::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(int.into()));
            }
            BININT1 => {
                let int = self.byte()?;
                self.stack.push(Value::Int(int.into()));
            }
            BININT2 => {
                let int = u16::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(int.into()));
            }
            BINFLOAT => {
                let float = f64::from_be_bytes(self.array()?);
                self.stack.push(Value::Float(float));
            }
            LONG1 => {
                let length = self.byte()?;
                self.long(length.into())?;
            }
            LONG4 => {
                let length = self.u32()?;
                self.long(length as usize)?;
            }
            SHORT_BINUNICODE | SHORT_BINSTRING => {
                let length = self.byte()?;
                self.text(length.into())?;
            }
            BINUNICODE | BINSTRING => {
                let length = self.u32()?;
                self.text(length as usize)?;
            }
            BINUNICODE8 => {
                let length = self.long_length()?;
                self.text(length)?;
            }
            SHORT_BINBYTES => {
                let length = self.byte()?;
                self.bytes(length.into())?;
            }
            BINBYTES => {
                let length = self.u32()?;
                self.bytes(length as usize)?;
            }
            BINBYTES8 => {
                let length = self.long_length()?;
                self.bytes(length)?;
            }
            _ => return self.step_compound(operation),
        }
        Ok(())
    }

    fn step_compound(&mut self, operation: u8) -> Result<(), Error> {
        match operation {
            EMPTY_LIST | EMPTY_TUPLE => self.push(Node::List(Box::default())),
            EMPTY_DICT => self.push(Node::Dict(Box::default())),
            APPEND => {
                let entry = self.pop()?;
                self.top()?;
                self.stack.push(entry);
                self.append(self.stack.len() - 1)?;
            }
            APPENDS => {
                let mark = self.pop_mark()?;
                self.append(mark)?;
            }
            LIST | TUPLE => {
                let mark = self.pop_mark()?;
                let entries = self.stack.split_off(mark);
                self.push(Node::List(Box::new(entries)));
            }
            TUPLE1 => self.tuple(1)?,
            TUPLE2 => self.tuple(2)?,
            TUPLE3 => self.tuple(3)?,
            SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.top()?;
                // Protocol 0 adds the keys one by one, so an event is complete later.
                self.stack.extend([key, value]);
                self.add_items(self.stack.len() - 2)?;
            }
            SETITEMS => {
                let mark = self.pop_mark()?;
                self.set_items(mark)?;
            }
            DICT => {
                let mark = self.pop_mark()?;
                let dict = self.tree.add(Node::Dict(Box::default()));
                self.stack.insert(mark, dict);
                self.set_items(mark + 1)?;
            }
            BINPUT => {
                let number = self.byte()?;
                self.memoize(number.into())?;
            }
            LONG_BINPUT => {
                let number = self.u32()?;
                self.memoize(number)?;
            }
            MEMOIZE => {
                self.memoize(self.memoized)?;
                self.memoized += 1;
            }
            BINGET => {
                let number = self.byte()?;
                self.recall(number.into())?;
            }
            LONG_BINGET => {
                let number = self.u32()?;
                self.recall(number)?;
            }
            _ => self.step_line(operation)?,
        }
        Ok(())
    }

    /// Does an operation of protocol 0, with a line of text.
    fn step_line(&mut self, operation: u8) -> Result<(), Error> {
        let wrong = |machine: &Self| machine.invalid("a value of protocol 0 cannot be read");
        match operation {
            INT | LONG => match lines::number(self.input.line()?) {
                Some(Number::Bool(value)) => self.stack.push(Value::Bool(value)),
                Some(Number::Int(value)) => match i64::try_from(value) {
                    Ok(value) => self.stack.push(Value::Int(value)),
                    Err(_) => self.push(Node::Long(Box::new(value))),
                },
                None => return Err(wrong(self)),
            },
            FLOAT => {
                let value = lines::float(self.input.line()?);
                self.stack.push(Value::Float(value.ok_or_else(|| wrong(self))?));
            }
            UNICODE => {
                let text = lines::unicode(self.input.line()?);
                let value = self.tree.text(&text);
                self.stack.push(value);
            }
            STRING => {
                let text = lines::quoted(self.input.line()?);
                let value = self.tree.text(&text.ok_or_else(|| wrong(self))?);
                self.stack.push(value);
            }
            PUT | GET => {
                let number = match lines::number(self.input.line()?) {
                    Some(Number::Bool(number)) => Some(number.into()),
                    Some(Number::Int(number)) => u32::try_from(number).ok(),
                    None => None,
                };
                let number = number.ok_or_else(|| wrong(self))?;
                if operation == PUT { self.memoize(number)? } else { self.recall(number)? }
            }
            _ => return Err(self.invalid(format!("the operation {operation:#04x}, which plain values do not need,"))),
        }
        Ok(())
    }
}
