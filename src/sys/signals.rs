//! Signals as a stream.
