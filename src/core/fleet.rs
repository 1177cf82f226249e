//! All shards, and the one job that may run over them.
