//! How a trait of devices is declared, answered by a bare device, and forwarded.

use crate::device::{Call, DeviceMemory, DeviceResult};

/// A device that passes calls on to an inner device.
pub trait Forwarder: Send + Sync + 'static {
    /// The inner device. [`Bare`](crate::Bare) for a device with only some methods of a trait.
    type Inner: DeviceMemory + ?Sized;

    /// Returns the inner device.
    ///
    /// # Errors
    /// The error of each forwarded call while the inner device is absent. Infallible methods then
    /// answer like [`Bare`](crate::Bare).
    fn inner(&self) -> DeviceResult<&Self::Inner>;

    /// Called before each method of a forwarded trait, also if the wrapper has a method of its own.
    /// `method` is the name of the method, and `call` the kind of the call if the method reaches a
    /// driver.
    #[inline]
    fn before(&self, method: &'static str, call: Option<Call>) {
        let _ = (method, call);
    }
}

/// Declares a trait of devices, its answers by [`Bare`](crate::Bare), and its forwarding. `[Call]`
/// is the kind of a method that reaches a driver, and may fail. `= answer` is the answer of a bare
/// device; without it, a bare device lacks a method with a kind, and does nothing in a method
/// without.
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

        /// The answers of a missing part.
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

/// The answer of a device whose inner device is absent: the error, or the answer of a bare device.
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
