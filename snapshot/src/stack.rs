//! Stacks: shared by the events that have the same one, in memory as in a pickle.

use crate::other::Other;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// One frame of a stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// Its file.
    pub filename: String,
    /// The line in it.
    pub line: i64,
    /// Every other key: what `torch.fx` adds.
    #[serde(flatten)]
    pub other: Other,
}

/// A stack: frames, the innermost first. Empty if none was recorded.
#[derive(Clone, Debug)]
pub struct Stack(Arc<[Frame]>);

/// A value of this name is written to a pickle once, and referred to from then on. Its address is what tells it from others, so it
/// has to stay where it is until all is written: a [`Stack`] does as long as any clone of it exists.
pub(crate) const SHARED: &str = "cachalot::Shared";

impl Stack {
    /// The frames, the innermost first.
    pub fn frames(&self) -> &[Frame] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<Frame>> for Stack {
    fn from(frames: Vec<Frame>) -> Self {
        if frames.is_empty() { Self::default() } else { Self(frames.into()) }
    }
}

impl Default for Stack {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl PartialEq for Stack {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Stack {}

impl Hash for Stack {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Serialize for Stack {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() {
            self.0.serialize(serializer)
        } else {
            serializer.serialize_newtype_struct(SHARED, &*self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Stack {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(intern(Self::from(Vec::deserialize(deserializer)?)))
    }
}

thread_local! {
    /// The stacks read so far by this thread's reader, if it is reading.
    static READ: RefCell<Option<HashSet<Stack>>> = const { RefCell::new(None) };
}

/// Reads a snapshot in such a way that equal stacks are one.
pub(crate) fn sharing<T>(read: impl FnOnce() -> T) -> T {
    READ.with_borrow_mut(|stacks| *stacks = Some(HashSet::new()));
    let done = read();
    READ.with_borrow_mut(|stacks| *stacks = None);
    done
}

fn intern(stack: Stack) -> Stack {
    READ.with_borrow_mut(|stacks| {
        let Some(stacks) = stacks else { return stack };
        if let Some(known) = stacks.get(&stack) {
            return known.clone();
        }
        stacks.insert(stack.clone());
        stack
    })
}
