//! A stack as lines of text.

use cachalot_snapshot::{Frame, Stack};
use serde::Serialize;

/// The frames of a stack as lines, the innermost first. Empty without a recorded stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StackLines {
    /// Every frame, as `file:line function`.
    pub stack: Vec<String>,
    /// The frames that a reader looks for ([`Stack::shown`]), in the form for people.
    pub shown: Vec<String>,
}

impl StackLines {
    /// Returns the lines of a stack.
    pub(crate) fn of(stack: &Stack) -> Self {
        let line = |frame: &Frame| format!("{}:{} {}", frame.filename, frame.line, frame.name);
        Self {
            stack: stack.frames().iter().map(|frame| line(frame)).collect(),
            shown: stack.shown().into_iter().map(Frame::label).collect(),
        }
    }

    /// Returns the lines without the numbers of lines in files.
    pub(crate) fn without_numbers(&self) -> Self {
        let of = |lines: &[String]| lines.iter().map(|line| without_number(line)).collect();
        Self { stack: of(&self.stack), shown: of(&self.shown) }
    }
}

/// Returns a frame `file:line function` without the line.
fn without_number(frame: &str) -> String {
    let is_line = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        (digits > 0 && rest[digits..].starts_with(' ')).then_some(digits)
    };
    let found = frame.match_indices(':').find_map(|(at, _)| Some((at, is_line(&frame[at + 1..])?)));
    found.map_or_else(|| frame.to_owned(), |(at, digits)| format!("{}{}", &frame[..at], &frame[at + 1 + digits..]))
}

#[cfg(test)]
mod tests {
    use super::without_number;

    #[test]
    fn a_frame_loses_its_line_and_nothing_else() {
        assert_eq!(without_number("a/b.py:12 step"), "a/b.py step");
        assert_eq!(without_number("x.cpp:0 at::native::empty(long, 3)"), "x.cpp at::native::empty(long, 3)");
        assert_eq!(without_number("?? at::empty"), "?? at::empty");
        assert_eq!(without_number("c:/d e.py:7 <lambda>"), "c:/d e.py <lambda>");
    }
}
