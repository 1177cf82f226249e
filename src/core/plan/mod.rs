//! From pools, settings and host to shards and placements.
