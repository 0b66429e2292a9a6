//! A file with all changes behind switches.
//!
//! In most places the operands stand once:
//! `(match (a, b) { (l, r) => if is(7) { l - r } else { l + r } })`. Where the compiler finds no
//! type, the whole place is written twice. A copy in which a change is taken contains no other
//! switch, since no two changes are taken at once: nested places do not multiply.

use crate::places::{Bytes, Place, Shape};
use std::fmt::Write as _;

/// How a place is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The operands stand once.
    Once,
    /// The operands stand once for each change.
    Copies,
    /// As in the source.
    Source,
}

/// A place in a build: the form, and the numbers of the changes, 0 for a change left out.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) place: Place,
    pub(crate) form: Form,
    pub(crate) numbers: Vec<usize>,
}

/// The part at some bytes of a rendered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// A place, by index.
    Place(usize),
    /// A change of a place, by the indices of both.
    Change(usize, usize),
}

/// A rendered file.
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// The parts, the outer before the inner.
    pub(crate) parts: Vec<(Bytes, Part)>,
}

/// Writes a file with `places`, which are in the order of the text, outer before inner.
pub(crate) fn render(source: &str, places: &[Written]) -> Rendered {
    let mut writer = Writer { source, places, out: String::new(), parts: Vec::new() };
    writer.source(0..source.len(), 0..places.len());
    Rendered { text: writer.out, parts: writer.parts }
}

struct Writer<'a> {
    source: &'a str,
    places: &'a [Written],
    out: String,
    parts: Vec<(Bytes, Part)>,
}

/// The indices of places.
type Indices = std::ops::Range<usize>;

impl Writer<'_> {
    /// Writes a range of the source, with the places inside the range.
    fn source(&mut self, bytes: Bytes, places: Indices) {
        let mut at = bytes.start;
        let mut next = places.start;
        while next < places.end {
            let place = &self.places[next].place.bytes;
            if place.start > bytes.end {
                break;
            }
            // A place of another part of the same outer place, or one written with the place
            // before.
            if place.start < at || place.end > bytes.end {
                next += 1;
                continue;
            }
            let (start, end) = (place.start, place.end);
            self.out.push_str(&self.source[at..start]);
            let inner = next + 1..places.end;
            self.place(next, inner);
            at = end;
            next += 1;
            // Those inside were written with it.
            while next < places.end && self.places[next].place.bytes.start < at {
                next += 1;
            }
        }
        self.out.push_str(&self.source[at..bytes.end]);
    }

    fn place(&mut self, index: usize, inner: Indices) {
        let written = &self.places[index];
        let begin = self.out.len();
        let at = self.parts.len();
        let alive: Vec<usize> = (0..written.numbers.len()).filter(|&change| written.numbers[change] != 0).collect();
        if written.form == Form::Source || alive.is_empty() {
            self.source(written.place.bytes.clone(), inner);
            return;
        }
        self.parts.push((begin..begin, Part::Place(index)));
        match written.form {
            Form::Copies if written.place.shape.has_copies() => self.copies(index, &alive, inner),
            _ => self.once(index, &alive, inner),
        }
        self.parts[at].0.end = self.out.len();
    }

    fn once(&mut self, index: usize, alive: &[usize], inner: Indices) {
        let Written { place, numbers, .. } = &self.places[index];
        let first = numbers[alive[0]];
        match &place.shape {
            Shape::Body(values) => {
                for &change in alive {
                    let _ = write!(self.out, " if {} {{ return ", is(numbers[change]));
                    self.change(index, change, &values[change]);
                    self.out.push_str("; }");
                }
            }
            Shape::Comparison { left, right, operator, others } => {
                self.out.push_str("(match (&(");
                self.source(left.clone(), inner.clone());
                self.out.push_str("), &(");
                self.source(right.clone(), inner);
                self.out.push_str(")) { (__l, __r) => ");
                self.choice(index, alive, |other| format!("*__l {} *__r", others[other]));
                let _ = write!(self.out, "{{ *__l {operator} *__r }} }})");
            }
            Shape::Arithmetic { left, right, operator, others } => {
                self.out.push_str("(match (");
                self.source(left.clone(), inner.clone());
                self.out.push_str(", ");
                self.source(right.clone(), inner);
                self.out.push_str(") { (__l, __r) => ");
                self.choice(index, alive, |other| format!("__l {} __r", others[other]));
                let _ = write!(self.out, "{{ __l {operator} __r }} }})");
            }
            Shape::Assignment { left, right, operator, others } => {
                // The right operand of numbers is computed first.
                self.out.push_str("(match (");
                self.source(right.clone(), inner.clone());
                self.out.push_str(", &mut (");
                self.source(left.clone(), inner);
                self.out.push_str(")) { (__r, __l) => ");
                self.choice(index, alive, |other| format!("*__l {} __r", others[other]));
                let _ = write!(self.out, "{{ *__l {operator} __r }} }})");
            }
            Shape::Lazy { left, right, is_and } => {
                // With the change, `a && b` asks for `b` where `a` is false, and is true otherwise.
                let asks = if *is_and { "!=" } else { "==" };
                self.out.push_str("(if (");
                self.source(left.clone(), inner.clone());
                let _ = write!(self.out, ") {asks} {} {{ ", is(first));
                self.source(right.clone(), inner);
                let _ = write!(self.out, " }} else {{ {}{} }})", if *is_and { "" } else { "!" }, is(first));
            }
            Shape::Unary { operand, operator } => {
                self.out.push_str("(match (");
                self.source(operand.clone(), inner);
                self.out.push_str(") { __v => ");
                self.choice(index, alive, |_| "__v".into());
                let _ = write!(self.out, "{{ {operator}__v }} }})");
            }
            Shape::Arm => {
                let _ = write!(self.out, " if !{}", is(first));
            }
            Shape::Guard => {
                let or_false = |change: usize| if numbers[change] == 0 { "false".into() } else { is(numbers[change]) };
                let _ = write!(self.out, "({} || (!{} && (", or_false(0), or_false(1));
                self.source(place.bytes.clone(), inner);
                self.out.push_str(")))");
            }
            Shape::Field { base, name } => {
                let _ = write!(self.out, "if {} {{ ", is(first));
                self.change(index, 0, &format!("({}).{name}", &self.source[base.clone()]));
                self.out.push_str(" } else { ");
                self.source(place.bytes.clone(), inner);
                self.out.push_str(" }");
            }
        }
    }

    /// Writes the place anew for each change.
    fn copies(&mut self, index: usize, alive: &[usize], inner: Indices) {
        let place = &self.places[index].place;
        let binary = |left: &Bytes, right: &Bytes, operator: &str| {
            format!("{} {operator} {}", &self.source[left.clone()], &self.source[right.clone()])
        };
        let copy = |change: usize| match &place.shape {
            Shape::Comparison { left, right, others, .. }
            | Shape::Arithmetic { left, right, others, .. }
            | Shape::Assignment { left, right, others, .. } => binary(left, right, others[change]),
            Shape::Lazy { left, right, is_and } => binary(left, right, if *is_and { "||" } else { "&&" }),
            Shape::Unary { operand, .. } => self.source[operand.clone()].into(),
            _ => self.source[place.bytes.clone()].into(),
        };
        let copies: Vec<String> = (0..self.places[index].numbers.len()).map(copy).collect();
        self.out.push('(');
        self.choice(index, alive, |change| copies[change].clone());
        self.out.push_str("{ ");
        let place = &self.places[index].place;
        self.source(place.bytes.clone(), inner);
        self.out.push_str(" })");
    }

    /// Writes `if` and `else` for each change, up to the block of the source.
    fn choice(&mut self, index: usize, alive: &[usize], changed: impl Fn(usize) -> String) {
        for &change in alive {
            let _ = write!(self.out, "if {} {{ ", is(self.places[index].numbers[change]));
            self.change(index, change, &changed(change));
            self.out.push_str(" } else ");
        }
    }

    fn change(&mut self, index: usize, change: usize, text: &str) {
        let begin = self.out.len();
        self.out.push_str(text);
        self.parts.push((begin..self.out.len(), Part::Change(index, change)));
    }
}

fn is(number: usize) -> String {
    format!("crate::mutant_switch::is({number})")
}

impl Shape {
    /// Returns whether the place can be written as copies.
    pub(crate) fn has_copies(&self) -> bool {
        !matches!(self, Shape::Body(_) | Shape::Arm | Shape::Guard | Shape::Field { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Conditions;
    use crate::places;

    const SOURCE: &str = "const HALF: u32 = 1 + 1;
fn sum(a: &[u32], at: usize) -> Option<u32> {
    let mut all = a[at + 1] * 2;
    all += a[at] - 1;
    match all { 0 if at > 1 && !a.is_empty() => None, 1 => Some(1), _ => Some(all) }
}
fn more(of: Of) -> Of { Of { size: of.size << 1, ..of } }
#[cfg(test)]
fn tested() -> bool { true }
";

    /// Returns the places of the source, numbered from 1, in a form.
    fn places(source: &str, form: Form) -> Vec<Written> {
        let conditions = Conditions { features: std::collections::HashSet::default() };
        let mut places = places::of_file(&syn::parse_file(source).expect("it is Rust"), &conditions);
        places.sort_by_key(|place| (place.bytes.start, std::cmp::Reverse(place.bytes.end)));
        let mut last = 0;
        let mut number = |place: &Place| {
            let numbers = place.texts.iter().map(|_| {
                last += 1;
                if place.is_constant { 0 } else { last }
            });
            numbers.collect()
        };
        places.into_iter().map(|place| Written { numbers: number(&place), place, form }).collect()
    }

    #[test]
    fn every_kind_of_change_is_found_and_written_as_rust() {
        for form in [Form::Once, Form::Copies] {
            let places = places(SOURCE, form);
            let texts: Vec<_> = places.iter().flat_map(|place| place.place.texts.clone()).collect();
            for text in [
                "+ to - in HALF",
                "sum returns None",
                "+ to * in sum",
                "+= to -= in sum",
                "guard true in sum",
                "&& to || in sum",
                "! left out in sum",
                "arm 1 left out in sum",
                "more returns Default::default()",
                "field size left out in more",
            ] {
                assert!(texts.iter().any(|known| known == text), "{text} is not in {texts:?}");
            }
            assert!(!texts.iter().any(|text| text.contains("tested")), "{texts:?}");
            let rendered = render(SOURCE, &places);
            assert!(syn::parse_file(&rendered.text).is_ok(), "{}", rendered.text);
            for place in &places {
                for &number in place.numbers.iter().filter(|&&number| number != 0) {
                    assert!(rendered.text.contains(&format!("is({number})")), "{number} is not in {}", rendered.text);
                }
            }
            assert!(rendered.text.starts_with("const HALF: u32 = 1 + 1;"), "{}", rendered.text);
        }
    }

    #[test]
    fn a_copy_with_a_change_has_no_other_switch() {
        let places = places("fn of(a: u32) { a * 2 + a * 3; }", Form::Copies);
        let rendered = render("fn of(a: u32) { a * 2 + a * 3; }", &places);
        assert!(rendered.text.contains("{ a * 2 - a * 3 }"), "{}", rendered.text);
    }

    #[test]
    fn what_is_left_out_stands_as_in_the_source() {
        let mut places = places(SOURCE, Form::Once);
        for place in &mut places {
            place.numbers.fill(0);
        }
        assert_eq!(render(SOURCE, &places).text, SOURCE);
    }
}
