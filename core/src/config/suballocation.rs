//! The table of the policies that a host adds to the core's own.

use crate::suballoc::Suballocation;

/// The policies that a host adds to the core's own, by name.
///
/// They decide which texts can be read, but they are no part of what a text says. So all tables
/// compare equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policies(&'static [Suballocation]);

impl Policies {
    /// No policy besides the core's own.
    pub const NONE: Self = Self(&[]);

    /// Returns a table of these policies.
    #[must_use]
    pub const fn new(rows: &'static [Suballocation]) -> Self {
        Self(rows)
    }

    /// Returns the policies.
    #[must_use]
    pub const fn rows(self) -> &'static [Suballocation] {
        self.0
    }
}

impl PartialEq for Policies {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Policies {}
