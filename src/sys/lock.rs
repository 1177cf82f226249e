//! One supervisor per instance.
