//! Values of protocol 0, which are lines of text.

/// A number on a line.
pub(super) enum Number {
    Bool(bool),
    Int(i128),
}

/// Reads a whole number: of the operation INT, which writes truth values as `00` and `01`, or of
/// LONG, with an `L` at the end.
pub(super) fn number(line: &[u8]) -> Option<Number> {
    Some(match line {
        b"00" => Number::Bool(false),
        b"01" => Number::Bool(true),
        _ => Number::Int(text(line)?.trim_end_matches('L').parse().ok()?),
    })
}

/// Reads a number with a point.
pub(super) fn float(line: &[u8]) -> Option<f64> {
    text(line)?.parse().ok()
}

fn text(line: &[u8]) -> Option<&str> {
    str::from_utf8(line).ok().map(str::trim)
}

/// Reads a text of the operation UNICODE: characters below 256, and others as `\u` and `\U`.
pub(super) fn unicode(line: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match after.first().filter(|_| byte == b'\\') {
            Some(b'u') => code(after, 4),
            Some(b'U') => code(after, 8),
            _ => None,
        };
        let (read, count) = escaped.unwrap_or((char::from(byte), 0));
        text.push(read);
        rest = after.get(count..).unwrap_or_default();
    }
    text
}

/// Reads the character with `digits` hexadecimal digits after the letter. Also returns the number
/// of bytes.
fn code(escape: &[u8], digits: usize) -> Option<(char, usize)> {
    let number = u32::from_str_radix(str::from_utf8(escape.get(1..=digits)?).ok()?, 16).ok()?;
    Some((char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER), digits + 1))
}

/// Reads a text of the operation STRING: in quotation marks, with Python's escapes.
pub(super) fn quoted(line: &[u8]) -> Option<String> {
    let [open @ (b'\'' | b'"'), inner @ .., close] = line else { return None };
    if open != close {
        return None;
    }
    let mut text = String::new();
    let mut rest = inner;
    while let Some((&byte, after)) = rest.split_first() {
        let (read, count) = match (byte, after.first()) {
            (b'\\', Some(b'x')) => code(after, 2)?,
            (b'\\', Some(b'n')) => ('\n', 1),
            (b'\\', Some(b'r')) => ('\r', 1),
            (b'\\', Some(b't')) => ('\t', 1),
            (b'\\', Some(&other)) => (char::from(other), 1),
            _ => (char::from(byte), 0),
        };
        text.push(read);
        rest = &after[count..];
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::{Number, float, number, quoted, unicode};

    #[test]
    fn values_are_lines() {
        let int = |line: &[u8]| match number(line) {
            Some(Number::Int(value)) => Some(value),
            _ => None,
        };
        assert!(matches!(number(b"01"), Some(Number::Bool(true))));
        assert_eq!((int(b"-7"), int(b"18446744073709551615L"), int(b"x")), (Some(-7), Some(u64::MAX.into()), None));
        assert_eq!((float(b"1.5"), float(b"?")), (Some(1.5), None));
        assert_eq!(unicode(b"caf\xe9 \\u00e4 \\ud800 \\U0001f600 \\u12"), "caf\u{e9} \u{e4} \u{fffd} \u{1f600} \\u12");
        assert_eq!(quoted(b"'a\\x41\\n\\''").as_deref(), Some("aA\n'"));
        assert_eq!((quoted(b"'a"), quoted(b"'"), quoted(b"'a\\x4'")), (None, None, None));
    }
}
