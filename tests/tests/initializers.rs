//! Generates the macros of `cachalot.h` that initialize a structure, from the structures in `ffi/src/c/abi.rs`.
//!
//! A macro sets the size, and 0 in every other field. A structure has a macro iff programs pass the structure to the
//! library, so the library reads the size: iff the structure is `Versioned`.
//!
//! To rewrite the macros: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house initializers`.

use super::rust_files;
use cachalot_tests::generated;
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/cachalot.h");
const BEGIN: &str =
    "/* Initialisers: the size, and 0 for every other field. Generated: see tests/tests/initializers.rs. */\n";
const END: &str = "\n/* ---- The library ---- */";

/// Maximum number of columns of a line in the header.
const COLUMNS: usize = 120;

/// Returns the items of the Rust files at or below a path of the project.
fn items_of(path: &str) -> impl Iterator<Item = syn::Item> {
    rust_files::below(path).flat_map(|(_, text)| syn::parse_file(&text).expect("Rust").items)
}

/// Returns the names of the structures whose size the library reads.
fn versioned() -> BTreeSet<String> {
    let impls = items_of("ffi/src").filter_map(|item| match item {
        syn::Item::Impl(of) if of.trait_.as_ref().is_some_and(|(path, _)| path.is_ident("Versioned")) => {
            Some(of.self_ty.to_token_stream().to_string())
        }
        _ => None,
    });
    impls.collect()
}

/// The fields of every structure, and the structures in the order of the source.
struct Structures {
    fields: BTreeMap<String, Vec<syn::Field>>,
    order: Vec<String>,
}

impl Structures {
    fn of_library() -> Self {
        let (mut fields, mut order) = (BTreeMap::new(), Vec::new());
        for item in items_of("ffi/src/c/abi.rs") {
            let syn::Item::Struct(of) = item else { continue };
            order.push(of.ident.to_string());
            fields.insert(of.ident.to_string(), of.fields.into_iter().collect());
        }
        Self { fields, order }
    }

    /// Returns the C expression that is 0 in a field of a type.
    fn zero(&self, ty: &syn::Type) -> String {
        if matches!(ty, syn::Type::Ptr(_)) {
            return "NULL".to_owned();
        }
        match self.fields.get(&ty.to_token_stream().to_string()) {
            Some(fields) => {
                format!("{{{}}}", fields.iter().map(|field| self.zero(&field.ty)).collect::<Vec<_>>().join(", "))
            }
            None => "0".to_owned(),
        }
    }

    /// Builds the macro of a structure, with the comment.
    fn initializer(&self, name: &str) -> String {
        let fields = &self.fields[name];
        assert_eq!(fields[0].ident.as_ref().expect("a name"), "struct_size", "{name} begins with the size");
        let zeros = fields[1..].iter().map(|field| self.zero(&field.ty));
        let values: Vec<_> = std::iter::once(format!("sizeof({name})")).chain(zeros).collect();
        let head = format!("#define {}_INIT", name.to_uppercase());
        let line = format!("{head} {{{}}}", values.join(", "));
        let lines = if line.len() <= COLUMNS { line } else { continued(&head, &values) };
        format!("/** Initialises {name}. */\n{lines}\n")
    }
}

/// Lays a macro out on several lines, with a backslash in the last column of every line but the last.
fn continued(head: &str, values: &[String]) -> String {
    let mut lines = vec![head.to_owned(), "  {".to_owned()];
    for (at, value) in values.iter().enumerate() {
        let value = value.clone() + if at + 1 == values.len() { "}" } else { "," };
        let line = lines.last_mut().expect("there are two at least");
        let space = if line.ends_with('{') { "" } else { " " };
        if line.len() + space.len() + value.len() < COLUMNS {
            *line += &(space.to_owned() + &value);
        } else {
            lines.push("   ".to_owned() + &value);
        }
    }
    let last = lines.pop().expect("there are two at least");
    lines.iter().fold(String::new(), |text, line| text + &format!("{line:<width$}\\\n", width = COLUMNS - 1)) + &last
}

#[test]
fn the_header_initializes_every_structure_that_programs_pass() {
    let (structures, versioned) = (Structures::of_library(), versioned());
    let known: BTreeSet<_> = structures.order.iter().cloned().collect();
    assert!(!versioned.is_empty() && versioned.is_subset(&known), "{versioned:?}");
    let of_programs = structures.order.iter().filter(|name| versioned.contains(*name));
    let macros: String = of_programs.map(|name| structures.initializer(name)).collect();
    generated::assert_part_current(Path::new(HEADER), BEGIN, END, &macros);
}
