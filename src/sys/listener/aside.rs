//! A second name for a public socket, so that its path can be given away and taken back.

use std::io;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::file::look;
use super::publish::PublishError;
use super::{Listener, Place};
use crate::sys::directory::{Located, SafeDirectory, locate};

/// Links the file of a public listener to the temporary name under which it was bound. [`publish()`](super::publish()) can then
/// give it a path again after another file has taken `public`, and [`Listener::discard`] removes the link.
///
/// # Errors
/// When the file at `public` is not this listener's, or the link cannot be made.
pub fn keep_aside(listener: &Listener, public: &Path) -> Result<(), PublishError> {
    let Place::Unix { directory, name, file } = &listener.place else {
        return Err(PublishError::NotUnix { name: listener.bound.clone() });
    };
    let step = |step: &'static str, source: io::Error| PublishError::Step { step, path: public.to_owned(), source };
    let source = locate(public).map_err(|source| PublishError::Directory { path: public.to_owned(), source })?;
    let standing = look(&source.directory, &source.name).map_err(|source| step("look at", source))?;
    if standing.is_none_or(|entry| entry.id != *file) {
        return Err(PublishError::Vanished { path: public.to_owned() });
    }
    let target = SafeDirectory::open(directory).map_err(|source| PublishError::Directory { path: public.to_owned(), source })?;
    let aside = Located { directory: target, name: name.clone() };
    match rustix::fs::linkat(&source.directory.fd, &source.name, &aside.directory.fd, &aside.name, AtFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => {
            let there = look(&aside.directory, &aside.name).map_err(|source| step("look at", source))?;
            if there.is_some_and(|entry| entry.id == *file) { Ok(()) } else { Err(step("link", Errno::EXIST.into())) }
        }
        Err(errno) => Err(step("link", errno.into())),
    }
}
