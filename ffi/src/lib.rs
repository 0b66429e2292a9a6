//! The C ABI of cachalot.
