//! The width of prose: paragraphs of comments in Rust, and of Markdown, have lines of at most 100
//! columns.
//!
//! A paragraph with a longer line is wrapped anew as a whole. With `CACHALOT_WRITE_DOCS` in the
//! environment, the test writes the files. Code blocks, tables, drawings and headings stay as they
//! are, and so do links and code in a line.

use crate::sources;
use std::path::Path;
use std::sync::OnceLock;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The longest line of a paragraph, in characters.
const WIDTH: usize = 100;

/// Texts of the past, which stay as they were written.
const PAST: [&str; 2] = ["CHANGELOG.md", "tests/results/"];

/// A line of prose: what precedes the text, and the text.
struct Prose<'a> {
    prefix: &'a str,
    text: &'a str,
}

/// Returns the prose in a line of Rust: a comment on a line by itself, with one blank before the
/// text.
fn of_rust(line: &str) -> Option<Prose<'_>> {
    let code = line.trim_start();
    let marker = ["///", "//!", "//"].into_iter().find(|marker| code.starts_with(marker))?;
    let rest = &code[marker.len()..];
    let text = if rest.is_empty() { rest } else { rest.strip_prefix(' ')? };
    Some(Prose { prefix: &line[..line.len() - text.len()], text })
}

/// Returns the prose in a line of Markdown: all of it, except comments.
fn of_markdown(line: &str) -> Option<Prose<'_>> {
    (!line.starts_with("<!--")).then_some(Prose { prefix: "", text: line })
}

/// Returns the width of a list's marker at the start of a text, with the blanks around. 0 if there
/// is none.
fn marker(text: &str) -> usize {
    let indent = text.len() - text.trim_start().len();
    let rest = &text[indent..];
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let bullet = usize::from(rest.starts_with(['*', '-', '+']));
    let number = usize::from(digits > 0 && rest[digits..].starts_with(['.', ')'])) * (digits + 1);
    let mark = bullet.max(number);
    if mark > 0 && rest[mark..].starts_with(' ') { indent + mark + 1 } else { 0 }
}

/// Returns whether a text is a line of a paragraph, and not of a heading, a table, a drawing or
/// markup.
fn is_plain(text: &str) -> bool {
    let rest = text.trim_start();
    let begins_block = rest.is_empty()
        || rest.starts_with(['#', '|', '<', '>', '=', '!'])
        || rest.starts_with("```")
        || rest.starts_with("---")
        || rest.starts_with('[') && rest.contains("]: ");
    let is_drawn = rest.trim_end().contains("  ") || rest.chars().any(|c| ('\u{2500}'..='\u{25ff}').contains(&c));
    !begins_block && !is_drawn && !text.ends_with("  ") && !text.ends_with('\\')
}

/// Splits a text into words. Code between backticks and a link are one word each.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut is_code, mut depth) = (String::new(), false, 0_usize);
    for c in text.chars().chain([' ']) {
        match c {
            '`' => is_code = !is_code,
            '[' | '(' if !is_code => depth += usize::from(c == '[' || word.ends_with(']')),
            ']' | ')' if !is_code => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ' ' && !is_code && depth == 0 {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
        } else {
            word.push(c);
        }
    }
    // An unclosed bracket or backtick: every blank is one.
    words.extend(word.split_whitespace().map(str::to_owned));
    words
}

/// Returns whether a word at the start of a line would begin a list, a heading or a table.
fn begins_block(word: &str) -> bool {
    word.starts_with(['#', '|', '>', '=', '<', '!']) || marker(&format!("{word} ")) > 0 || word.starts_with("---")
}

/// Wraps words into lines: the first after `first`, the others after `others`.
fn wrap(words: &[String], first: &str, others: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in words {
        let columns = line.chars().count() + 1 + word.chars().count();
        if !is_empty && columns > WIDTH && !begins_block(word) {
            lines.push(std::mem::replace(&mut line, others.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Returns the end of the paragraph that starts at line `start`, and the width of its hanging
/// indent.
fn paragraph(lines: &[&str], start: usize, of: fn(&str) -> Option<Prose<'_>>) -> (usize, usize) {
    let first = of(lines[start]).expect("a line of prose");
    let hanging = match marker(first.text) {
        0 => first.text.len() - first.text.trim_start().len(),
        mark => mark,
    };
    let continues = |line: &str| {
        of(line).is_some_and(|next| {
            next.prefix == first.prefix
                && is_plain(next.text)
                && marker(next.text) == 0
                && next.text.len() - next.text.trim_start().len() == hanging
        })
    };
    let more = lines[start + 1..].iter().take_while(|line| continues(line)).count();
    (start + 1 + more, hanging)
}

/// Returns a text with every paragraph wrapped that has a longer line.
fn wrapped(text: &str, of: fn(&str) -> Option<Prose<'_>>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out: Vec<String> = Vec::new();
    let (mut at, mut is_code) = (0, false);
    while at < lines.len() {
        let prose = of(lines[at]);
        let is_fence = prose.as_ref().is_some_and(|prose| prose.text.trim_start().starts_with("```"));
        is_code = prose.is_some() && (is_code != is_fence);
        // Four blanks at the start of a line are code in Markdown, unless a list goes on.
        let is_text = prose.as_ref().is_some_and(|prose| is_plain(prose.text) && !prose.text.starts_with("    "));
        if is_code || is_fence || !is_text {
            out.push(lines[at].to_owned());
            at += 1;
            continue;
        }
        let (end, hanging) = paragraph(&lines, at, of);
        let parts = &lines[at..end];
        let is_short = parts.iter().all(|line| line.chars().count() <= WIDTH);
        let Some(first) = prose.filter(|_| !is_short) else {
            out.extend(parts.iter().map(|&line| line.to_owned()));
            at = end;
            continue;
        };
        let text: Vec<&str> = parts.iter().map(|line| of(line).expect("prose").text.trim()).collect();
        let text = text.join(" ");
        let mark = &first.text[..marker(first.text).max(hanging).min(first.text.len())];
        let others = format!("{}{}", first.prefix, " ".repeat(hanging));
        let body = text.strip_prefix(mark.trim_start()).unwrap_or(&text);
        out.extend(wrap(&words(body), &format!("{}{mark}", first.prefix), &others));
        at = end;
    }
    out.join("\n") + if text.ends_with('\n') { "\n" } else { "" }
}

/// Returns Markdown with its paragraphs wrapped.
pub(crate) fn wrapped_markdown(text: &str) -> String {
    wrapped(text, of_markdown)
}

/// Looks for longer lines, once in a process, and returns the first of each file. With
/// `CACHALOT_WRITE_DOCS` in the environment, wraps them and returns none. A test that writes
/// numbers of lines calls it first, because wrapping moves lines.
pub(crate) fn wrap_all() -> &'static [String] {
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let writes = std::env::var_os("CACHALOT_WRITE_DOCS").is_some();
        let rust = sources::below("").map(|(path, text)| (path, wrapped(&text, of_rust), text));
        let files =
            rust.chain(sources::texts("", &["md"]).map(|(path, text)| (path, wrapped(&text, of_markdown), text)));
        let mut long = Vec::new();
        for (path, wrapped, text) in files.filter(|(_, wrapped, text)| wrapped != text) {
            if PAST.iter().any(|past| path.starts_with(past)) {
                continue;
            }
            if writes {
                std::fs::write(Path::new(ROOT).join(&path), wrapped).expect("the file can be written");
            } else {
                let line = wrapped.lines().zip(text.lines()).position(|(new, old)| new != old).unwrap_or(0);
                long.push(format!("{}:{}", path.display(), line + 1));
            }
        }
        long
    })
}

#[test]
fn paragraphs_have_lines_of_at_most_100_columns() {
    let long = wrap_all();
    assert!(long.is_empty(), "lines of more than {WIDTH} columns; CACHALOT_WRITE_DOCS=1 wraps:\n{}", long.join("\n"));
}

#[test]
fn a_paragraph_is_wrapped_and_the_rest_stays() {
    let long = "word ".repeat(25);
    let (head, tail) = ("word ".repeat(19), "word ".repeat(6));
    let text =
        format!("fn f() {{\n    /// {long}\n    /// `a b`\n    ///\n    /// ```\n    /// {long}\n    /// ```\n}}\n");
    let new = wrapped(&text, of_rust);
    let first = format!("    /// {}", head.trim());
    assert!(new.contains(&format!("{}\n", &first[..first.len() - 5].trim_end())), "{new}");
    assert!(new.contains(&format!("    /// ```\n    /// {long}\n    /// ```\n}}\n")), "code stays: {new}");
    assert_eq!(new.split_whitespace().filter(|word| *word == "word").count(), 50);
    let list = wrapped(&format!("* {long}\n  end\n\n| {long} |\n"), of_markdown);
    assert_eq!(list, format!("* {}\n  {}end\n\n| {long} |\n", head.trim(), tail));
}
