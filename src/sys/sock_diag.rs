//! Queue depths and accepted connections as the kernel counts them.
