//! The keys of a snapshot that this library has no field for.

use serde_json::{Map, Value};

/// Keys that are not known, with what they hold.
pub type Other = Map<String, Value>;
