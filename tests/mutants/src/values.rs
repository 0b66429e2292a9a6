//! The values returned in place of a body.

use quote::ToTokens as _;
use syn::{GenericArgument, Ident, PathArguments, ReturnType, Type, TypePath};

/// Where a rewritten crate finds the standard library, `no_std` or not.
const STD: &str = "crate::mutant_switch::std";

/// Returns the values for a return type, as source text. The compiler refuses values of the wrong
/// type.
pub(crate) fn of_return(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".into()],
        ReturnType::Type(_, of) => of_type(of),
    }
}

fn of_type(of: &Type) -> Vec<String> {
    match of {
        Type::Path(path) => of_path(path),
        Type::Tuple(tuple) => {
            let mut tuples = vec![String::new()];
            for element in &tuple.elems {
                let values = of_type(element);
                let longer =
                    |start: &String| values.iter().map(|value| format!("{start}{value}, ")).collect::<Vec<_>>();
                tuples = tuples.iter().flat_map(longer).collect();
            }
            tuples.iter().map(|elements| format!("({elements})")).collect()
        }
        Type::Reference(reference) => of_reference(&reference.elem),
        Type::Array(array) => {
            let length = array.len.to_token_stream();
            of_type(&array.elem).iter().map(|value| format!("[{value}; {length}]")).collect()
        }
        Type::Paren(inner) => of_type(&inner.elem),
        // No value of these types differs from the body in type alone: two opaque types are never
        // equal.
        Type::ImplTrait(_) | Type::Never(_) => Vec::new(),
        _ => vec!["Default::default()".into()],
    }
}

fn of_path(path: &TypePath) -> Vec<String> {
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
    let each = |make: &dyn Fn(&str) -> String| -> Vec<String> {
        let first = argument(&last.arguments);
        first.map_or_else(|| vec!["Default::default()".into()], of_type).iter().map(|value| make(value)).collect()
    };
    let name: &Ident = &last.ident;
    match name.to_string().as_str() {
        "bool" => texts(&["true", "false"]),
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => texts(&["0", "1"]),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => texts(&["0", "1", "-1"]),
        "f32" | "f64" => texts(&["0.0", "1.0", "-1.0"]),
        "char" => texts(&["'\\0'"]),
        "String" => vec![format!("{STD}::string::String::new()"), "\"xyzzy\".into()".into()],
        "Option" => [vec!["None".into()], each(&|value| format!("Some({value})"))].concat(),
        "Vec" if path.path.segments.len() == 1 => {
            [vec![format!("{STD}::vec![]")], each(&|value| format!("{STD}::vec![{value}]"))].concat()
        }
        "Box" => each(&|value| format!("{STD}::boxed::Box::new({value})")),
        "Arc" => each(&|value| format!("{STD}::sync::Arc::new({value})")),
        "Cow" => each(&|value| format!("{STD}::borrow::Cow::Owned({value})")),
        name if name.ends_with("Result") => each(&|value| format!("Ok({value})")),
        _ => texts(&["Default::default()"]),
    }
}

fn of_reference(target: &Type) -> Vec<String> {
    match target {
        Type::Path(path) if path.path.is_ident("str") => vec!["\"\"".into(), "\"xyzzy\"".into()],
        Type::Slice(slice) => {
            let some = of_type(&slice.elem);
            let some = some.iter().map(|value| format!("{STD}::vec::Vec::leak({STD}::vec![{value}])"));
            [format!("{STD}::vec::Vec::leak({STD}::vec::Vec::new())")].into_iter().chain(some).collect()
        }
        _ => {
            let values = of_type(target);
            values.iter().map(|value| format!("{STD}::boxed::Box::leak({STD}::boxed::Box::new({value}))")).collect()
        }
    }
}

/// Returns the first type in the arguments of a path.
fn argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| if let GenericArgument::Type(of) = argument { Some(of) } else { None })
}

/// Returns a value for people, without the paths of a rewritten crate.
pub(crate) fn shown(value: &str) -> String {
    value.replace(&format!("{STD}::"), "")
}
