//! Reads the modules of a crate: definitions, `use` names, and paths.

use super::paths::{self, Named, Names};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the text of a file of the crate, or `None` if the file does not exist.
pub(crate) type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Path of a module: its names from the crate root on.
pub(crate) type Module = Vec<String>;

/// Contents of a module, without tests.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The module whose file contains the text: the module itself, or the parent of an inline
    /// module.
    pub(crate) file: Module,
    /// Names defined in the module.
    pub(crate) defined: BTreeSet<String>,
    /// The names of types and traits among them.
    pub(crate) types: BTreeSet<String>,
    /// Names imported by a `use`, and whether each is visible outside.
    pub(crate) named: Vec<(Named, bool)>,
    /// Paths in the code.
    pub(crate) paths: Vec<Names>,
}

/// The modules of a crate by path. The root has the empty path.
pub(crate) type Modules = BTreeMap<Module, Contents>;

/// Reads a crate with the root `lib.rs`, or else `main.rs`.
///
/// # Panics
/// If both roots are missing, a file is missing, or a file is not valid Rust.
pub(crate) fn read(read: Read<'_>) -> Modules {
    let root = read("lib.rs").or_else(|| read("main.rs")).expect("a crate has lib.rs or main.rs");
    let mut modules = Modules::new();
    add_file(&mut modules, read, &Module::new(), &root);
    modules
}

fn add_file(modules: &mut Modules, read: Read<'_>, module: &Module, text: &str) {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", module.join("/")));
    add(modules, read, module.clone(), module, file.items);
}

fn add(modules: &mut Modules, read: Read<'_>, module: Module, file: &Module, items: Vec<syn::Item>) {
    let mut contents = Contents { file: file.clone(), ..Contents::default() };
    for item in items {
        match item {
            syn::Item::Mod(inner) if is_test(&inner.attrs) => {}
            syn::Item::Mod(inner) => {
                let mut path = module.clone();
                path.push(inner.ident.to_string());
                if let Some((_, items)) = inner.content {
                    add(modules, read, path, file, items);
                } else {
                    let (alone, folder) = (path.join("/") + ".rs", path.join("/") + "/mod.rs");
                    let text = read(&alone).or_else(|| read(&folder));
                    add_file(modules, read, &path, &text.unwrap_or_else(|| panic!("{alone} is missing")));
                }
            }
            syn::Item::Use(item) if !is_test(&item.attrs) => {
                let is_public = !matches!(item.vis, syn::Visibility::Inherited);
                contents.named.extend(paths::tree(&item.tree).into_iter().map(|named| (named, is_public)));
            }
            item => {
                if !attributes(&item).is_some_and(is_test) {
                    contents.defined.extend(name(&item));
                    contents.types.extend(name(&item).filter(|_| is_type(&item)));
                    contents.paths.extend(paths::paths(item.to_token_stream()));
                }
            }
        }
    }
    modules.insert(module, contents);
}

/// Returns whether an item exists only in tests.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| paths::is_for_tests(&attribute.meta.to_token_stream()))
}

fn attributes(item: &syn::Item) -> Option<&[syn::Attribute]> {
    Some(match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// Returns whether an item defines a type or a trait.
fn is_type(item: &syn::Item) -> bool {
    use syn::Item::{Enum, Struct, Trait, Type, Union};
    matches!(item, Enum(_) | Struct(_) | Trait(_) | Type(_) | Union(_))
}

/// Returns the name that an item defines.
fn name(item: &syn::Item) -> Option<String> {
    Some(
        match item {
            syn::Item::Const(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Fn(item) => &item.sig.ident,
            syn::Item::Macro(item) => item.ident.as_ref()?,
            syn::Item::Static(item) => &item.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Union(item) => &item.ident,
            _ => return None,
        }
        .to_string(),
    )
}
