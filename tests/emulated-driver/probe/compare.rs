//! Comparing answers with those written down.
//!
//! A file of expected answers has the lines of a run. A line may end in a remark in brackets; `[real: x]` is a second
//! answer that agrees as well. Empty lines and lines that begin with `#` are passed over.

use std::collections::{BTreeMap, BTreeSet};

/// What begins the remark with a second answer.
const SECOND: &str = "real: ";

/// The answers in a text, by question: the first, and the second if there is one.
fn answers(text: &str) -> BTreeMap<&str, (&str, Option<&str>)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line| {
        let (question, answer): (&str, &str) = str::split_once(line, " = ")?;
        let (answer, remark) = answer.split_once("  [").unwrap_or((answer, ""));
        let second = remark.trim_end_matches(']').strip_prefix(SECOND);
        Some((question, (answer.trim(), second)))
    };
    lines.filter_map(split).collect()
}

/// What differs, one line a question.
pub(crate) fn differences(expected: &str, found: &str) -> Vec<String> {
    let (expected, found) = (answers(expected), answers(found));
    let questions: BTreeSet<&str> = expected.keys().chain(found.keys()).copied().collect();
    let different = questions.into_iter().filter_map(|question| {
        let (first, second) = expected.get(question).copied().unwrap_or(("nothing", None));
        let (answer, _) = found.get(question).copied().unwrap_or(("nothing", None));
        let agrees = answer == first || second == Some(answer);
        (!agrees).then(|| format!("{question}: expected {first}, answered {answer}"))
    });
    different.collect()
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn remarks_are_ignored_and_differences_told() {
        let expected = "# a remark\na = 1  [unconfirmed]\nb = 2 x\n\nc = 3\n";
        assert_eq!(differences(expected, "a = 1\nb = 2 x\n# d\nc = 3"), Vec::<String>::new());
        let wanted =
            ["a: expected 1, answered 2", "c: expected 3, answered nothing", "d: expected nothing, answered 4"];
        assert_eq!(differences(expected, "a = 2\nb = 2 x\nd = 4"), wanted);
    }

    #[test]
    fn a_second_answer_agrees_too() {
        let expected = "a = yes  [real: no]\n";
        assert_eq!((differences(expected, "a = yes").len(), differences(expected, "a = no").len()), (0, 0));
        assert_eq!(differences(expected, "a = 7"), ["a: expected yes, answered 7"]);
    }
}
