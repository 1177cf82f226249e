//! The files by which masters are adopted: any bytes are refused or mean what they would be written as.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| polyfpm::runtime::fuzzing::state_files(data));
