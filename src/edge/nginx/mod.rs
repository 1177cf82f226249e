//! NGINX on this host: its configuration, the include as a transaction, verified reloads.
