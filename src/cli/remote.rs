//! Commands carried out by the running supervisor.
