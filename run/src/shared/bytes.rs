//! Numbers of bytes in words.

/// Formats bytes in the largest unit with a number of at least 1: `1.5 GiB`, `512 B`.
pub(crate) fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::show;

    #[test]
    fn bytes_have_a_unit_that_leaves_at_least_one() {
        let shown = [0, 1023, 1024, 1536, 40 << 30, u64::MAX].map(show);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "40 GiB", "16 EiB"]);
    }
}
