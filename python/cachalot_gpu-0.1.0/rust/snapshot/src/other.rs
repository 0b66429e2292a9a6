//! Keys of a snapshot without a field in the model.

use serde_json::{Map, Value};

/// Unknown keys with their values.
pub type Other = Map<String, Value>;
