//! Which code is part of a crate under test: the conditions in `cfg` attributes.

use std::collections::HashSet;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Lit, Meta, Token};

/// The features that are on. Code for tests alone and for models of threads is not changed.
pub(crate) struct Conditions {
    pub(crate) features: HashSet<String>,
}

impl Conditions {
    /// Returns whether an item with `attributes` is in the crate, and not a test.
    pub(crate) fn hold(&self, attributes: &[Attribute]) -> bool {
        attributes.iter().all(|attribute| {
            if attribute.path().is_ident("test") {
                return false;
            }
            if !attribute.path().is_ident("cfg") {
                return true;
            }
            attribute.parse_args::<Meta>().is_ok_and(|condition| self.holds(&condition))
        })
    }

    fn holds(&self, condition: &Meta) -> bool {
        match condition {
            Meta::Path(path) => !["test", "loom", "doc", "miri", "windows"].iter().any(|name| path.is_ident(name)),
            Meta::List(list) => {
                let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
                let Ok(parts) = parts else { return true };
                let mut parts = parts.iter().map(|part| self.holds(part));
                if list.path.is_ident("not") {
                    !parts.any(|holds| holds)
                } else if list.path.is_ident("any") {
                    parts.any(|holds| holds)
                } else {
                    parts.all(|holds| holds)
                }
            }
            Meta::NameValue(pair) => {
                let Expr::Lit(value) = &pair.value else { return true };
                let Lit::Str(value) = &value.lit else { return true };
                let value = value.value();
                if pair.path.is_ident("feature") {
                    self.features.contains(&value)
                } else if pair.path.is_ident("target_os") {
                    value == "linux"
                } else if pair.path.is_ident("target_arch") {
                    value == "x86_64"
                } else {
                    true
                }
            }
        }
    }
}
