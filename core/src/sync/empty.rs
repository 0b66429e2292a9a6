//! Constant empty values: what a table holds before its first entry. The compiler makes them, so
//! that an allocator of fixed tables may lie in a static, and no table passes over the stack.

use crate::sync::{AtomicI64, AtomicU32, AtomicU64};

/// A type with a constant empty value. Under `--cfg loom`, whose atomics have no constant value, a
/// function returns it.
pub trait Empty: Sized {
    /// The empty value.
    #[cfg(not(loom))]
    const EMPTY: Self;

    /// Returns the empty value.
    #[cfg(loom)]
    fn empty() -> Self;
}

/// The empty value of the type that is expected.
#[cfg(not(loom))]
macro_rules! empty {
    () => {
        $crate::sync::Empty::EMPTY
    };
}
/// The empty value of the type that is expected.
#[cfg(loom)]
macro_rules! empty {
    () => {
        $crate::sync::Empty::empty()
    };
}
pub(crate) use empty;

/// Implements [`Empty`] by an expression. Parameters of the type stand before it, in brackets.
macro_rules! empty_by {
    ([$($parameters:tt)*] $Type:ty = $empty:expr) => {
        impl<$($parameters)*> $crate::sync::Empty for $Type {
            #[cfg(not(loom))]
            #[allow(clippy::declare_interior_mutable_const, reason = "each use is a value of its own")]
            const EMPTY: Self = $empty;

            #[cfg(loom)]
            fn empty() -> Self {
                $empty
            }
        }
    };
    ($Type:ty = $empty:expr) => {
        $crate::sync::empty_by!([] $Type = $empty);
    };
}

/// Implements [`Empty`] and `Default` for a structure. A field without a value is empty.
macro_rules! impl_empty {
    ([$($parameters:tt)*] $Type:ty { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        $crate::sync::empty_by! {
            [$($parameters)*] $Type = Self { $($field: $crate::sync::impl_empty!(@value $($value)?)),* }
        }

        impl<$($parameters)*> Default for $Type {
            fn default() -> Self {
                $crate::sync::empty!()
            }
        }
    };
    (@value) => {
        $crate::sync::empty!()
    };
    (@value $value:expr) => {
        $value
    };
    ($Type:ty { $($fields:tt)* }) => {
        $crate::sync::impl_empty! { [] $Type { $($fields)* } }
    };
}
pub(crate) use {empty_by, impl_empty};

empty_by!(bool = false);
empty_by!(u32 = 0);
empty_by!(u64 = 0);
empty_by!(usize = 0);
empty_by!(AtomicU32 = AtomicU32::new(0));
empty_by!(AtomicU64 = AtomicU64::new(0));
empty_by!(AtomicI64 = AtomicI64::new(0));
empty_by!([T] Option<T> = None);

impl<T: Empty, const N: usize> Empty for [T; N] {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a value of its own")]
    const EMPTY: Self = [const { T::EMPTY }; N];

    #[cfg(loom)]
    fn empty() -> Self {
        core::array::from_fn(|_| T::empty())
    }
}
