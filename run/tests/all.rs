//! Tests of the library in front of the driver, over the emulated driver.

mod serve;
