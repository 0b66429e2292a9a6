//! A table of optional function pointers, filled by exactly versioned names.

use core::ffi::CStr;

/// One entry of a table, for messages.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The symbol in the driver's library.
    pub symbol: &'static CStr,
    /// Whether the table is of no use without the function. The documentation of each optional
    /// entry names the feature that is lost without it.
    pub required: bool,
}

/// Declares a table of functions of the driver, its filling by symbol, and a method for each.
///
/// A row is `required` or `optional`, the name of the method, and the symbol. `over` names a table
/// that the new one extends and dereferences to. The caller has the types of the arguments in
/// scope, and `CuResult`.
#[macro_export]
macro_rules! table {
    (
        $(#[$table_doc:meta])* pub struct $Table:ident $(over $Base:ident)? {
            $($(#[$doc:meta])* $need:ident $name:ident = $symbol:ident;)*
        }
    ) => {
        $(#[$table_doc])*
        #[derive(Clone, Copy, Default, Debug)]
        #[non_exhaustive]
        pub struct $Table {
            $(
                $(#[$doc])*
                pub $name: Option<$crate::function!($symbol => $crate::pointer {})>,
            )*
            $(
                /// The table that this one extends.
                base: $Base,
            )?
        }

        impl $Table {
            /// Every entry, in the table's order.
            pub const ENTRY_POINTS: &[$crate::EntryPoint] = &[$($crate::EntryPoint {
                symbol: $crate::symbol!($symbol),
                required: $crate::table_need!($need),
            },)*];

            /// Fills a table with the address that `lookup` returns for each symbol.
            ///
            /// # Safety
            /// An address that `lookup` returns for a symbol is the address of the driver's
            /// function with the symbol's name, or of a function with equal signature and
            /// behaviour. The function is callable as long as the table is used.
            pub unsafe fn fill(
                mut lookup: impl FnMut(&'static ::core::ffi::CStr) -> Option<::core::ptr::NonNull<::core::ffi::c_void>>,
            ) -> Self {
                Self {
                    $($name: lookup($crate::symbol!($symbol)).map(|address| {
                        // SAFETY: the caller vouches that the address belongs to a function with
                        // this signature. Both types have the size of one non-null address.
                        unsafe {
                            ::core::mem::transmute::<
                                ::core::ptr::NonNull<::core::ffi::c_void>,
                                $crate::function!($symbol => $crate::pointer {}),
                            >(address)
                        }
                    }),)*
                    $(
                        // SAFETY: as the caller vouches.
                        base: unsafe { $Base::fill(lookup) },
                    )?
                }
            }

            /// Lists the entries without a function.
            pub fn missing(&self) -> impl Iterator<Item = &'static $crate::EntryPoint> + use<> {
                let present = [$(self.$name.is_some(),)*];
                Self::ENTRY_POINTS.iter().zip(present).filter(|(_, present)| !present).map(|(entry, _)| entry)
            }

            $($crate::function! { $symbol => $crate::table_method { $(#[$doc])* $name } })*
        }

        $(
            impl ::core::ops::Deref for $Table {
                type Target = $Base;

                fn deref(&self) -> &$Base {
                    &self.base
                }
            }
        )?
    };
}

/// The type of a pointer to a function, for `function!`:
/// `function!(cuInit => pointer {})`. The caller has `CuResult` in scope.
#[macro_export]
macro_rules! pointer {
    ({} ($($argument:ident: $type:ty),*)) => { unsafe extern "C" fn($($type),*) -> CuResult };
}

/// The symbol of a function, as a constant for the loader.
#[macro_export]
macro_rules! symbol {
    ($symbol:ident) => {
        const {
            match ::core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(symbol) => symbol,
                Err(_) => panic!("a symbol without a zero inside"),
            }
        }
    };
}

/// Whether a table needs a function, by the keyword of the row.
#[doc(hidden)]
#[macro_export]
macro_rules! table_need {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

/// The method of a row: calls the function.
#[doc(hidden)]
#[macro_export]
macro_rules! table_method {
    ({ $(#[$doc:meta])* $name:ident } ($($argument:ident: $type:ty),*)) => {
        $(#[$doc])*
        ///
        /// Returns 36 (`CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`) if the driver does not have the
        /// function.
        ///
        /// # Safety
        /// Pointers are valid for the driver's reads and writes, handles are live and of
        /// the named kind, and the calling thread is in the state that the driver's
        /// documentation requires.
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's function has")]
        #[inline]
        pub unsafe fn $name(&self, $($argument: $type),*) -> CuResult {
            match self.$name {
                // SAFETY: the table's entries have the driver's signatures; the caller
                // vouches for the arguments.
                Some(function) => unsafe { function($($argument),*) },
                None => CuResult::CALL_REQUIRES_NEWER_DRIVER,
            }
        }
    };
}
