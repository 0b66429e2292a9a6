//! Limits the length of the names of tests. A name says the behaviour that the test checks, and a
//! list of tests is read line by line.

use super::sources;
use proc_macro2::{TokenStream, TokenTree};

/// The greatest length of a test's name, in characters.
const LONGEST: usize = 80;

/// Adds the names of the functions with `#[test]` in a file, also in the arguments of macros, which
/// a parser does not read.
fn tests(tokens: TokenStream, found: &mut Vec<String>) {
    let (mut is_test, mut is_name) = (false, false);
    let mut before = None;
    for token in tokens {
        match &token {
            TokenTree::Group(group) => {
                let is_attribute = matches!(&before, Some(TokenTree::Punct(punct)) if punct.as_char() == '#');
                is_test |= is_attribute && group.stream().to_string() == "test";
                tests(group.stream(), found);
            }
            TokenTree::Ident(ident) if is_name => {
                found.push(ident.to_string());
                (is_test, is_name) = (false, false);
            }
            TokenTree::Ident(ident) => is_name = is_test && ident == "fn",
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        before = Some(token);
    }
}

/// Returns the names of the tests in a file.
pub(crate) fn tests_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    tests(text.parse().unwrap_or_else(|error| panic!("{error}")), &mut found);
    found
}

#[test]
fn names_of_tests_are_short() {
    let (mut count, mut long) = (0, Vec::new());
    for (path, text) in sources::below("") {
        let names = tests_of(&text);
        count += names.len();
        let file = path.display();
        let over = names.iter().filter(|name| name.chars().count() > LONGEST);
        long.extend(over.map(|name| format!("{file}: {name} ({})", name.chars().count())));
    }
    assert!(count > 1000, "{count} tests were found");
    assert!(long.is_empty(), "names of more than {LONGEST} characters:\n{}", long.join("\n"));
}

#[test]
fn tests_are_found_in_modules_and_in_macros() {
    let text = "fn no() {} #[test] fn a() {} mod m { #[test] #[ignore = \"slow\"] fn b() { fn no() {} } }\n\
                macro! { #[test] fn c(x in 0..1) {} } #[cfg(test)] fn no() {} /// Doc.\n#[test] pub fn d() {}";
    assert_eq!(tests_of(text), ["a", "b", "c", "d"]);
}
