//! What was read of a pickle: values that may be shared, as serde reads them.

use super::error::Error;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// How deep values may be nested: a snapshot's are 6 deep, and one that contains itself is endless.
const MOST_LEVELS: u32 = 64;

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
#[derive(Default)]
pub(super) struct Tree<'p>(Vec<Node<'p>>);

impl<'p> Tree<'p> {
    pub(super) fn add(&mut self, node: Node<'p>) -> Value {
        self.0.push(node);
        Value::Node(self.0.len() as u32 - 1)
    }

    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node<'p>> {
        if let Value::Node(at) = value { self.0.get_mut(at as usize) } else { None }
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
        match self.value {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => match (u64::try_from(value), i64::try_from(value)) {
                (Ok(value), _) => visitor.visit_u64(value),
                (_, Ok(value)) => visitor.visit_i64(value),
                _ => visitor.visit_i128(value),
            },
            Value::Float(value) => visitor.visit_f64(value),
            Value::Node(at) => match &self.tree.0[at as usize] {
                Node::Text(text) => visitor.visit_str(text),
                Node::Bytes(bytes) => visitor.visit_bytes(bytes),
                Node::List(list) => visitor.visit_seq(Entries { of: self, left: list.iter() }),
                Node::Dict(dict) => visitor.visit_map(Pairs { of: self, left: dict.iter(), value: Value::None }),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.value, Value::None) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
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
