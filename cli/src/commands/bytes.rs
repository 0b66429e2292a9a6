//! Amounts of memory as a person writes and reads them.

/// The suffixes, with the shift each stands for.
const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Parses a number of bytes: digits, and one of the suffixes `KiB`, `MiB`, `GiB` and `TiB` if wanted.
///
/// # Errors
/// What is accepted, if the text is anything else or the number needs more than 60 bits.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a number of bytes below 1 EiB, such as 9663676416, 512MiB or 9GiB");
    let (digits, shift) = UNITS
        .iter()
        .find_map(|&(suffix, shift)| Some((text.strip_suffix(suffix)?.trim_end(), shift)))
        .unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes < 1 << 60).ok_or_else(wrong)
}

/// Writes a number of bytes with the largest unit that it reaches, to three figures or more.
pub(crate) fn show(bytes: u64) -> String {
    match UNITS.iter().rev().find(|&&(_, shift)| bytes >> shift > 0) {
        Some(&(suffix, shift)) => format!("{:.2} {suffix}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, show};

    #[test]
    fn suffixes_are_powers_of_two() {
        assert_eq!(parse("9663676416"), Ok(9_663_676_416));
        assert_eq!(parse("9GiB"), Ok(9_663_676_416));
        assert_eq!(parse("9 GiB"), Ok(9_663_676_416));
        assert_eq!(parse("512MiB"), Ok(512 << 20));
        assert_eq!(parse("3KiB"), Ok(3072));
        assert_eq!(parse("1TiB"), Ok(1 << 40));
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for text in ["", "GiB", "-1", "1.5GiB", "1GB", "0x10", "1152921504606846976", "99999999999TiB", "1 2"] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(text) && error.contains("9GiB"), "{error}");
        }
    }

    #[test]
    fn the_largest_reached_unit_is_shown() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.50 KiB");
        assert_eq!(show(9_663_676_416), "9.00 GiB");
    }
}
