//! Parses amounts of memory, and prints amounts for people.

/// The binary suffixes with their shifts.
const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// The same powers of 1024, as systemd, Docker and Slurm write them.
const SHORT_UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

/// The decimal suffixes.
const DECIMAL_UNITS: [(&str, u64); 4] =
    [("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

/// Parses a number of bytes: digits with an optional suffix, `KiB`, `MiB`, `GiB`, `TiB`, or decimal
/// `kB`, `MB`, `GB`, `TB`. `K`, `M`, `G` and `T` are powers of 1024.
///
/// # Errors
/// A description of the accepted forms, for any other text and for a number of more than 60 bits.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        let accepted = "a whole number with KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024), kB, MB, GB, TB (powers of 1000) or nothing";
        format!(
            "`{text}` is not a number of bytes below 1 EiB, such as 9663676416, 512MiB, 9GiB or 5GB: expected {accepted}"
        )
    };
    let mut units = UNITS.iter().chain(&SHORT_UNITS).map(|&(suffix, shift)| (suffix, 1 << shift)).chain(DECIMAL_UNITS);
    let (digits, unit) =
        units.find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), unit))).unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|&bytes| bytes < 1 << 60).ok_or_else(wrong)
}

/// Formats a difference of two numbers of bytes, and the share of `from`: `−10.56 GiB −67.1 %`.
pub(crate) fn difference(from: u64, to: u64) -> String {
    let sign = if to < from { '−' } else { '+' };
    if to == from {
        return "0 B".to_owned();
    }
    let apart = to.abs_diff(from);
    let share = if from == 0 { String::new() } else { format!(" {sign}{:.1} %", apart as f64 / from as f64 * 100.0) };
    format!("{sign}{}{share}", show(apart))
}

/// Formats a whole number with a comma after each thousand.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

/// Formats a count with its noun.
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration for people.
pub(crate) fn duration(us: i64) -> String {
    match us {
        _ if us >= 120_000_000 => format!("{:.1} min", us as f64 / 6e7),
        _ if us >= 1_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if us >= 1000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{us} µs"),
    }
}

/// Formats a number of bytes in the largest unit not above the number, with three figures or more.
pub(crate) fn show(bytes: u64) -> String {
    match UNITS.iter().rev().find(|&&(_, shift)| bytes >> shift > 0) {
        Some(&(suffix, shift)) => format!("{:.2} {suffix}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{difference, duration, grouped, parse, show};

    #[test]
    fn suffixes_are_powers_of_1024_or_1000() {
        assert_eq!(parse("9663676416"), Ok(9_663_676_416));
        assert_eq!(parse("9GiB"), Ok(9_663_676_416));
        assert_eq!(parse("9 GiB"), Ok(9_663_676_416));
        assert_eq!(parse("512MiB"), Ok(512 << 20));
        assert_eq!(parse("3KiB"), Ok(3072));
        assert_eq!(parse("1TiB"), Ok(1 << 40));
        assert_eq!(parse("80G"), Ok(80 << 30));
        assert_eq!([parse("7K"), parse("12 M"), parse("1T")], [Ok(7 << 10), Ok(12 << 20), Ok(1 << 40)]);
        assert_eq!(parse("5GB"), Ok(5_000_000_000));
        assert_eq!(parse("5 MB"), Ok(5_000_000));
        assert_eq!(parse("7kB"), Ok(7000));
        assert_eq!(parse("1TB"), Ok(1_000_000_000_000));
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for text in ["", "GiB", "-1", "1.5GiB", "1gb", "0x10", "1152921504606846976", "99999999999TiB", "1 2"] {
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

    #[test]
    fn a_difference_has_its_sign_and_its_share() {
        assert_eq!(difference(4 << 30, 1 << 30), "−3.00 GiB −75.0 %");
        assert_eq!(difference(1 << 30, 5 << 30), "+4.00 GiB +400.0 %");
        assert_eq!(difference(7, 7), "0 B");
        assert_eq!(difference(0, 512), "+512 B");
    }

    #[test]
    fn a_duration_has_the_unit_that_people_read() {
        let found = [0, 30, 1500, 2_500_000, 150_000_000].map(duration);
        assert_eq!(found, ["0 µs", "30 µs", "1.5 ms", "2.5 s", "2.5 min"]);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1000, 1_048_576].map(grouped), ["0", "999", "1,000", "1,048,576"]);
    }
}
