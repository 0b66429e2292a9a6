//! Checks that each step of `docs/TOUR.md` names the line on which its function is defined.
//!
//! A step begins with the name and the place: ``3. `serve`, `core/src/arena/malloc.rs:180`.`` To
//! write the lines again: `CACHALOT_WRITE_DOCS=1 cargo test -p cachalot-tests --test house tour`. A
//! function that has moved to another file is found there if no other file of its crate defines the
//! name.

use super::sources;
use crate::wrapping::wrap_all;
use cachalot_tests::generated;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What stands before the name where an item is defined.
const KEYWORDS: [&str; 9] = ["fn", "function", "struct", "enum", "trait", "type", "const", "static", "macro_rules!"];

/// A step: its number in the list, the name of an item, and the line that defines it.
#[derive(PartialEq, Eq, Debug)]
struct Step<'a> {
    number: &'a str,
    name: &'a str,
    path: &'a str,
    line: usize,
}

/// Reads the first line of a step. `None` for any other line.
fn step(line: &str) -> Option<Step<'_>> {
    let (number, rest) = line.split_once(". `")?;
    number.parse::<u32>().ok()?;
    let (name, place) = rest.strip_suffix("`.")?.split_once("`, `")?;
    let (path, line) = place.split_once(':')?;
    Some(Step { number, name, path, line: line.parse().ok()? })
}

/// Returns whether a line defines the item with a name: after a keyword, or as a row of a table of
/// functions.
fn defines(line: &str, name: &str) -> bool {
    let line = line.trim_start();
    let is_row = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', ' ']) && rest.contains("=>"));
    let mut words =
        line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!')).filter(|word| !word.is_empty());
    let is_item = words.any(|word| KEYWORDS.contains(&word)) && words.next() == Some(name);
    !line.starts_with("//") && (is_row || is_item)
}

/// Returns the numbers of the lines of a text that define a name.
fn lines_of<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    (1..).zip(text.lines()).filter(move |(_, line)| defines(line, name)).map(|(number, _)| number)
}

/// Finds the place of a step: in its file, on the line nearest to the stated one, or else in the
/// only other file of the crate that defines the name.
fn place(step: &Step<'_>) -> Result<(String, usize), String> {
    // Of `Heap::malloc` the last part is defined.
    let name = step.name.rsplit("::").next().expect("a split has a part");
    let text = std::fs::read_to_string(Path::new(ROOT).join(step.path)).unwrap_or_default();
    if let Some(line) = lines_of(&text, name).min_by_key(|line| line.abs_diff(step.line)) {
        return Ok((step.path.to_owned(), line));
    }
    let (folder, _) = step.path.split_once("src/").unwrap_or_default();
    let moved: Vec<_> = sources::below(folder)
        .flat_map(|(path, text)| {
            let path = path.display().to_string();
            lines_of(&text, name).map(|line| (path.clone(), line)).collect::<Vec<_>>()
        })
        .collect();
    match moved.as_slice() {
        [one] => Ok(one.clone()),
        several => Err(format!("`{}` is not in {}, but in {several:?}", step.name, step.path)),
    }
}

#[test]
fn each_step_of_the_tour_names_the_line_of_its_function() {
    wrap_all();
    let page = Path::new(ROOT).join("docs/TOUR.md");
    let text = std::fs::read_to_string(&page).expect("the page is there");
    let (mut steps, mut lost, mut current) = (0, Vec::new(), Vec::new());
    for line in text.lines() {
        let is_numbered = line.starts_with(|c: char| c.is_ascii_digit());
        match step(line) {
            Some(step) => {
                steps += 1;
                let (path, number) = place(&step).unwrap_or_else(|reason| {
                    lost.push(reason);
                    (step.path.to_owned(), step.line)
                });
                current.push(format!("{}. `{}`, `{path}:{number}`.", step.number, step.name));
            }
            None if is_numbered => panic!("docs/TOUR.md: no name and place in `{line}`"),
            None => current.push(line.to_owned()),
        }
    }
    assert!(steps > 50, "{steps} steps were found");
    assert!(lost.is_empty(), "docs/TOUR.md:\n{}", lost.join("\n"));
    generated::assert_current(&page, &(current.join("\n") + "\n"));
}

#[test]
fn a_step_is_read_and_its_line_found() {
    let read = step("3. `Heap::serve`, `core/src/a.rs:18`.").expect("a step");
    assert_eq!(read, Step { number: "3", name: "Heap::serve", path: "core/src/a.rs", line: 18 });
    assert_eq!((step("3. Serves a request."), step("See `a`, `b.rs:3`.")), (None, None));
    let text = "// fn serve\nserve(1);\n    pub(crate) fn serve<T>(\nfn serves()\n    serve(a: u8) => serves(a);\n    serve => serves;\nasync function serve(\n";
    assert_eq!(lines_of(text, "serve").collect::<Vec<_>>(), [3, 5, 6, 7]);
    assert_eq!(lines_of("macro_rules! hot {\n    const RUNGS: &[u8]", "hot").next(), Some(1));
}
