//! Checks that operations of the core's arena stay with the part that they need.
//!
//! `OnDevice` and `Arena` see every part of a device. A request and a free need most of them, and
//! are methods of these two types. Whatever else is a method of them could touch anything, and a
//! reader has to look for what it touches. So could a method of a type that holds one of the two,
//! and a function that takes one.

use super::sources::{below, name_of_type};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// The types that see every part.
const WHOLE: [&str; 2] = ["OnDevice", "Arena"];

/// The files that add methods to them freely.
const FREE: [&str; 4] = ["mod.rs", "ladder.rs", "malloc.rs", "free.rs"];

/// The other files that do, with their numbers of methods. The list only becomes shorter, and its
/// numbers lower.
const LISTED: &[(&str, usize)] = &[
    ("checks.rs", 1),
    ("forecast.rs", 3),
    ("hosted/restore.rs", 4),
    ("invariants.rs", 1),
    ("obtain.rs", 8),
    ("oom.rs", 4),
    ("paging/ranges/mod.rs", 1),
];

/// The types with a field of a type that sees every part. The list only becomes shorter.
const HOLDERS: &[&str] = &["Checked", "Ladder", "OnDevice"];

/// The files of the memory on pages with functions that take a type that sees every part: those
/// that make a view of the parts that they need, and those that need a request, a free or the whole
/// cache. With the numbers of these functions, which only become lower.
const TAKERS: &[(&str, usize)] = &[
    ("extents.rs", 4),
    ("parking/loans.rs", 1),
    ("parking/mod.rs", 1),
    ("parking/remaining.rs", 1),
    ("parking/sleep.rs", 1),
    ("parking/wake.rs", 4),
    ("ranges/commit.rs", 2),
    ("ranges/mod.rs", 1),
    ("stitched/lend.rs", 1),
    ("stitched/mod.rs", 3),
    ("stitched/pending.rs", 1),
];

/// What a source has to do with the types that see every part.
#[derive(Default)]
struct Seen {
    /// The types with a field of such a type.
    holders: BTreeSet<String>,
    /// The number of functions with a parameter of such a type.
    takers: usize,
    /// Whether the part visited last names such a type.
    found: bool,
}

impl Seen {
    /// Returns what a source has to do with the types.
    fn in_source(source: &str) -> Self {
        let mut seen = Self::default();
        seen.visit_file(&syn::parse_file(source).expect("the core compiles"));
        seen
    }

    /// Returns whether a type names one of the types.
    fn is_in(&mut self, of: &syn::Type) -> bool {
        self.found = false;
        self.visit_type(of);
        self.found
    }
}

impl<'s> Visit<'s> for Seen {
    fn visit_path_segment(&mut self, segment: &'s syn::PathSegment) {
        self.found |= WHOLE.iter().any(|&name| segment.ident == name);
        visit::visit_path_segment(self, segment);
    }

    fn visit_item_struct(&mut self, item: &'s syn::ItemStruct) {
        if item.fields.iter().any(|field| self.is_in(&field.ty)) {
            self.holders.insert(item.ident.to_string());
        }
    }

    fn visit_signature(&mut self, signature: &'s syn::Signature) {
        let takes = |input: &syn::FnArg| match input {
            syn::FnArg::Typed(input) => self.is_in(&input.ty),
            syn::FnArg::Receiver(_) => false,
        };
        self.takers += usize::from(signature.inputs.iter().any(takes));
    }
}

/// Returns how many methods a source adds to the types that see every part.
fn methods_in(source: &str) -> usize {
    let file = syn::parse_file(source).expect("the core compiles");
    let of_whole = |item: &syn::Item| match item {
        syn::Item::Impl(found) if found.trait_.is_none() => {
            let is_whole = name_of_type(&found.self_ty).is_some_and(|name| WHOLE.contains(&name.as_str()));
            let methods = found.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_))).count();
            if is_whole { methods } else { 0 }
        }
        _ => 0,
    };
    file.items.iter().map(of_whole).sum()
}

#[test]
fn only_requests_and_frees_are_methods_of_the_whole_arena() {
    let mut found = BTreeMap::new();
    for folder in ["core/src/arena", "core/src/allocator"] {
        for (path, text) in below(folder) {
            let path = path.to_str().expect("a name in ASCII").replacen("core/src/arena/", "", 1);
            let methods = methods_in(&text);
            if methods > 0 && !FREE.contains(&path.as_str()) {
                found.insert(path, methods);
            }
        }
    }
    let listed = LISTED.iter().map(|&(path, methods)| (path.to_owned(), methods)).collect();
    assert_eq!(found, listed, "left: what is there; right: what is listed, which only becomes less");
}

#[test]
fn few_types_hold_the_whole_arena() {
    let found: BTreeSet<String> =
        below("core/src/arena").flat_map(|(_, text)| Seen::in_source(&text).holders).collect();
    let listed = HOLDERS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(found, listed, "left: what is there; right: what is listed, which only becomes less");
}

#[test]
fn few_functions_of_the_memory_on_pages_take_the_whole_arena() {
    let folder = "core/src/arena/paging/";
    let found = below(folder).filter_map(|(path, text)| {
        let path = path.to_str().expect("a name in ASCII").replacen(folder, "", 1);
        let takers = Seen::in_source(&text).takers;
        (takers > 0).then_some((path, takers))
    });
    let listed = TAKERS.iter().map(|&(path, takers)| (path.to_owned(), takers)).collect();
    let found: BTreeMap<String, usize> = found.collect();
    assert_eq!(found, listed, "left: what is there; right: what is listed, which only becomes less");
}

#[test]
fn fields_and_parameters_count_whatever_is_around_them() {
    let source = "struct One<'a> { device: Option<OnDevice<'a, P>> } struct Two { heaps: Heaps }
        struct Three<'a>(PhantomData<&'a Arena<P>>);
        impl<'a> One<'a> { fn of(on: OnDevice<'a, P>) -> Self {} fn get(&self) -> Arena<P> {} }
        fn four(arena: &Arena<P>) {} fn five(heaps: &Heaps<P>) {}";
    let seen = Seen::in_source(source);
    assert_eq!(seen.holders, BTreeSet::from(["One".to_owned(), "Three".to_owned()]));
    assert_eq!(seen.takers, 2);
}

#[test]
fn methods_of_other_types_and_of_traits_do_not_count() {
    let source = "impl<'a, P: Platform> OnDevice<'a, P> { fn one(self) {} const A: u8 = 1; }
        impl<P: Platform> Arena<P> { fn two(&self) {} fn three(&self) {} }
        impl<P: Platform> Heaps<P> { fn four(&self) {} }
        impl<P: Platform> Deref for OnDevice<'_, P> { fn deref(&self) {} }";
    assert_eq!(methods_in(source), 3);
}
