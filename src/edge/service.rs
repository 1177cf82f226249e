//! The service manager: readiness, reloading, watchdog, status text.
