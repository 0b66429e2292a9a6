//! The gaps of a buffer as `MiniMalloc`'s tables write them.

use cachalot_planner::gaps::Gap;

/// Reads `FROM-TO` or `FROM-TO@LOW:HIGH`. `last` is 1 where `TO` is the last step, and 0 where it
/// is the step after.
pub(super) fn parse(text: &str, last: u64) -> Option<Gap> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    let pair = |text: &str, between| {
        let (one, other) = text.split_once(between)?;
        Some((number(one)?, number(other)?))
    };
    let (life, window) = text.split_once('@').map_or((text, None), |(life, window)| (life, Some(window)));
    let (from, to): (u64, u64) = pair(life, '-')?;
    let (low, high) = window.map_or(Some((0, 0)), |window| pair(window, ':'))?;
    let life = from..to.checked_add(last)?;
    (from < life.end && low <= high).then_some(Gap { life, window: if low < high { low..high } else { 0..0 } })
}

#[cfg(test)]
mod tests {
    use super::super::solve::{self, FitAnswer, Method};
    use super::super::{Reading, Source, load_bytes};
    use super::{Gap, parse};
    use cachalot_planner::verify;
    use std::collections::BTreeMap;
    use std::fmt::Write as _;
    use std::path::Path;
    use std::time::Duration;

    /// A buffer of a table: the life, the size, and the gaps with their windows.
    struct Line {
        life: [u64; 2],
        size: u64,
        gaps: Vec<Gap>,
    }

    impl Line {
        /// Returns the bytes in use at a step, from the start of the buffer.
        fn in_use(&self, step: u64) -> std::ops::Range<u64> {
            let gap = self.gaps.iter().find(|gap| gap.life.contains(&step));
            match gap {
                _ if step < self.life[0] || step >= self.life[1] => 0..0,
                None => 0..self.size,
                Some(gap) => gap.window.clone(),
            }
        }
    }

    /// Returns whether no step has a byte in use twice.
    fn is_apart(lines: &[Line], offsets: &[u64]) -> bool {
        (0..8).all(|step| {
            let at: Vec<_> = lines.iter().zip(offsets).map(|(line, offset)| (line.in_use(step), offset)).collect();
            let pairs =
                at.iter().enumerate().flat_map(|(number, one)| at[..number].iter().map(move |other| (one, other)));
            pairs.clone().all(|((one, low), (other, high))| {
                let apart =
                    low.saturating_add(one.end) <= **high + other.start || *high + other.end <= **low + one.start;
                one.is_empty() || other.is_empty() || apart
            })
        })
    }

    /// Returns the least peak of all offsets, by trying them.
    fn least(lines: &[Line]) -> u64 {
        let total: u64 = lines.iter().map(|line| line.size).sum();
        let mut best = total;
        let mut offsets = vec![0; lines.len()];
        loop {
            let peak = lines.iter().zip(&offsets).map(|(line, offset)| line.size + offset).max().unwrap_or(0);
            if peak < best && is_apart(lines, &offsets) {
                best = peak;
            }
            // The next offsets, as digits of a number.
            let Some(at) = offsets.iter().position(|&offset| offset < total) else { return best };
            offsets[..at].fill(0);
            offsets[at] += 1;
        }
    }

    fn table(lines: &[Line]) -> String {
        let mut text = "id,lower,upper,size,gaps\n".to_owned();
        for (number, Line { life, size, gaps }) in lines.iter().enumerate() {
            let gaps = gaps.iter().map(|Gap { life, window }| {
                let window =
                    if window.is_empty() { String::new() } else { format!("@{}:{}", window.start, window.end) };
                format!("{}-{}{window}", life.start, life.end)
            });
            let gaps = gaps.collect::<Vec<_>>().join(" ");
            let _ = writeln!(text, "{number},{},{},{size},{gaps}", life[0], life[1]);
        }
        text
    }

    /// A buffer of a small table, which has a time with all bytes.
    fn line(random: &mut fastrand::Rng) -> Line {
        loop {
            let start = random.u64(0..5);
            let (life, size) = ([start, random.u64(start + 1..=8)], random.u64(1..=3));
            let mut gaps = Vec::new();
            let mut at = start;
            while at < life[1] && random.u8(0..3) > 0 {
                let from = random.u64(at..life[1]);
                at = random.u64(from + 1..=life[1]);
                let low = random.u64(0..=size);
                let window = if random.bool() { low..random.u64(low..=size) } else { 0..0 };
                gaps.push(Gap { life: from..at, window: if window.is_empty() { 0..0 } else { window } });
            }
            let found = Line { life, size, gaps };
            if (life[0]..life[1]).any(|step| found.in_use(step) == (0..size)) {
                return found;
            }
        }
    }

    /// Plans hold what tables ask for, and say nothing about a peak that a try of all offsets
    /// contradicts.
    #[test]
    fn plans_with_gaps_agree_with_a_try_of_every_offset() {
        let mut found: BTreeMap<&str, u32> = BTreeMap::new();
        for seed in 0..1000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let lines: Vec<Line> = (0..random.usize(2..=4)).map(|_| line(&mut random)).collect();
            let text = table(&lines);
            let file = Path::new("table.csv");
            let task = load_bytes(file, text.as_bytes(), &Reading::default()).expect(&text).remove(0);
            let mut solved =
                solve::solve(&task.problem, Method::Exact, Some(Duration::from_secs(60)), &mut |_, _, _| ());
            if let Some(held) = &task.held {
                solved.relax(&held.relaxed, None, None);
            }
            let plan = solved.plan.as_ref().expect("a plan");
            verify(&task.problem, plan).unwrap_or_else(|fault| panic!("seed {seed}: {fault}\n{text}"));
            let rows = task.rows(plan);
            let offsets: Vec<u64> = rows[1..].iter().map(|row| row[5].parse().expect("a number")).collect();
            assert!(is_apart(&lines, &offsets), "seed {seed}: {offsets:?}\n{text}");
            let peak = lines.iter().zip(&offsets).map(|(line, offset)| line.size + offset).max();
            assert_eq!(peak, Some(plan.peak), "seed {seed}\n{text}");
            let least = least(&lines);
            assert!(solved.lower_bound <= least && least <= plan.peak, "seed {seed}: {solved:?}, {least}\n{text}");
            if solved.optimal {
                assert_eq!(plan.peak, least, "seed {seed}\n{text}");
            }
            let kind = match (task.held.is_some(), plan.peak == least) {
                (true, _) => "held",
                (false, true) => "least",
                (false, false) => "above",
            };
            *found.entry(kind).or_default() += 1;
            let (mut solved, answer) = solve::fits(&task.problem, least - 1, Method::Exact, None, &mut |_, _, _| ());
            let answer = match &task.held {
                Some(held) => solved.relax(&held.relaxed, Some(answer), Some(least - 1)),
                None => Some(answer),
            };
            assert_ne!(answer, Some(FitAnswer::Fits), "seed {seed}\n{text}");
            assert!(matches!(&task.source, Source::Table(_)) && task.buffers() == lines.len());
        }
        assert!(found["least"] > 600 && found["held"] > 50, "{found:?}");
    }

    #[test]
    fn a_gap_is_two_times_and_perhaps_two_bytes() {
        let gap = |from, to, low, high| Some(Gap { life: from..to, window: low..high });
        assert_eq!(parse("7-8", 0), gap(7, 8, 0, 0));
        assert_eq!(parse("7-7", 1), gap(7, 8, 0, 0));
        assert_eq!(parse("9-10@1:17", 0), gap(9, 10, 1, 17));
        assert_eq!(parse("9-10@4:4", 0), gap(9, 10, 0, 0));
        for wrong in
            ["", "7", "7-", "-8", "8-7", "7-7", "7-8@", "7-8@4", "7-8@4:3", "7-8-9", "+7-8", "7-99999999999999999999"]
        {
            assert_eq!(parse(wrong, 0), None, "{wrong}");
        }
    }
}
