//! The modules of a crate: what each defines, what it names otherwise, and which paths it has.

use crate::paths::{self, Named, Names};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};

/// The text of a file of the crate, or `None` if there is no such file.
pub(crate) type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A module: its names from the crate's root on.
pub(crate) type Module = Vec<String>;

/// What a module consists of, without its tests.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The module whose file has its text: itself, unless it is written inside of another.
    pub(crate) file: Module,
    /// What it defines.
    pub(crate) defined: BTreeSet<String>,
    /// What it names by a `use`; whether others see that.
    pub(crate) named: Vec<(Named, bool)>,
    /// The paths in its code.
    pub(crate) paths: Vec<Names>,
    /// The methods of each of its `impl` blocks without a trait, as the type's name and their number.
    pub(crate) methods: Vec<(String, usize)>,
}

/// The modules of a crate, from the root, which has no names.
pub(crate) type Modules = BTreeMap<Module, Contents>;

/// Reads a crate whose root is `lib.rs`, or `main.rs` if it has no library.
///
/// # Panics
/// If it has neither, or if a file is missing or is not Rust.
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
                    contents.methods.extend(methods(&item));
                    contents.paths.extend(paths::paths(item.to_token_stream()));
                }
            }
        }
    }
    modules.insert(module, contents);
}

/// Whether an item is for tests only.
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

/// The name of the type of an `impl` block without a trait, and how many methods the block has.
fn methods(item: &syn::Item) -> Option<(String, usize)> {
    let syn::Item::Impl(block) = item else { return None };
    let syn::Type::Path(of) = block.self_ty.as_ref() else { return None };
    let name = of.path.segments.last().filter(|_| block.trait_.is_none())?.ident.to_string();
    Some((name, block.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_))).count()))
}

/// The name that an item defines.
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
