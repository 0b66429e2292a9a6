//! Refuses types that hold nothing but a device.
//!
//! Such a type is a second name for [`OnDevice`], and hides from a reader which operation works on
//! what. An operation on a device is a method of `OnDevice`, of `Arena` or of `Mapper`. A type
//! beside them holds something of its own: a target, a turn, memory in hand.

use super::sources::{self, name_of_type};
use syn::visit::{self, Visit};

/// The types that give access to all of a device.
const DEVICES: [&str; 3] = ["OnDevice", "Arena", "Mapper"];

/// The types of a file that hold nothing but a device.
#[derive(Default)]
struct Views(Vec<String>);

impl Visit<'_> for Views {
    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        let names = item.fields.iter().map(|field| name_behind_references(&field.ty).unwrap_or_default());
        let held: Vec<_> = names.filter(|name| name != "PhantomData").collect();
        if matches!(&held[..], [name] if DEVICES.contains(&name.as_str())) {
            self.0.push(item.ident.to_string());
        }
        visit::visit_item_struct(self, item);
    }
}

/// Returns the last name in the path of a type, through references.
fn name_behind_references(of: &syn::Type) -> Option<String> {
    if let syn::Type::Reference(reference) = of { name_behind_references(&reference.elem) } else { name_of_type(of) }
}

fn views_in(source: &str) -> Vec<String> {
    let mut views = Views::default();
    views.visit_file(&syn::parse_file(source).expect("the file is Rust"));
    views.0
}

#[test]
fn no_type_of_the_core_holds_nothing_but_a_device() {
    let files = sources::below("core/src");
    let found: Vec<_> = files
        .flat_map(|(path, text)| views_in(&text).into_iter().map(move |name| format!("{}: {name}", path.display())))
        .collect();
    assert!(found.is_empty(), "these types hold nothing but a device:\n{}", found.join("\n"));
}

#[test]
fn a_second_name_for_a_device_is_found_and_a_type_with_a_target_is_not() {
    let source = "struct Giver<'a, D>(pub OnDevice<'a, D>); struct Seen<'a> { arena: &'a Arena, of: PhantomData<u8> }
        struct Parker<'a, D> { mapper: Mapper<'a, D>, target: u32 }";
    assert_eq!(views_in(source), ["Giver", "Seen"]);
}
