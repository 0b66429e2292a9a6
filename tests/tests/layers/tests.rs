//! Tests of the layer test, on small invented crates.

use super::check::check;
use super::document::{Layers, blocks};
use super::imports::{self, Imports};
use super::paths;
use std::collections::BTreeMap;

/// Finds the imports of a crate with the given files.
fn imports(files: &[(&str, &str)]) -> Imports {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    imports::of(&|file: &str| files.get(file).map(|text| (*text).to_owned()))
}

/// Reads the layers of a block with the given lines.
fn layers(lines: &str) -> Layers {
    let mut blocks = blocks(&format!("```layers made/up\n{lines}\n```\n"));
    blocks.pop().expect("there is a block")
}

const LIB: (&str, &str) = ("lib.rs", "mod high; mod low; mod middle;");

#[test]
fn a_document_has_a_block_for_each_crate() {
    let text = "# Title\n```rust\nnot this\n```\n```layers a/src\nx y  the top\n\nz\ncircle: z/b z/a\n```\nnor this\n";
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let lines = vec![of(&["x", "y"]), of(&["z"])];
    assert_eq!(blocks(text), [Layers { folder: "a/src".to_owned(), lines, circles: vec![of(&["z/a", "z/b"])] }]);
}

#[test]
fn imports_downward_are_right() {
    let files = [
        LIB,
        ("high.rs", "use crate::{low, middle::Thing}; fn f() { low::g(); }"),
        ("middle.rs", "use super::low; pub struct Thing(low::Number);"),
        ("low.rs", "pub type Number = core::ffi::c_int;"),
    ];
    assert!(check(&layers("high\nmiddle\nlow"), &imports(&files)).is_empty());
}

#[test]
fn an_upward_import_is_caught_in_whatever_form() {
    let forms = [
        "use crate::high::Thing;",
        "use super::high;",
        "use crate::{high as other, low};",
        "pub use crate::high::Thing;",
        "fn f() { crate::high::f(); }",
        "fn f() { use super::high::*; }",
        "fn f() { println!(\"{}\", super::high::NUMBER); }",
        "mod inner { use super::super::high; }",
    ];
    for form in forms {
        let files = [LIB, ("high.rs", ""), ("middle.rs", ""), ("low.rs", form)];
        let wrong = check(&layers("high\nmiddle\nlow"), &imports(&files));
        assert!(wrong.len() == 1 && wrong[0].starts_with("low imports high upward: "), "{form}: {wrong:?}");
    }
}

#[test]
fn an_import_upward_through_the_root_is_caught() {
    let files =
        [("lib.rs", "mod high; mod low; pub use high::Thing; pub struct Own;"), ("high.rs", "pub struct Thing;")];
    let through = |text| check(&layers("high\nlow"), &imports(&[files[0], files[1], ("low.rs", text)]));
    assert_eq!(through("use crate::Thing;"), ["low imports high upward: crate::Thing"]);
    assert_eq!(through("use crate::Own;")[0], "low imports the crate's root upward: crate::Own");
}

#[test]
fn a_name_is_looked_for_where_it_is_defined() {
    let folder = |text| {
        [
            LIB,
            ("high/mod.rs", text),
            ("high/part.rs", "pub struct Thing;"),
            ("middle.rs", "use crate::high::Thing;"),
            ("low.rs", ""),
        ]
    };
    for text in
        ["mod part; pub use part::Thing;", "mod part; pub use part::*;", "pub mod part; use self::part::{Thing};"]
    {
        let imports = imports(&folder(text));
        let arrow = ("middle".to_owned(), "high/part".to_owned());
        assert!(imports.arrows.contains_key(&arrow), "{text}: {:?}", imports.arrows);
    }
}

#[test]
fn modules_of_one_layer_do_not_import_each_other() {
    let files = [LIB, ("high.rs", "use crate::middle;"), ("middle.rs", ""), ("low.rs", "")];
    assert_eq!(check(&layers("high middle\nlow"), &imports(&files)), ["high imports middle sideways: crate::middle"]);
}

const CIRCLE: &str = "a circle: a/x a/y a/z (a/x by super::y::Y, a/y by super::z::Z, a/z by crate::a::X)";

#[test]
fn a_circle_of_files_in_one_folder_is_caught_unless_it_is_allowed() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod x; mod y; mod z; pub use x::X;"),
        ("a/x.rs", "use super::y::Y; pub struct X(Y);"),
        ("a/y.rs", "use super::z::Z; pub struct Y(Z);"),
        ("a/z.rs", "use crate::a::X; pub struct Z(Box<X>);"),
    ];
    let imports = imports(&files);
    assert_eq!(check(&layers("a"), &imports), [CIRCLE]);
    assert!(check(&layers("a\ncircle: a/z a/x a/y"), &imports).is_empty());
    assert_eq!(check(&layers("a\ncircle: a/x a/y"), &imports), [CIRCLE, "no such circle any more: a/x a/y"]);
}

#[test]
fn a_circle_of_two_modules_cannot_be_allowed() {
    let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
    let wrong = check(&layers("a\nb\ncircle: a b"), &imports(&files));
    assert_eq!(wrong, ["b imports a upward: crate::a", "a circle of two modules: a b"]);
}

#[test]
fn a_folder_and_its_files_may_use_each_other() {
    let files = [
        ("lib.rs", "mod a; mod ab;"),
        ("a/mod.rs", "mod x; mod y; pub struct A; fn f() { x::g(); }"),
        ("a/x.rs", "use super::A; pub fn g() -> A { A }"),
        ("a/y.rs", "use super::A;"),
        ("ab.rs", "use crate::a::A;"),
    ];
    assert!(check(&layers("ab\na"), &imports(&files)).is_empty());
}

#[test]
fn modules_and_layers_name_the_same() {
    let files = [LIB, ("high.rs", ""), ("middle.rs", ""), ("low.rs", "")];
    let wrong = check(&layers("high\nlow low\nother"), &imports(&files));
    assert_eq!(wrong, ["low is listed twice", "middle is in no layer", "other is listed, and is no module"]);
}

#[test]
fn modules_of_a_folder_can_have_layers_of_their_own() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod x; mod y; mod z;"),
        ("a/x.rs", "use crate::a::y::Y; use crate::b::B;"),
        ("a/y/mod.rs", "mod inner; pub struct Y; use super::x::X;"),
        ("a/y/inner.rs", "use super::Y; use crate::a::z;"),
        ("a/z.rs", ""),
        ("b.rs", "pub struct B;"),
    ];
    let wrong = check(&layers("a\na/x\na/y\nb"), &imports(&files));
    let of = |begin: &str| wrong.iter().filter(|line| line.starts_with(begin)).count();
    assert_eq!((wrong.len(), of("a/y imports a/x upward: "), of("a/z is in no layer"), of("a circle: ")), (3, 1, 1, 1));
    assert_eq!(check(&layers("a\na/y\na/x a/z\nb"), &imports(&files)).len(), 2, "{wrong:?}");
}

#[test]
fn tests_may_import_what_they_like() {
    let tests = "#[cfg(test)] mod tests { use crate::high; } #[cfg(all(test, not(loom)))] use crate::high; \
                 fn f() { #[cfg(test)] crate::high::g(); } impl L { #[cfg(test)] fn h() { crate::high::g() } } \
                 #[cfg(not(test))] use crate::low::L;";
    let files = [LIB, ("high.rs", ""), ("middle.rs", tests), ("low.rs", "pub struct L;")];
    let imports = imports(&files);
    assert!(check(&layers("high\nmiddle\nlow"), &imports).is_empty());
    assert!(imports.arrows.contains_key(&("middle".to_owned(), "low".to_owned())));
}

#[test]
fn paths_are_read_from_tokens() {
    let tokens = "use a::{self, b as c, d::{e, *}}; x::y::<z::Z>(1, p::q); lone".parse().expect("tokens");
    let found: Vec<String> = paths::paths(tokens).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a::b", "a::d::e", "a::d::*", "x::y", "z::Z", "p::q"]);
}
