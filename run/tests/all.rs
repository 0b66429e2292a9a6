//! Tests of what stands in front of the driver, over the emulated driver.

mod serve;
