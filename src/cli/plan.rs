//! `polyfpm plan`.
