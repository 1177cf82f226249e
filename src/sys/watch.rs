//! Changes in directories, debounced.
