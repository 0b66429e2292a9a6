//! The option `--spill`: memory of the host for what the device has no memory for.

use crate::commands::bytes;
use cachalot_core::config::Reserve;
use core::fmt::Display;

/// The settings that `--spill` needs, except under `policy:stitched`, which always has pages.
/// Settings that follow win, so a program's own may contradict.
const NEEDED: &str = "expandable_segments:True,";

/// The part of the host's free memory that `auto` takes, as a divisor: the program and others need
/// some of it, too.
const OF_FREE: u64 = 2;

/// How much memory of the host may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spill {
    /// Half of what the host and its control groups have free when the program starts.
    Auto,
    /// At most this many bytes.
    Bytes(u64),
}

impl Spill {
    /// Parses the value of the option.
    ///
    /// # Errors
    /// A description of the accepted forms.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "0" => Err("0 bytes serve nothing: leave the option out".to_owned()),
            _ => bytes::parse(text).map(Self::Bytes).map_err(|mistake| format!("{mistake}, or `auto`")),
        }
    }

    /// Returns the settings of `text` with the memory of the host.
    ///
    /// # Errors
    /// What contradicts the option.
    pub(super) fn settings(self, text: &str) -> Result<String, String> {
        let refused = |reason: &dyn Display| format!("--spill: {reason}");
        let own = cachalot_policies::parse(text).ok();
        if own.as_ref().is_some_and(|config| config.spill().is_some()) {
            return Err(refused(&"the settings have a `spill` of their own: name one of both"));
        }
        let needed = if own.is_some_and(|config| config.policy_name() == "stitched") { "" } else { NEEDED };
        let separator = if text.is_empty() { "" } else { "," };
        let gibibytes = Reserve::Gibibytes(self.bytes()? as f64 / (1_u64 << 30) as f64);
        let settings = format!("{needed}spill:{gibibytes}{separator}{text}");
        let config = cachalot_policies::parse(&settings).map_err(|mistake| refused(&mistake))?;
        let unused = config.notes(false).find(|note| note.key == "spill");
        unused.map_or(Ok(settings), |note| Err(refused(&note)))
    }

    /// Returns the most bytes of the host.
    fn bytes(self) -> Result<u64, String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Auto => {
                let free = cachalot_run::memory_of_system().map_or(0, |(_, free)| free / OF_FREE);
                if free > 0 {
                    Ok(free)
                } else {
                    Err("--spill auto: the system does not tell its free memory".to_owned())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spill;
    use cachalot_core::config::Reserve;

    #[test]
    fn the_settings_get_what_the_option_needs_and_keep_the_rest() {
        let settings = |text| Spill::Bytes(3 << 29).settings(text);
        let parsed = |text| cachalot_policies::parse(&settings(text).unwrap()).unwrap();
        for text in ["", "roundup_power2_divisions:4", "policy:bfc"] {
            let config = parsed(text);
            assert!(config.expandable_segments(), "{text}");
            assert_eq!(config.spill(), Some(Reserve::Gibibytes(1.5)));
        }
        assert_eq!(parsed("policy:bfc").policy_name(), "bfc");
        let stitched = parsed("policy:stitched");
        assert_eq!((stitched.policy_name(), stitched.spill()), ("stitched", Some(Reserve::Gibibytes(1.5))));
        // Bytes that are no round number of GiB stay the same number.
        let odd = Spill::Bytes((1 << 30) + 2).settings("").unwrap();
        let spill = cachalot_policies::parse(&odd).unwrap().spill().unwrap();
        assert_eq!(spill.bytes(0), (1 << 30) + 2);
    }

    #[test]
    fn what_contradicts_is_refused_with_the_reason() {
        for (text, reason) in [
            ("expandable_segments:False", "spill has no effect"),
            ("spill:2G,expandable_segments:True", "name one of both"),
            ("policy:direct", "spill"),
            ("policy:none", "none"),
        ] {
            let refused = Spill::Bytes(1 << 30).settings(text).expect_err(text);
            assert!(refused.starts_with("--spill: ") && refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn the_value_is_a_number_of_bytes_or_auto() {
        assert_eq!(Spill::parse("auto"), Ok(Spill::Auto));
        assert_eq!(Spill::parse("12GiB"), Ok(Spill::Bytes(12 << 30)));
        for text in ["0", "much", "0.5", ""] {
            assert!(Spill::parse(text).is_err(), "{text}");
        }
        assert!(Spill::Auto.bytes().is_ok_and(|bytes| bytes > 1 << 20));
    }
}
