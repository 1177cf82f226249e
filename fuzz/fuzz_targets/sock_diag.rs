//! Replies of the kernel's socket statistics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| polyfpm::sys::sock_diag::fuzzing::replies(data));
