//! The changeable places of a file, found in the syntax.
//!
//! The kinds are those of cargo-mutants: a body replaced by a value, a binary operator replaced, a
//! unary operator left out, an arm or a field left out, a guard always or never true.

use crate::conditions::Conditions;
use crate::values;
use proc_macro2::Span;
use quote::ToTokens as _;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, ImplItem, Item, Member, Pat, Safety, Signature, Stmt, TraitItem, UnOp};

/// The bytes of a file.
pub(crate) type Bytes = Range<usize>;

/// A place with all changes.
#[derive(Debug)]
pub(crate) struct Place {
    /// The bytes written anew.
    pub(crate) bytes: Bytes,
    /// The parts, and how each change writes them.
    pub(crate) shape: Shape,
    /// The changes in words.
    pub(crate) texts: Vec<String>,
    /// The line and the column, both counted from 1.
    pub(crate) position: (usize, usize),
    /// Whether the compiler computes the value.
    pub(crate) is_constant: bool,
}

/// How a place is written otherwise.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A body: the values returned at the beginning.
    Body(Vec<String>),
    /// A comparison, with the operators in place of the source's.
    Comparison { left: Bytes, right: Bytes, operator: String, others: Vec<&'static str> },
    /// Arithmetic of two values.
    Arithmetic { left: Bytes, right: Bytes, operator: String, others: Vec<&'static str> },
    /// A value changed in place.
    Assignment { left: Bytes, right: Bytes, operator: String, others: Vec<&'static str> },
    /// `&&`, changed to `||`, or the reverse.
    Lazy { left: Bytes, right: Bytes, is_and: bool },
    /// A unary operator, left out.
    Unary { operand: Bytes, operator: &'static str },
    /// An arm of a match, left out: the place is the end of the pattern.
    Arm,
    /// The guard of an arm: true and false.
    Guard,
    /// A field of a structure, left to the base.
    Field { base: Bytes, name: String },
}

/// Finds the places of a file, in the order of the text.
pub(crate) fn of_file(file: &syn::File, conditions: &Conditions) -> Vec<Place> {
    let mut finder = Finder { conditions, places: Vec::new(), scope: Vec::new(), constants: 0 };
    finder.visit_file(file);
    finder.places
}

struct Finder<'a> {
    conditions: &'a Conditions,
    places: Vec<Place>,
    /// The names around the visited code.
    scope: Vec<String>,
    /// How many constants are around the code.
    constants: u32,
}

impl Finder<'_> {
    fn place(&mut self, at: Span, bytes: Bytes, shape: Shape, texts: Vec<String>) {
        let position = (at.start().line, at.start().column + 1);
        let is_constant = self.constants > 0;
        self.places.push(Place { bytes, shape, texts, position, is_constant });
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, body: &Block) {
        if !self.conditions.hold(attributes) {
            return;
        }
        self.scope.push(signature.ident.to_string());
        let is_default = self.scope.iter().any(|name| name.contains("Default for")) && signature.ident == "default";
        if !matches!(signature.safety, Safety::Unsafe(_)) && !body.stmts.is_empty() && !is_default {
            let written = body.stmts.iter().map(|stmt| stmt.to_token_stream().to_string()).collect::<String>();
            let same = |value: &String| value.replace(' ', "") == written.replace(' ', "");
            let values: Vec<_> =
                values::of_return(&signature.output).into_iter().filter(|value| !same(value)).collect();
            if !values.is_empty() {
                let name = self.scope.join("::");
                let texts = values.iter().map(|value| format!("{name} returns {}", values::shown(value))).collect();
                let begin = body.brace_token.span.open().byte_range().end;
                self.place(signature.ident.span(), begin..begin, Shape::Body(values), texts);
            }
        }
        self.visit_block(body);
        self.scope.pop();
    }

    /// Visits named code.
    fn named(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }

    /// Visits a value computed by the compiler.
    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit(self);
        self.constants -= 1;
    }

    fn inside(&self) -> String {
        self.scope.join("::")
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_pat(&mut self, pattern: &'a Pat) {
        // The values in patterns are computed by the compiler.
        if let Pat::Guard(guarded) = pattern {
            self.visit_expr(&guarded.guard);
        }
    }

    fn visit_type(&mut self, _: &'a syn::Type) {}

    fn visit_generics(&mut self, _: &'a syn::Generics) {}

    fn visit_path(&mut self, _: &'a syn::Path) {}

    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Fn(function) => self.function(&function.attrs, &function.sig, &function.block),
            Item::Impl(block) if self.conditions.hold(&block.attrs) => {
                let of = spaceless(&block.self_ty);
                let name = block.trait_.as_ref().map(|(path, ..)| format!("<{} for {of}>", spaceless(path)));
                self.named(name.unwrap_or(of), |finder| visit::visit_item_impl(finder, block));
            }
            Item::Trait(block) if self.conditions.hold(&block.attrs) => {
                self.named(block.ident.to_string(), |finder| visit::visit_item_trait(finder, block));
            }
            Item::Mod(module) if self.conditions.hold(&module.attrs) => {
                self.named(module.ident.to_string(), |finder| visit::visit_item_mod(finder, module));
            }
            Item::Const(item) if self.conditions.hold(&item.attrs) => {
                self.named(item.ident.to_string(), |finder| finder.constant(|finder| finder.visit_expr(&item.expr)));
            }
            Item::Static(item) if self.conditions.hold(&item.attrs) => {
                self.named(item.ident.to_string(), |finder| finder.constant(|finder| finder.visit_expr(&item.expr)));
            }
            _ => {}
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        match item {
            ImplItem::Fn(function) => self.function(&function.attrs, &function.sig, &function.block),
            ImplItem::Const(item) if self.conditions.hold(&item.attrs) => {
                self.named(item.ident.to_string(), |finder| finder.constant(|finder| finder.visit_expr(&item.expr)));
            }
            _ => {}
        }
    }

    fn visit_trait_item(&mut self, item: &'a TraitItem) {
        match item {
            TraitItem::Fn(function) => {
                if let Some(body) = &function.default {
                    self.function(&function.attrs, &function.sig, body);
                }
            }
            TraitItem::Const(item) if self.conditions.hold(&item.attrs) => {
                if let Some((_, value)) = &item.default {
                    self.named(item.ident.to_string(), |finder| finder.constant(|finder| finder.visit_expr(value)));
                }
            }
            _ => {}
        }
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        let attributes = match stmt {
            Stmt::Local(local) => &local.attrs[..],
            Stmt::Expr(expr, _) => attributes(expr),
            _ => &[],
        };
        if self.conditions.hold(attributes) {
            visit::visit_stmt(self, stmt);
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Binary(binary) => {
                let ends = (bytes(&binary.left), bytes(&binary.right));
                if let Some((shape, others)) = binary_shape(&binary.op, ends, expr) {
                    let (operator, inside) = (spaceless(&binary.op), self.inside());
                    let texts = others.iter().map(|other| format!("{operator} to {other} in {inside}")).collect();
                    self.place(binary.op.span(), bytes(expr), shape, texts);
                }
            }
            Expr::Unary(unary) => {
                let operator = match unary.op {
                    UnOp::Not(_) => "!",
                    UnOp::Neg(_) => "-",
                    _ => "",
                };
                if !operator.is_empty() {
                    let text = format!("{operator} left out in {}", self.inside());
                    let shape = Shape::Unary { operand: bytes(&unary.expr), operator };
                    self.place(unary.op.span(), bytes(expr), shape, vec![text]);
                }
            }
            Expr::Struct(structure) => {
                if let Some(base) = &structure.rest {
                    for field in &structure.fields {
                        let Member::Named(name) = &field.member else { continue };
                        // A field that is a name only has no expression of its own in the text.
                        if field.colon_token.is_some() {
                            let text = format!("field {name} left out in {}", self.inside());
                            let shape = Shape::Field { base: bytes(base), name: name.to_string() };
                            self.place(name.span(), bytes(&field.expr), shape, vec![text]);
                        }
                    }
                }
            }
            Expr::Match(choice) => {
                let has_rest = choice.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)));
                for arm in &choice.arms {
                    match &arm.pat {
                        Pat::Guard(guarded) if !has_let(&guarded.guard) => {
                            let text = |value| format!("guard {value} in {}", self.inside());
                            let texts = vec![text("true"), text("false")];
                            self.place(guarded.guard.span(), bytes(&guarded.guard), Shape::Guard, texts);
                        }
                        Pat::Guard(_) | Pat::Wild(_) => {}
                        pattern if has_rest => {
                            let shown = pattern.to_token_stream().to_string();
                            let text = format!("arm {shown} left out in {}", self.inside());
                            let end = bytes(pattern).end;
                            self.place(pattern.span(), end..end, Shape::Arm, vec![text]);
                        }
                        _ => {}
                    }
                }
            }
            // The length of an array is computed by the compiler.
            Expr::Repeat(repeat) => return self.visit_expr(&repeat.expr),
            Expr::Const(_) => return self.constant(|finder| visit::visit_expr(finder, expr)),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }
}

/// Returns the shape of a binary operator and the replacements.
fn binary_shape(op: &BinOp, (left, right): (Bytes, Bytes), whole: &Expr) -> Option<(Shape, Vec<&'static str>)> {
    let others: &[&str] = match op {
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">", "<"],
        BinOp::Ge(_) => &["<", ">"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) | BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) | BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        BinOp::BitAndAssign(_) => &["|=", "^="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        _ => return None,
    };
    let (operator, list) = (spaceless(op), others.to_vec());
    let shape = match op {
        // A chain with `let` has no other form.
        BinOp::And(_) | BinOp::Or(_) if has_let(whole) => return None,
        BinOp::And(_) => Shape::Lazy { left, right, is_and: true },
        BinOp::Or(_) => Shape::Lazy { left, right, is_and: false },
        BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Gt(_) | BinOp::Le(_) | BinOp::Ge(_) => {
            Shape::Comparison { left, right, operator, others: list }
        }
        _ if operator.ends_with('=') => Shape::Assignment { left, right, operator, others: list },
        _ => Shape::Arithmetic { left, right, operator, others: list },
    };
    Some((shape, others.to_vec()))
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn attributes(expr: &Expr) -> &[Attribute] {
    match expr {
        Expr::Block(expr) => &expr.attrs,
        Expr::If(expr) => &expr.attrs,
        Expr::Match(expr) => &expr.attrs,
        Expr::Call(expr) => &expr.attrs,
        Expr::MethodCall(expr) => &expr.attrs,
        _ => &[],
    }
}

fn bytes(of: &impl Spanned) -> Bytes {
    of.span().byte_range()
}

fn spaceless(of: &impl quote::ToTokens) -> String {
    of.to_token_stream().to_string().replace(' ', "")
}
