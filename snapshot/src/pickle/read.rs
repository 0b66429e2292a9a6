//! Reading: the machine that a pickle is a program for, over values in one table.

use super::error::Error;
use super::opcode::{
    APPEND, APPENDS, BINBYTES, BINBYTES8, BINFLOAT, BINGET, BININT, BININT1, BININT2, BINPUT, BINSTRING, BINUNICODE,
    BINUNICODE8, DICT, DUP, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, FRAME, LIST, LONG_BINGET, LONG_BINPUT, LONG1, LONG4,
    MARK, MEMOIZE, NEWFALSE, NEWTRUE, NONE, POP, POP_MARK, PROTO, SETITEM, SETITEMS, SHORT_BINBYTES, SHORT_BINSTRING,
    SHORT_BINUNICODE, STOP, TUPLE, TUPLE1, TUPLE2, TUPLE3,
};
use super::tree::{At, Node, Tree, Value};
use crate::shared;
use serde::de::DeserializeOwned;
use std::collections::HashMap;

/// The highest protocol that is read.
const PROTOCOL: u8 = 5;

/// Reads a pickle.
///
/// A value that the pickle refers to several times is read each time, but for the frames of stacks
/// and stacks themselves, which are shared. A few bytes can so expand to any number of values: no
/// more than 8 are read for each byte of the pickle, or 65,536 if that is more. A text counts as one
/// for each 32 bytes.
///
/// # Errors
/// If it is cut off, does what plain values do not need, expands to more, or is of something else
/// than a `T`.
pub fn from_slice<T: DeserializeOwned>(pickle: &[u8]) -> Result<T, Error> {
    let mut machine = Machine {
        pickle,
        at: 0,
        tree: Tree::new(pickle.len()),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        memoized: 0,
    };
    let value = machine.run()?;
    shared::reading(|| T::deserialize(At::new(&machine.tree, value)))
}

struct Machine<'p> {
    pickle: &'p [u8],
    at: usize,
    tree: Tree<'p>,
    stack: Vec<Value>,
    /// How long the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// How often `MEMOIZE` was met: the number that the next one gives.
    memoized: u32,
}

impl<'p> Machine<'p> {
    fn invalid(&self, what: impl Into<String>) -> Error {
        Error::Invalid(self.at.saturating_sub(1), what.into())
    }

    fn take(&mut self, length: usize) -> Result<&'p [u8], Error> {
        let taken = self.at.checked_add(length).and_then(|end| self.pickle.get(self.at..end));
        let taken = taken.ok_or(Error::Truncated(self.pickle.len()))?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.try_into().expect("as long as it was asked for"))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn long_length(&mut self) -> Result<usize, Error> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| Error::Truncated(self.pickle.len()))
    }

    fn text(&mut self, length: usize) -> Result<(), Error> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| self.invalid("a text is not UTF-8"))?;
        let value = self.tree.add(Node::Text(text));
        self.stack.push(value);
        Ok(())
    }

    fn bytes(&mut self, length: usize) -> Result<(), Error> {
        let bytes = self.take(length)?;
        let value = self.tree.add(Node::Bytes(bytes));
        self.stack.push(value);
        Ok(())
    }

    fn long(&mut self, length: usize) -> Result<(), Error> {
        let bytes = self.take(length)?;
        if length > size_of::<i128>() {
            return Err(self.invalid("a number of more than 128 bits"));
        }
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut whole = [if negative { 0xff } else { 0 }; size_of::<i128>()];
        whole[..length].copy_from_slice(bytes);
        self.stack.push(Value::Int(i128::from_le_bytes(whole)));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Error> {
        // What lies below a mark is not to be had before the mark is gone.
        if self.marks.last().is_some_and(|&mark| self.stack.len() <= mark) {
            return Err(self.invalid("nothing is there to be taken"));
        }
        self.stack.pop().ok_or_else(|| self.invalid("nothing is there to be taken"))
    }

    fn top(&self) -> Result<Value, Error> {
        self.stack.last().copied().ok_or_else(|| self.invalid("nothing is there"))
    }

    /// What was put down since the latest mark.
    fn pop_mark(&mut self) -> Result<Vec<Value>, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.invalid("there is no mark"))?;
        if mark > self.stack.len() {
            return Err(self.invalid("what was marked is gone"));
        }
        Ok(self.stack.split_off(mark))
    }

    fn push(&mut self, node: Node<'p>) {
        let value = self.tree.add(node);
        self.stack.push(value);
    }

    fn append(&mut self, entries: &[Value]) -> Result<(), Error> {
        let top = self.top()?;
        match self.tree.node_mut(top) {
            Some(Node::List(list)) => {
                list.extend_from_slice(entries);
                Ok(())
            }
            _ => Err(self.invalid("entries for what is no list")),
        }
    }

    fn set_items(&mut self, entries: &[Value]) -> Result<(), Error> {
        let top = self.top()?;
        let (pairs, rest) = entries.as_chunks();
        match self.tree.node_mut(top) {
            Some(Node::Dict(dict)) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            _ => Err(self.invalid("entries for what is no dictionary")),
        }
    }

    fn memoize(&mut self, number: u32) -> Result<(), Error> {
        let top = self.top()?;
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), Error> {
        let value = self.memo.get(&number).copied();
        self.stack.push(value.ok_or_else(|| self.invalid(format!("there is no value {number} to refer to")))?);
        Ok(())
    }

    fn tuple(&mut self, length: usize) -> Result<(), Error> {
        let mut entries = Vec::with_capacity(length);
        for _ in 0..length {
            entries.push(self.pop()?);
        }
        entries.reverse();
        self.push(Node::List(entries));
        Ok(())
    }

    /// Follows the pickle to its end; the value that it is of.
    fn run(&mut self) -> Result<Value, Error> {
        loop {
            let operation = self.byte()?;
            if operation == STOP {
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
            FRAME => drop(self.take(8)?),
            MARK => self.marks.push(self.stack.len()),
            POP => drop(self.pop()?),
            POP_MARK => drop(self.pop_mark()?),
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
            EMPTY_LIST | EMPTY_TUPLE => self.push(Node::List(Vec::new())),
            EMPTY_DICT => self.push(Node::Dict(Vec::new())),
            APPEND => {
                let entry = self.pop()?;
                self.append(&[entry])?;
            }
            APPENDS => {
                let entries = self.pop_mark()?;
                self.append(&entries)?;
            }
            LIST | TUPLE => {
                let entries = self.pop_mark()?;
                self.push(Node::List(entries));
            }
            TUPLE1 => self.tuple(1)?,
            TUPLE2 => self.tuple(2)?,
            TUPLE3 => self.tuple(3)?,
            SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, value])?;
            }
            SETITEMS => {
                let entries = self.pop_mark()?;
                self.set_items(&entries)?;
            }
            DICT => {
                let entries = self.pop_mark()?;
                self.push(Node::Dict(Vec::new()));
                self.set_items(&entries)?;
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
            _ => return Err(self.invalid(format!("the operation {operation:#04x}, which plain values do not need,"))),
        }
        Ok(())
    }
}
