//! Finds the kernel's objects of BPF: by their ids, which needs `CAP_SYS_ADMIN`, or by an iterator.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Command, attach, bpf, info, number};

/// Ids of one kind of object.
#[derive(Clone, Copy)]
pub(crate) enum Ids {
    /// Types of the kernel, of its modules and of programs.
    Types,
    /// Links. A new one has an id above all that there were before, until there have been 2^31.
    Links,
}

impl Ids {
    const fn commands(self) -> (Command, Command) {
        match self {
            Self::Types => (Command::BtfNextId, Command::BtfFdById),
            Self::Links => (Command::LinkNextId, Command::LinkFdById),
        }
    }
}

/// Arguments of BPF_*_GET_NEXT_ID and BPF_*_GET_FD_BY_ID.
#[derive(Default)]
#[repr(C)]
struct Id {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// The id that follows another one; none behind the last one.
pub(crate) fn next(ids: Ids, id: u32) -> io::Result<Option<u32>> {
    let mut arguments = Id { id, ..Id::default() };
    // SAFETY: the arguments are numbers.
    match unsafe { bpf(ids.commands().0, &mut arguments) } {
        Ok(_) => Ok(Some(arguments.next_id)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The object with an id; none if it has ended.
pub(crate) fn open(ids: Ids, id: u32) -> io::Result<Option<OwnedFd>> {
    let mut arguments = Id { id, ..Id::default() };
    // SAFETY: the arguments are numbers.
    match unsafe { bpf(ids.commands().1, &mut arguments) } {
        // SAFETY: the descriptor is new and has no other owner.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the link of an iterator's program, which runs with each [`iterate`].
pub(crate) fn iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `BPF_TRACE_ITER` of `enum bpf_attach_type`.
    const TRACE_ITER: u32 = 28;
    attach(program, 0, (TRACE_ITER, 0))
}

/// What an iterator writes.
pub(crate) fn iterate(link: BorrowedFd<'_>) -> io::Result<File> {
    let mut arguments = [number(link), 0];
    // SAFETY: the arguments are numbers.
    let fd = unsafe { bpf(Command::IterCreate, &mut arguments) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The type of the link with an id (`enum bpf_link_type`); none if it has ended.
pub(crate) fn link_type(id: u32) -> io::Result<Option<u32>> {
    let Some(link) = open(Ids::Links, id)? else { return Ok(None) };
    Ok(Some(info::<1>(link.as_fd())?[0]))
}
