//! `polyfpm check`.
