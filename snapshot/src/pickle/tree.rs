//! Values of a pickle, with sharing, and a serde deserializer over the values.

use super::error::Error;
use super::limits::{MOST_VALUES_PER_BYTE, SOME_VALUES};
use crate::harvest;
use crate::lenient::HARVESTED;
use crate::shared::SHARED;
use rustc_hash::FxHashMap;
use serde::de::value::U32Deserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use std::cell::Cell;

/// Greatest depth of nesting. A snapshot has 6 levels. A list that contains itself has no end.
const MOST_LEVELS: u32 = 64;

/// Every additional `VALUE_BYTES` bytes of a text count as a value.
const VALUE_BYTES: usize = 32;

/// A value: a small value directly, a larger value by the number of the node.
#[derive(Clone, Copy)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Node(u32),
}

/// A large or rare value. A snapshot has millions of nodes, so a node takes only 16 bytes.
pub(super) enum Node {
    /// The number of the text.
    Text(u32),
    Bytes(Box<[u8]>),
    /// A number beyond 64 bits.
    Long(Box<i128>),
    /// A small value with a reference in the pickle.
    Small(Value),
    /// A list or a tuple.
    #[expect(clippy::box_collection, reason = "a vector is larger than other nodes")]
    List(Box<Vec<Value>>),
    #[expect(clippy::box_collection, reason = "a vector is larger than other nodes")]
    Dict(Box<Vec<(Value, Value)>>),
    /// A complete list, equal to the list of the given node.
    Same(u32),
    /// A dictionary that became an event with the given number.
    Event(u32),
}

/// All values of a pickle.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The texts, each once.
    texts: Vec<Box<str>>,
    /// The node of each text.
    text_nodes: FxHashMap<Box<str>, u32>,
    /// The nodes of complete lists, by the nodes of the entries.
    lists: FxHashMap<Box<[u32]>, u32>,
    /// The nodes of the list that was looked for last: a buffer that is used again.
    latest: Vec<u32>,
    /// The texts `action` and `frames`.
    action: u32,
    frames: u32,
    /// Most values that may be read.
    most: u64,
    /// Number of values read so far.
    used: Cell<u64>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            texts: Vec::new(),
            text_nodes: FxHashMap::default(),
            lists: FxHashMap::default(),
            latest: Vec::new(),
            action: 0,
            frames: 0,
            most: SOME_VALUES,
            used: Cell::new(0),
        };
        tree.action = tree.text_node("action");
        tree.frames = tree.text_node("frames");
        tree
    }
}

impl Tree {
    /// Sets the limit on values for a pickle of `bytes` bytes.
    pub(super) fn allow(&mut self, bytes: usize) {
        self.most = (bytes as u64).saturating_mul(MOST_VALUES_PER_BYTE).max(SOME_VALUES);
    }

    pub(super) fn add(&mut self, node: Node) -> Value {
        self.nodes.push(node);
        Value::Node(self.nodes.len() as u32 - 1)
    }

    pub(super) fn replace(&mut self, value: Value, node: Node) {
        if let Value::Node(at) = value {
            self.nodes[at as usize] = node;
        }
    }

    /// Returns the value of a text. Equal texts share a node.
    pub(super) fn text(&mut self, text: &str) -> Value {
        Value::Node(self.text_node(text))
    }

    fn text_node(&mut self, text: &str) -> u32 {
        if let Some(&node) = self.text_nodes.get(text) {
            return node;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push(Node::Text(self.texts.len() as u32));
        self.texts.push(text.into());
        self.text_nodes.insert(text.into(), node);
        node
    }

    /// Returns the number of a value's node. A small value gets a node here.
    pub(super) fn node_of(&mut self, value: Value) -> u32 {
        match value {
            Value::Node(at) => at,
            small => {
                self.nodes.push(Node::Small(small));
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// The small value that the pickle refers to by a node, or any other value as it is.
    fn resolve(&self, value: Value) -> Value {
        let Value::Node(at) = value else { return value };
        if let Node::Small(small) = self.nodes[at as usize] { small } else { value }
    }

    pub(super) fn list_mut(&mut self, value: Value) -> Option<&mut Vec<Value>> {
        let Value::Node(at) = value else { return None };
        if let Node::List(list) = &mut self.nodes[at as usize] { Some(list) } else { None }
    }

    pub(super) fn dict_mut(&mut self, value: Value) -> Option<&mut Vec<(Value, Value)>> {
        let Value::Node(at) = value else { return None };
        if let Node::Dict(dict) = &mut self.nodes[at as usize] { Some(dict) } else { None }
    }

    /// Returns whether a dictionary has an action and so is an event. Equal lists of frames become
    /// one list.
    pub(super) fn prepare_event(&mut self, dict: Value) -> bool {
        let (action, frames) = (self.action, self.frames);
        let Some(dict) = self.dict_mut(dict) else { return false };
        let find = |wanted| dict.iter().find(|(key, _)| matches!(key, Value::Node(key) if *key == wanted));
        let (is_event, frames) = (find(action).is_some(), find(frames).map(|(_, frames)| *frames));
        if let Some(Value::Node(frames)) = frames.filter(|_| is_event) {
            self.share(frames);
        }
        is_event
    }

    /// Replaces a list by a reference to an earlier list with the same nodes, if any.
    fn share(&mut self, list: u32) {
        let Node::List(entries) = &self.nodes[list as usize] else { return };
        self.latest.clear();
        for entry in &**entries {
            let Value::Node(node) = entry else { return };
            self.latest.push(*node);
        }
        match self.lists.get(&*self.latest) {
            Some(&same) if same != list => self.nodes[list as usize] = Node::Same(same),
            Some(_) => {}
            None => _ = self.lists.insert(self.latest.as_slice().into(), list),
        }
    }

    /// Runs `read`. After a failure restores the count of values.
    pub(super) fn counted<T>(&self, read: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let before = self.used.get();
        let done = read(self);
        if done.is_err() {
            self.used.set(before);
        }
        done
    }

    /// Counts a value, and the bytes of the value's text.
    fn count(&self, bytes: usize) -> Result<(), Error> {
        let used = self.used.get() + 1 + (bytes / VALUE_BYTES) as u64;
        self.used.set(used);
        if used > self.most { Err(Error::Expands(self.most)) } else { Ok(()) }
    }
}

/// A position in the tree.
#[derive(Clone, Copy)]
pub(super) struct At<'t> {
    tree: &'t Tree,
    value: Value,
    level: u32,
}

impl<'t> At<'t> {
    pub(super) fn new(tree: &'t Tree, value: Value) -> Self {
        Self { tree, value: tree.resolve(value), level: 0 }
    }

    /// Returns the node and the node's number. A repeated list resolves to the first equal list.
    fn node(self) -> Option<(u32, &'t Node)> {
        let Value::Node(at) = self.value else { return None };
        match &self.tree.nodes[at as usize] {
            Node::Same(first) => Some((*first, &self.tree.nodes[*first as usize])),
            node => Some((at, node)),
        }
    }

    /// Returns whether the value is a list or a tuple.
    pub(super) fn is_list(self) -> bool {
        matches!(self.node(), Some((_, Node::List(_))))
    }

    /// Returns the snapshots in a list, or in the values of a dictionary, with the number or the
    /// key of each. Empty for any other value, so for a snapshot.
    pub(super) fn snapshots(self) -> Vec<(String, Self)> {
        let named: Vec<(String, Value)> = match self.node() {
            Some((_, Node::List(list))) => {
                (0..).zip(list.iter()).map(|(at, &value): (u64, _)| (at.to_string(), value)).collect()
            }
            Some((_, Node::Dict(dict))) if !self.is_snapshot() => {
                (0..).zip(dict.iter()).map(|(at, &(key, value))| (self.below(key).name(at), value)).collect()
            }
            _ => Vec::new(),
        };
        named.into_iter().map(|(name, value)| (name, self.below(value))).filter(|(_, at)| at.is_snapshot()).collect()
    }

    /// Returns whether the value has the key of a snapshot's segments.
    fn is_snapshot(self) -> bool {
        let Some((_, Node::Dict(dict))) = self.node() else { return false };
        dict.iter().any(|&(key, _)| self.below(key).text() == Some("segments"))
    }

    fn text(self) -> Option<&'t str> {
        let Some((_, Node::Text(text))) = self.node() else { return None };
        Some(&self.tree.texts[*text as usize])
    }

    /// Returns a key as a name: a number or a text, and its position for any other key.
    fn name(self, at: u64) -> String {
        match (self.value, self.text()) {
            (Value::Int(number), _) => number.to_string(),
            (_, Some(text)) => text.to_owned(),
            _ => at.to_string(),
        }
    }

    /// Returns the length of a text or of bytes, and 0 for any other value.
    fn text_bytes(self) -> usize {
        match self.node() {
            Some((_, Node::Text(text))) => self.tree.texts[*text as usize].len(),
            Some((_, Node::Bytes(bytes))) => bytes.len(),
            _ => 0,
        }
    }

    /// Returns the position of a value one level down.
    fn below(self, value: Value) -> Self {
        Self { value: self.tree.resolve(value), level: self.level + 1, ..self }
    }
}

impl<'t: 'de, 'de> Deserializer<'de> for At<'t> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.level > MOST_LEVELS {
            return Err(Error::Unexpected(format!("values are nested more than {MOST_LEVELS} deep")));
        }
        self.tree.count(self.text_bytes())?;
        let Some((_, node)) = self.node() else {
            return match self.value {
                Value::Bool(value) => visitor.visit_bool(value),
                Value::Int(value) => match u64::try_from(value) {
                    Ok(value) => visitor.visit_u64(value),
                    Err(_) => visitor.visit_i64(value),
                },
                Value::Float(value) => visitor.visit_f64(value),
                Value::None | Value::Node(_) => visitor.visit_unit(),
            };
        };
        match node {
            Node::Text(text) => visitor.visit_str(&self.tree.texts[*text as usize]),
            Node::Bytes(bytes) => visitor.visit_bytes(bytes),
            Node::Long(value) => match u64::try_from(**value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i128(**value),
            },
            Node::List(list) => visitor.visit_seq(Entries { of: self, left: list.iter() }),
            Node::Dict(dict) => visitor.visit_map(Pairs { of: self, left: dict.iter(), value: Value::None }),
            Node::Event(number) => {
                let event = harvest::expand(*number);
                let event = event.ok_or_else(|| Error::Unexpected("an event cannot stand here".to_owned()))?;
                event.deserialize_any(visitor).map_err(|error| Error::Unexpected(error.to_string()))
            }
            Node::Small(_) | Node::Same(_) => {
                Err(Error::Unexpected("a value stands for another one that does as well".to_owned()))
            }
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
        match self.node() {
            Some((number, _)) if name == SHARED => {
                self.tree.count(0)?;
                visitor.visit_map(NumberedValue { number: Some(number), value: self })
            }
            Some((_, Node::Event(number))) if name == HARVESTED => visitor.visit_u32(*number),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    /// Leaves the value out, with all values below.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

struct Entries<'t> {
    of: At<'t>,
    left: std::slice::Iter<'t, Value>,
}

impl<'t: 'de, 'de> SeqAccess<'de> for Entries<'t> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.left.next().map(|&value| seed.deserialize(self.of.below(value))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

struct Pairs<'t> {
    of: At<'t>,
    left: std::slice::Iter<'t, (Value, Value)>,
    /// The value of the latest key.
    value: Value,
}

impl<'t: 'de, 'de> MapAccess<'de> for Pairs<'t> {
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

/// A shared value with a number, in the form described at [`SHARED`].
struct NumberedValue<'t> {
    number: Option<u32>,
    value: At<'t>,
}

impl<'t: 'de, 'de> MapAccess<'de> for NumberedValue<'t> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let number = |number: u32| -> U32Deserializer<Error> { number.into_deserializer() };
        self.number.take().map(|own| seed.deserialize(number(own))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value)
    }
}
