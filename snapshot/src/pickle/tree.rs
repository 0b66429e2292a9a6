//! What was read of a pickle: values that may be shared, as serde reads them.

use super::error::Error;
use super::limits::{MOST_VALUES_PER_BYTE, SOME_VALUES};
use crate::shared::SHARED;
use serde::de::value::U32Deserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::cell::Cell;

/// How deep values may be nested: a snapshot's are 6 deep, and one that contains itself is endless.
const MOST_LEVELS: u32 = 64;

/// Every further so many bytes of a text count as a value.
const VALUE_BYTES: usize = 32;

/// A value: a small one itself, any other as its place in the tree.
#[derive(Clone, Copy)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Node(u32),
}

/// A value with a length.
pub(super) enum Node<'p> {
    Text(&'p str),
    Bytes(&'p [u8]),
    /// A list or a tuple.
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

/// All of them.
pub(super) struct Tree<'p> {
    nodes: Vec<Node<'p>>,
    /// How many values may be read in all.
    most: u64,
    /// How many of them are left.
    left: Cell<u64>,
}

impl<'p> Tree<'p> {
    /// The values of a pickle of so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let most = (bytes as u64).saturating_mul(MOST_VALUES_PER_BYTE).max(SOME_VALUES);
        Self { nodes: Vec::new(), most, left: Cell::new(most) }
    }

    pub(super) fn add(&mut self, node: Node<'p>) -> Value {
        self.nodes.push(node);
        Value::Node(self.nodes.len() as u32 - 1)
    }

    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node<'p>> {
        if let Value::Node(at) = value { self.nodes.get_mut(at as usize) } else { None }
    }

    /// Counts a value that is read, and the bytes of its text.
    fn count(&self, bytes: usize) -> Result<(), Error> {
        let left = self.left.get().checked_sub(1 + (bytes / VALUE_BYTES) as u64);
        self.left.set(left.ok_or(Error::Expands(self.most))?);
        Ok(())
    }
}

/// A value in the tree.
#[derive(Clone, Copy)]
pub(super) struct At<'t, 'p> {
    tree: &'t Tree<'p>,
    value: Value,
    level: u32,
}

impl<'t, 'p> At<'t, 'p> {
    pub(super) fn new(tree: &'t Tree<'p>, value: Value) -> Self {
        Self { tree, value, level: 0 }
    }

    /// The length of a text or of bytes; 0 of any other value.
    fn text_bytes(self) -> usize {
        let Value::Node(at) = self.value else { return 0 };
        match &self.tree.nodes[at as usize] {
            Node::Text(text) => text.len(),
            Node::Bytes(bytes) => bytes.len(),
            Node::List(_) | Node::Dict(_) => 0,
        }
    }

    /// A value below this one.
    fn below(self, value: Value) -> Self {
        Self { value, level: self.level + 1, ..self }
    }
}

impl<'t: 'de, 'de> Deserializer<'de> for At<'t, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.level > MOST_LEVELS {
            return Err(Error::Unexpected(format!("values are nested more than {MOST_LEVELS} deep")));
        }
        self.tree.count(self.text_bytes())?;
        match self.value {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => match (u64::try_from(value), i64::try_from(value)) {
                (Ok(value), _) => visitor.visit_u64(value),
                (_, Ok(value)) => visitor.visit_i64(value),
                _ => visitor.visit_i128(value),
            },
            Value::Float(value) => visitor.visit_f64(value),
            Value::Node(at) => match &self.tree.nodes[at as usize] {
                Node::Text(text) => visitor.visit_str(text),
                Node::Bytes(bytes) => visitor.visit_bytes(bytes),
                Node::List(list) => visitor.visit_seq(Entries { of: self, left: list.iter() }),
                Node::Dict(dict) => visitor.visit_map(Pairs { of: self, left: dict.iter(), value: Value::None }),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.value, Value::None) {
            self.tree.count(0)?;
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Node(number) if name == SHARED => {
                self.tree.count(0)?;
                visitor.visit_map(Numbered { number: Some(number), value: self })
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

struct Entries<'t, 'p> {
    of: At<'t, 'p>,
    left: std::slice::Iter<'t, Value>,
}

impl<'t: 'de, 'de> SeqAccess<'de> for Entries<'t, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.left.next().map(|&value| seed.deserialize(self.of.below(value))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

struct Pairs<'t, 'p> {
    of: At<'t, 'p>,
    left: std::slice::Iter<'t, (Value, Value)>,
    /// The value of the key that was read last.
    value: Value,
}

impl<'t: 'de, 'de> MapAccess<'de> for Pairs<'t, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(&(key, value)) = self.left.next() else { return Ok(None) };
        self.value = value;
        seed.deserialize(self.of.below(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.of.below(self.value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// A shared value behind its number, as [`SHARED`] says.
struct Numbered<'t, 'p> {
    number: Option<u32>,
    value: At<'t, 'p>,
}

impl<'t: 'de, 'de> MapAccess<'de> for Numbered<'t, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let number = |number: u32| -> U32Deserializer<Error> { number.into_deserializer() };
        self.number.take().map(|own| seed.deserialize(number(own))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value)
    }
}
