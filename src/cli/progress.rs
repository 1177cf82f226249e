//! Progress of a job on a terminal, as plain lines, as JSON.
