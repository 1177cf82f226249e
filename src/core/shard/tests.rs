//! Tests of single transitions; the seeded simulation is in `tests/sim`.
