//! One owner of every child process: spawning, reaping, running with a time-out.
