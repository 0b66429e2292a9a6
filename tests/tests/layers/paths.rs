//! Finds paths in Rust tokens: in a `use`, in code, and in the arguments of macros, which a parser
//! does not read.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::iter::Peekable;

/// The names of a path. The last name of a glob is `*`.
pub(crate) type Names = Vec<String>;

/// A path and its local name: the name after `as`, or the last name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: Names,
    pub(crate) name: String,
}

type Tokens = Peekable<proc_macro2::token_stream::IntoIter>;

/// Finds every path of two names or more.
pub(crate) fn paths(tokens: TokenStream) -> Vec<Names> {
    let mut found = Vec::new();
    collect(tokens, &mut found);
    found
}

fn collect(tokens: TokenStream, found: &mut Vec<Names>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if matches!(tokens.peek(), Some(TokenTree::Group(group)) if is_for_tests(&group.stream())) {
                    skip(&mut tokens);
                }
            }
            TokenTree::Group(group) => collect(group.stream(), found),
            TokenTree::Ident(first) => {
                let mut named = Vec::new();
                rest(vec![first.to_string()], &mut tokens, &mut named);
                found.extend(named.into_iter().map(|named| named.path).filter(|path| path.len() > 1));
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns whether an attribute marks an item for tests only: `test`, or a `cfg` with `test`.
pub(crate) fn is_for_tests(attribute: &TokenStream) -> bool {
    let said: String = attribute.to_string().split_whitespace().collect();
    said == "test" || said == "cfg(test)" || said.starts_with("cfg(all(test,")
}

/// Skips the item of an attribute: up to a semicolon, a comma or a block.
fn skip(tokens: &mut Tokens) {
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if matches!(punct.as_char(), ';' | ',') => return,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
            _ => {}
        }
    }
}

/// Lists the paths of a `use`: `a::{b, c as d, e::*}` has three.
pub(crate) fn tree(tree: &syn::UseTree) -> Vec<Named> {
    let mut found = Vec::new();
    list(&[], quote::ToTokens::to_token_stream(tree), &mut found);
    found
}

/// Lists the paths of a group behind a prefix.
fn list(prefix: &[String], tokens: TokenStream, found: &mut Vec<Named>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let last = match token {
            TokenTree::Ident(ident) => ident.to_string(),
            TokenTree::Punct(punct) if punct.as_char() == '*' => "*".to_owned(),
            _ => continue,
        };
        let mut path = prefix.to_vec();
        path.push(last);
        rest(path, &mut tokens, found);
    }
}

/// Reads the rest of a path behind its first names: more names, a group, or nothing.
fn rest(mut path: Names, tokens: &mut Tokens, found: &mut Vec<Named>) {
    while separated(tokens) {
        match tokens.peek() {
            Some(TokenTree::Ident(ident)) => path.push(ident.to_string()),
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => path.push("*".to_owned()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                list(&path, group.stream(), found);
                tokens.next();
                return;
            }
            // `::<` of generic arguments.
            _ => break,
        }
        tokens.next();
    }
    // `{self}` is the module before it.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if matches!(tokens.peek(), Some(TokenTree::Ident(ident)) if ident == "as") {
        tokens.next();
        if let Some(TokenTree::Ident(given)) = tokens.peek() {
            name = given.to_string();
        }
        tokens.next();
    }
    found.push(Named { path, name });
}

/// Consumes `::` if next.
fn separated(tokens: &mut Tokens) -> bool {
    let mut ahead = tokens.clone();
    let is_colon = |token: Option<TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    let separated = is_colon(ahead.next()) && is_colon(ahead.next());
    if separated {
        *tokens = ahead;
    }
    separated
}
