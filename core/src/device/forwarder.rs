//! The macro that declares a trait of devices, answers it for a bare device, and forwards it.

use crate::device::{Call, DeviceMemory, DeviceResult};

/// A device that passes calls on to an inner device.
pub trait Forwarder: Send + Sync + 'static {
    /// The inner device. Use [`Bare`](crate::Bare) for a device that implements only some methods
    /// of a trait.
    type Inner: DeviceMemory + ?Sized;

    /// Returns the inner device.
    ///
    /// # Errors
    /// The error that each forwarded call returns while there is no inner device. Methods that
    /// cannot fail then answer like [`Bare`](crate::Bare).
    fn inner(&self) -> DeviceResult<&Self::Inner>;

    /// Called before each method of a forwarded trait, even if the wrapper defines the method.
    /// `method` is its name, and `call` is the kind of call if the method calls a driver.
    #[inline]
    fn before(&self, method: &'static str, call: Option<Call>) {
        let _ = (method, call);
    }
}

/// Declares a trait of devices, how [`Bare`](crate::Bare) answers it, and how it is forwarded.
/// `[Call]` is the kind of a method that calls a driver and may fail. `= answer` is what a bare
/// device returns. Without it, a bare device returns an error from a method with a kind, and does
/// nothing in a method without one.
macro_rules! device_trait {
    (
        $(#[$doc:meta])* pub trait $Trait:ident: Send + Sync;
        $(#[$forward_doc:meta])* pub trait $Forward:ident, to $inner:path;
        $(
            $(#[$method_doc:meta])*
            fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $answer:ty)? $([$call:ident])? $(= $bare:expr)?;
        )*
    ) => {
        $(#[$doc])*
        pub trait $Trait: Send + Sync {
            $(
                $(#[$method_doc])*
                fn $name(&self, $($argument: $type),*) $(-> $answer)?;
            )*
        }

        /// The answers of a part that is missing.
        impl $Trait for $crate::device::Bare {
            $(
                fn $name(&self, $(_: $type),*) $(-> $answer)? {
                    $crate::device::forwarder::bare!($([$call])? $(= $bare)?)
                }
            )*
        }

        $(#[$forward_doc])*
        pub trait $Forward: $crate::device::forwarder::Forwarder {
            $(
                #[doc = concat!("Forwards [`", stringify!($name), "`](", stringify!($Trait), "::", stringify!($name), ").")]
                $(
                    #[doc = concat!("\n\n# Errors\nThe errors of the inner device in the call [`", stringify!($call), "`](crate::Call::", stringify!($call), "),")]
                    #[doc = "and of [`inner`](crate::forward::Forwarder::inner)."]
                )?
                #[allow(clippy::missing_errors_doc, reason = "a fallible method without a kind has the errors of the trait")]
                #[inline]
                fn $name(&self, $($argument: $type),*) $(-> $answer)? {
                    match $inner(self) {
                        Ok(inner) => $Trait::$name(inner, $($argument),*),
                        Err(error) => {
                            $crate::device::forwarder::absent!($Trait::$name(error, $($argument),*) $([$call])?)
                        }
                    }
                }
            )*
        }

        impl<T: $Forward> $Trait for T {
            $(
                #[inline]
                fn $name(&self, $($argument: $type),*) $(-> $answer)? {
                    self.before(stringify!($name), $crate::device::forwarder::call!($($call)?));
                    $Forward::$name(self, $($argument),*)
                }
            )*
        }
    };
}

/// The kind of a call, or `None` for a call without a kind.
macro_rules! call {
    () => {
        None
    };
    ($call:ident) => {
        Some($crate::device::Call::$call)
    };
}

/// The answer of a bare device.
macro_rules! bare {
    ($([$call:ident])? = $answer:expr) => {
        $answer
    };
    ([$call:ident]) => {
        Err($crate::device::bare::LACKING)
    };
    () => {
        ()
    };
}

/// The answer of a device without an inner device: the error, or the answer of a bare device.
macro_rules! absent {
    ($Trait:ident::$name:ident($error:ident, $($argument:ident),*) [$call:ident]) => {
        Err($error)
    };
    ($Trait:ident::$name:ident($error:ident, $($argument:ident),*)) => {{
        let _infallible = $error;
        $Trait::$name(&$crate::device::Bare, $($argument),*)
    }};
}

pub(super) use {absent, bare, call, device_trait};
