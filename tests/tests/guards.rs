//! Refuses `then_some` of a value with a destructor.
//!
//! `condition.then_some(value)` makes `value` in either case, and drops the value at once if the
//! condition does not hold. For a guard, the drop ends the turn or the permission of another
//! thread. `if … { Some(…) } else { None }` makes the value on a single path.
//!
//! A type has a destructor if a source file of the same crate implements `Drop` for the type. An
//! argument counts as such a value if it names the type, or a variable of the same function whose
//! initial value names the type.

use super::sources::{self, last_name, name_of_type};
use std::collections::{HashMap, HashSet};
use syn::visit::{self, Visit};

/// The types with a destructor, by their last name.
#[derive(Default)]
struct Destructors(HashSet<String>);

impl Visit<'_> for Destructors {
    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|implemented| last_name(&implemented.0));
        if of.is_some_and(|name| name == "Drop") {
            self.0.extend(name_of_type(&item.self_ty));
        }
        visit::visit_item_impl(self, item);
    }
}

/// The calls of `then_some` in a file whose argument has a destructor.
struct Calls<'a> {
    destructors: &'a HashSet<String>,
    /// The type of the `impl` block around.
    own: Option<String>,
    /// Whether each variable of the function has a destructor.
    variables: HashMap<String, bool>,
    found: Vec<String>,
}

impl Calls<'_> {
    /// Returns whether an expression names a type with a destructor, or a variable of such a type.
    fn has_destructor(&self, expression: &syn::Expr) -> bool {
        let mut names = Names(Vec::new());
        names.visit_expr(expression);
        names.0.iter().any(|name| match name.as_str() {
            "Self" => self.own.as_ref().is_some_and(|own| self.destructors.contains(own)),
            name => self.destructors.contains(name) || self.variables.get(name) == Some(&true),
        })
    }
}

impl Visit<'_> for Calls<'_> {
    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        let around = core::mem::replace(&mut self.own, name_of_type(&item.self_ty));
        visit::visit_item_impl(self, item);
        self.own = around;
    }

    fn visit_block(&mut self, block: &syn::Block) {
        let around = self.variables.clone();
        visit::visit_block(self, block);
        self.variables = around;
    }

    fn visit_local(&mut self, local: &syn::Local) {
        visit::visit_local(self, local);
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let has = self.has_destructor(&init.expr);
            self.variables.insert(name.ident.to_string(), has);
        }
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        if call.method == "then_some" && call.args.iter().any(|argument| self.has_destructor(argument)) {
            self.found.push(quote::quote!(#call).to_string());
        }
    }
}

/// The names that an expression constructs a value by: of paths, and of structures.
struct Names(Vec<String>);

impl Visit<'_> for Names {
    fn visit_path(&mut self, path: &syn::Path) {
        self.0.extend(path.segments.iter().map(|segment| segment.ident.to_string()));
        visit::visit_path(self, path);
    }
}

/// Returns the calls of `then_some` with a destructor in the `sources` of a crate, each behind the
/// name of its source.
fn misused(sources: &[(String, syn::File)]) -> Vec<String> {
    let mut destructors = Destructors::default();
    sources.iter().for_each(|(_, file)| destructors.visit_file(file));
    let mut found = Vec::new();
    for (name, file) in sources {
        let mut calls = Calls { destructors: &destructors.0, own: None, variables: HashMap::new(), found: Vec::new() };
        calls.visit_file(file);
        found.extend(calls.found.into_iter().map(|call| format!("{name}: {call}")));
    }
    found
}

#[test]
fn then_some_makes_no_value_with_a_destructor() {
    let mut crates = HashMap::<String, Vec<_>>::new();
    for (path, text) in sources::below("") {
        let folder = path.iter().next().expect("it has a name").display().to_string();
        let source = (path.display().to_string(), syn::parse_file(&text).expect("the file compiles"));
        crates.entry(folder).or_default().push(source);
    }
    let found: Vec<_> = crates.values().flat_map(|sources| misused(sources)).collect();
    assert!(found.is_empty(), "the value is made and dropped if the condition does not hold:\n{}", found.join("\n"));
}

#[test]
fn a_guard_in_then_some_is_found_by_its_type_and_by_its_variable() {
    let text = "struct Turn; impl Drop for Turn { fn drop(&mut self) {} }
        impl Turn { fn take(free: bool) -> Option<Self> { free.then_some(Self) } }
        fn by_name(free: bool) -> Option<Turn> { free.then_some(Turn) }
        fn by_variable(free: bool) -> Option<Turn> { let turn = Turn; free.then_some(turn) }
        fn number(free: bool) -> Option<u32> { let turn = 7; free.then_some(turn) }
        fn late(free: bool) -> Option<Turn> { free.then(|| Turn) }";
    let sources = [("a file".to_string(), syn::parse_file(text).unwrap())];
    let expected = ["free . then_some (Self)", "free . then_some (Turn)", "free . then_some (turn)"];
    assert_eq!(misused(&sources), expected.map(|call| format!("a file: {call}")));
}
