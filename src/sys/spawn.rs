//! Starting a process with everything set before exec.
