//! Phrases that a reader stumbles over, with what to say in their place.

use super::sources::texts;

/// A phrase, and what says the same in the words of the field.
const PHRASES: [(&str, &str); 21] = [
    ("ask after", "poll"),
    ("asked after", "polled"),
    ("asking after", "polling"),
    ("asks after", "polls"),
    ("an equal", "the same"),
    ("behind an event", "after an event"),
    ("for ever", "forever"),
    ("gives way", "gives memory back, yields"),
    ("in force", "active"),
    ("into force", "active"),
    ("ordered behind", "ordered after"),
    ("recorded behind", "recorded after"),
    ("want of", "because there is no, for lack of"),
    ("had better been", "was released too early"),
    ("had better be", "should be"),
    ("the begin", "the start, the head of the list"),
    ("a begin", "a start"),
    ("a further", "another"),
    ("further processes", "other processes"),
    ("further streams", "other streams"),
    ("further threads", "other threads"),
];

/// Files with text for readers.
const TEXTS: [&str; 9] = ["rs", "md", "h", "hpp", "py", "c", "cpp", "cu", "sh"];

/// Returns the words of a line in lower case, with a blank on each side. A name with underscores is
/// one word.
fn words(line: &str) -> String {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.fold(String::from(" "), |text, word| text + &word.to_lowercase() + " ")
}

/// Returns the phrases in a text: number of the line, phrase, and what to say.
fn found(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = words(line);
        let phrases = PHRASES.iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} ")));
        found.extend(phrases.map(|&(phrase, plain)| (number + 1, phrase, plain)));
    }
    found
}

#[test]
fn no_text_has_a_phrase_that_readers_stumble_over() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (path, text) in texts("", &TEXTS) {
        // The results of runs stay as they were written.
        if path.starts_with("tests/results") || path.ends_with("phrases.rs") {
            continue;
        }
        count += 1;
        wrong.extend(
            found(&text)
                .into_iter()
                .map(|(line, phrase, plain)| format!("{}:{line}: \"{phrase}\": say \"{plain}\"", path.display())),
        );
    }
    assert!(count > 500, "{count} files were read");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn phrases_are_found_as_whole_words() {
    let text = "The beginning of it.\nAt the\nbegin.\n// It stays there for\n/// It asks, after that, For  Ever: at the begin, forever.";
    assert_eq!(
        found(text),
        [(5, "asks after", "polls"), (5, "for ever", "forever"), (5, "the begin", "the start, the head of the list")]
    );
}
