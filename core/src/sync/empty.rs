//! Constant empty values: what a table contains before its first entry. The compiler creates them,
//! so an allocator with fixed tables can be a static, and no table has to be moved over the stack.

use crate::sync::{AtomicI64, AtomicU32, AtomicU64};

/// A type with a constant empty value. Under `--cfg loom`, where atomics cannot be created in
/// constants, a function returns the value.
pub trait Empty: Sized {
    /// The empty value.
    #[cfg(not(loom))]
    const EMPTY: Self;

    /// Returns the empty value.
    #[cfg(loom)]
    fn empty() -> Self;
}

/// The empty value of the expected type.
#[cfg(not(loom))]
macro_rules! empty {
    () => {
        $crate::sync::Empty::EMPTY
    };
}
/// The empty value of the expected type.
#[cfg(loom)]
macro_rules! empty {
    () => {
        $crate::sync::Empty::empty()
    };
}
pub(crate) use empty;

/// Implements [`Empty`] with an expression. Generic parameters of the type are written before it,
/// in brackets.
macro_rules! empty_by {
    ([$($parameters:tt)*] $Type:ty = $empty:expr) => {
        impl<$($parameters)*> $crate::sync::Empty for $Type {
            #[cfg(not(loom))]
            #[allow(clippy::declare_interior_mutable_const, reason = "each use is a new value")]
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

/// Implements [`Empty`] and `Default` for a structure. Fields that are given no value are empty.
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
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a new value")]
    const EMPTY: Self = [const { T::EMPTY }; N];

    #[cfg(loom)]
    fn empty() -> Self {
        core::array::from_fn(|_| T::empty())
    }
}
