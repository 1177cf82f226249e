//! Durations and sizes as people write them.
