//! The exported driver functions: name, first driver version, and conditions of each. The rows are
//! in [`table`](super::table).

use super::table::functions;

/// Condition of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requires {
    /// Nothing: callable before `cuInit`.
    Nothing,
    /// A successful `cuInit`.
    Init,
    /// A context current to the calling thread, alive and without a sticky error.
    Context,
}

/// The effect of a function on captures in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InCapture {
    /// No effect, or an effect that depends on the stream or event and is decided elsewhere.
    Safe,
    /// "Potentially unsafe" in CUDA's words: refused, and breaks every forbidding capture.
    Unsafe,
}

/// The endings of the variants whose stream 0 is the calling thread's own stream.
const PER_THREAD: [&str; 2] = ["_ptsz", "_ptds"];
/// The first version with such variants. A function that came later has had the variant from its
/// start.
const PER_THREAD_SINCE: i32 = 7000;

/// Declares the functions of the rows.
macro_rules! declare {
    ($($kind:ident {
        $($name:ident $(, $own:ident)?: $version:literal, $requires:ident, $capture:ident;)*
    })*) => {
        /// A function of the driver API.
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the driver's own names")]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(crate) enum Function { $($($name, $($own,)?)*)* }

        /// All functions, in the order of their declaration.
        pub(crate) const FUNCTIONS: &[Function] = &[$($(Function::$name, $(Function::$own,)?)*)*];

        impl Function {
            /// Returns the exported symbol.
            pub(crate) fn name(self) -> &'static str {
                match self { $($(
                    Self::$name => stringify!($name),
                    $(Self::$own => stringify!($own),)?
                )*)* }
            }

            /// Returns the first driver version with the symbol: 1000 × major + 10 × minor.
            pub(crate) fn since(self) -> i32 {
                match self { $($(
                    Self::$name => $version,
                    $(Self::$own => PER_THREAD_SINCE.max($version),)?
                )*)* }
            }

            /// Returns the condition of the function.
            pub(crate) fn requires(self) -> Requires {
                match self { $($(Self::$name $(| Self::$own)? => Requires::$requires,)*)* }
            }

            /// Returns the effect of the function on captures in progress.
            pub(crate) fn in_capture(self) -> InCapture {
                match self { $($(Self::$name $(| Self::$own)? => InCapture::$capture,)*)* }
            }
        }
    };
}
functions!(declare);

impl Function {
    /// Returns the function with an exported symbol.
    pub(crate) fn named(name: &str) -> Option<Self> {
        FUNCTIONS.iter().copied().find(|function| function.name() == name)
    }

    /// Returns whether stream 0 is the calling thread's own stream.
    pub(crate) fn is_per_thread(self) -> bool {
        PER_THREAD.iter().any(|ending| self.name().ends_with(ending))
    }

    /// Returns the name without endings, as used by `cuGetProcAddress`.
    pub(crate) fn base_name(self) -> &'static str {
        let name = self.name();
        let name = PER_THREAD.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
        name.rsplit_once("_v").filter(|(_, digits)| digits.parse::<u32>().is_ok()).map_or(name, |(base, _)| base)
    }
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS, Function};

    #[test]
    fn symbols_are_found_by_name_and_base_names_lose_their_version() {
        assert!(FUNCTIONS.iter().all(|&function| Function::named(function.name()) == Some(function)));
        assert_eq!(Function::cuMemAlloc_v2.base_name(), "cuMemAlloc");
        assert_eq!(Function::cuMemcpyHtoD_v2_ptds.base_name(), "cuMemcpyHtoD");
        assert_eq!(Function::cuStreamGetId.base_name(), "cuStreamGetId");
        assert_eq!(Function::named("cuMemAlloc"), None);
    }

    #[test]
    fn functions_of_one_name_are_in_the_order_of_their_versions() {
        for (index, function) in FUNCTIONS.iter().enumerate() {
            let same = |other: &&Function| {
                (other.base_name(), other.is_per_thread()) == (function.base_name(), function.is_per_thread())
            };
            let mut earlier = FUNCTIONS[..index].iter().filter(same);
            assert!(earlier.all(|other| other.since() < function.since()), "{}", function.name());
        }
    }
}
