//! `polyfpm status`.
