//! Checks that operations of the core's arena stay with the part that they need.
//!
//! `OnDevice` and `Arena` see every part of a device. A request and a free need most of them, and
//! are methods of these two types. Whatever else is a method of them could touch anything, and a
//! reader has to look for what it touches.

use super::rust_files::{below, name_of_type};
use std::collections::BTreeMap;

/// The types that see every part.
const WHOLE: [&str; 2] = ["OnDevice", "Arena"];

/// The files that add methods to them freely.
const FREE: [&str; 4] = ["mod.rs", "ladder.rs", "malloc.rs", "free.rs"];

/// The other files that do, with their numbers of methods. The list only becomes shorter, and its
/// numbers lower.
const LISTED: &[(&str, usize)] = &[
    ("checks.rs", 1),
    ("compact.rs", 5),
    ("forecast.rs", 4),
    ("give/caches.rs", 11),
    ("give/named.rs", 6),
    ("give/take.rs", 1),
    ("guarding.rs", 7),
    ("hosted/old_form.rs", 3),
    ("hosted/restore.rs", 4),
    ("idle/give.rs", 2),
    ("idle/mod.rs", 1),
    ("invariants.rs", 1),
    ("obtain.rs", 10),
    ("oom.rs", 4),
    ("paging/guarded.rs", 2),
    ("paging/ranges/mod.rs", 5),
    ("request.rs", 1),
    ("settings.rs", 2),
    ("tenants.rs", 10),
    ("tuning.rs", 3),
    ("vacate.rs", 6),
];

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
fn methods_of_other_types_and_of_traits_do_not_count() {
    let source = "impl<'a, P: Platform> OnDevice<'a, P> { fn one(self) {} const A: u8 = 1; }
        impl<P: Platform> Arena<P> { fn two(&self) {} fn three(&self) {} }
        impl<P: Platform> Heaps<P> { fn four(&self) {} }
        impl<P: Platform> Deref for OnDevice<'_, P> { fn deref(&self) {} }";
    assert_eq!(methods_in(source), 3);
}
