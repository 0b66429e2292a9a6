//! Generates the macros of the C headers that initialize a structure, from the structures in
//! `ffi/src/c/abi.rs`.
//!
//! A macro follows its structure. It sets the size, and 0 in every other field. A structure has a
//! macro iff programs pass the structure to the library, so the library reads the size: iff the
//! structure is `Versioned`.
//!
//! To rewrite the macros:
//! `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house initializers`.

use super::sources;
use cachalot_tests::generated;
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");

/// Maximum number of columns of a line in the header.
const COLUMNS: usize = 120;

/// Returns the items of the Rust files at or below a path of the project.
fn items_of(path: &str) -> impl Iterator<Item = syn::Item> {
    sources::below(path).flat_map(|(_, text)| syn::parse_file(&text).expect("Rust").items)
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

/// The fields of every structure.
struct Structures {
    fields: BTreeMap<String, Vec<syn::Field>>,
}

impl Structures {
    fn of_library() -> Self {
        let mut fields = BTreeMap::new();
        for item in items_of("ffi/src/c/abi.rs") {
            let syn::Item::Struct(of) = item else { continue };
            fields.insert(of.ident.to_string(), of.fields.into_iter().collect());
        }
        Self { fields }
    }

    /// Returns the C expression that is 0 in a field of a type.
    fn zero(&self, ty: &syn::Type) -> String {
        if matches!(ty, syn::Type::Ptr(_)) || ty.to_token_stream().to_string() == "cachalot_stream" {
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

/// Lays a macro out on several lines, with a backslash in the last column of every line but the
/// last.
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

/// Returns a header with the macro of each structure behind it, and the names of the structures
/// that have one.
fn with_macros(header: &str, structures: &Structures, versioned: &BTreeSet<String>) -> (String, Vec<String>) {
    let (mut text, mut found) = (String::new(), Vec::new());
    let mut rest = header;
    while let Some(at) = rest.find("\n} cachalot_") {
        let (before, from) = rest.split_at(at + 1);
        let (end, after) = from.split_once('\n').expect("a line ends");
        let name = end.trim_start_matches("} ").trim_end_matches(';');
        text.extend([before, end, "\n"]);
        // A macro that was generated before ends with the paragraph.
        let is_macro = after.starts_with(&format!("/** Initialises {name}. */\n"));
        rest = if is_macro { &after[after.find("\n\n").expect("an empty line follows") + 1..] } else { after };
        if versioned.contains(name) {
            text += &structures.initializer(name);
            found.push(name.to_owned());
        }
    }
    (text + rest, found)
}

#[test]
fn the_headers_initialize_every_structure_that_programs_pass() {
    let (structures, versioned) = (Structures::of_library(), versioned());
    let known: BTreeSet<_> = structures.fields.keys().cloned().collect();
    assert!(!versioned.is_empty() && versioned.is_subset(&known), "{versioned:?}");
    let include = Path::new(INCLUDE);
    let topics = std::fs::read_dir(include.join("cachalot")).expect("there are headers by topic");
    let topics = topics.map(|entry| entry.expect("an entry").path());
    let mut all = BTreeSet::new();
    for path in topics.chain([include.join("cachalot.h")]) {
        let header = std::fs::read_to_string(&path).expect("the header is there");
        let (text, found) = with_macros(&header, &structures, &versioned);
        generated::assert_current(&path, &text);
        all.extend(found);
    }
    assert_eq!(all, versioned, "every structure is in a header");
}

#[test]
fn a_macro_that_is_out_of_date_is_replaced() {
    let structures = Structures::of_library();
    let versioned = BTreeSet::from(["cachalot_park_options".to_owned()]);
    let right = "a\n} cachalot_park_options;\n/** Initialises cachalot_park_options. */\n\
                 #define CACHALOT_PARK_OPTIONS_INIT {sizeof(cachalot_park_options), 0, 0}\n\n} cachalot_pool;\n";
    for stale in [right.to_owned(), right.replace(", 0}", "}"), right.replace("#define ", "#define OLD_")] {
        assert_eq!(with_macros(&stale, &structures, &versioned).0, right);
    }
    let none = "a\n} cachalot_park_options;\n\n} cachalot_pool;\n";
    assert_eq!(
        with_macros(none, &structures, &versioned),
        (right.to_owned(), vec!["cachalot_park_options".to_owned()])
    );
}
