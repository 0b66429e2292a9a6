//! Stacks of the program. Events with the same stacks share one stack, in memory and in a pickle.

use crate::lenient;
use crate::other::Other;
use crate::shared::{self, SHARED, Shared};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A frame of a stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
    /// The file of the function.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub filename: String,
    /// The line in the file.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub line: i64,
    /// Unknown keys, for example from `torch.fx`.
    #[serde(flatten)]
    pub other: Other,
}

/// A stack: frames, the innermost first. Empty without a recorded stack.
#[derive(Clone, Debug, Default)]
pub struct Stack(Arc<Box<[Arc<Frame>]>>);

impl Stack {
    /// Returns the frames, the innermost first. Stacks from one pickle share frames.
    pub fn frames(&self) -> &[Arc<Frame>] {
        &self.0
    }

    /// Returns whether the stack has no frames.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<Frame>> for Stack {
    fn from(frames: Vec<Frame>) -> Self {
        frames.into_iter().map(Arc::new).collect()
    }
}

impl FromIterator<Arc<Frame>> for Stack {
    fn from_iter<I: IntoIterator<Item = Arc<Frame>>>(frames: I) -> Self {
        Self(Arc::new(frames.into_iter().collect()))
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
        shared::deserialize(deserializer)
    }
}

impl Shared for Stack {
    type Parts = Vec<SharedFrame>;

    fn of(frames: Self::Parts) -> Self {
        frames.into_iter().map(|frame| frame.0).collect()
    }
}

/// A frame during the reading of a stack.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SharedFrame(Arc<Frame>);

impl<'de> Deserialize<'de> for SharedFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        shared::deserialize(deserializer)
    }
}

impl Shared for SharedFrame {
    type Parts = Frame;

    fn of(frame: Frame) -> Self {
        Self(Arc::new(frame))
    }
}
