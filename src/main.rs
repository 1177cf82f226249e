//! The `polyfpm` binary.
fn main() {}
