//! How a moment of a history is written, for every command.

/// A moment of a history. As the start of a range it is before what it names, and as the end after
/// it, so that `step:3` to `step:3` is the whole step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// After a number of events: `1200`.
    Event(u64),
    /// Microseconds after the first event: `3.5s`, `120ms`.
    Time(i64),
    /// A range that the program or a profiler has marked: `annotation:NAME`, and with `#2` at the
    /// end its second occurrence.
    Annotation(String),
    /// A step of the program: `step:3`.
    Step(u64),
}

/// The units of a time, in microseconds. A unit that ends like another one comes first.
const UNITS: [(&str, f64); 6] = [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("min", 6e7), ("s", 1e6), ("h", 3.6e9)];

/// Most microseconds of a time: 100 years.
const MOST_US: f64 = 3.2e15;

impl Moment {
    /// Reads a moment.
    ///
    /// # Errors
    /// A text with the accepted forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no moment of a history: expected a number of events (1200), a time after the first event \
                 (3.5s, 120ms), annotation:NAME, annotation:NAME#2 for its second occurrence, or step:3"
            )
        };
        if let Some(name) = text.strip_prefix("annotation:") {
            return if name.is_empty() { Err(wrong()) } else { Ok(Self::Annotation(name.to_owned())) };
        }
        // The commands print 1,200.
        let whole = |text: &str| text.replace(',', "").parse().ok();
        if let Some(number) = text.strip_prefix("step:") {
            return whole(number).map(Self::Step).ok_or_else(wrong);
        }
        if let Some(number) = whole(text) {
            return Ok(Self::Event(number));
        }
        let (digits, us) =
            UNITS.iter().find_map(|&(unit, us)| Some((text.strip_suffix(unit)?, us))).ok_or_else(wrong)?;
        let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
        let time: Option<f64> = digits.trim_end().parse().ok().filter(|_| is_number);
        let time = time.map(|time| (time * us).round()).filter(|&time| time <= MOST_US);
        time.map(|time| Self::Time(time as i64)).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event(number) => write!(f, "{number}"),
            Self::Time(us) => f.write_str(&duration(*us)),
            Self::Annotation(name) => write!(f, "annotation:{name}"),
            Self::Step(number) => write!(f, "step:{number}"),
        }
    }
}

/// Formats a duration so that it can be read again, with all of its digits.
pub(super) fn duration(us: i64) -> String {
    let (unit, size) = match us {
        _ if us >= 1_000_000 => ("s", 1_000_000),
        _ if us >= 1000 => ("ms", 1000),
        _ => return format!("{us}us"),
    };
    let part = format!("{:06}", us % size * (1_000_000 / size));
    let part = part.trim_end_matches('0');
    if part.is_empty() { format!("{}{unit}", us / size) } else { format!("{}.{part}{unit}", us / size) }
}
