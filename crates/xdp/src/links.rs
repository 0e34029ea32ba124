//! Lists the BPF programs that netfilter calls, by an iterator over links (`bpf/links.c`).
//!
//! This module loads the iterator only if the kernel has had any link to netfilter. To load it, it must parse the types
//! of the whole kernel, which takes longer than everything else that `tollway check` does.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};

use aya::programs::Iter;
use aya::{Btf, Ebpf, include_bytes_aligned};

use crate::sys::ids::{self, Ids};

static LINKS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/links.o"));

/// Why the kernel does not list the programs.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name of such links among the kernel's types.
const LINK: &[u8] = b"\0bpf_nf_link\0";
/// Bytes per record.
const RECORD: usize = 12;

/// `BPF_LINK_TYPE_NETFILTER`.
const NETFILTER: u32 = 10;

/// The types of the kernel's structures.
const BTF: &str = "/sys/kernel/btf/vmlinux";

static LINKS_SEEN: Mutex<Seen> = Mutex::new(Seen { last: 0, may_have: false, iterator: None });

/// What is known of the kernel's links. A router looks 20 times a second, so it asks for the type of new links only. It may
/// not without `CAP_SYS_ADMIN`; then the iterator runs each time.
struct Seen {
    /// The highest id of the links that were looked at.
    last: u32,
    /// There was a link to netfilter, which may still be there.
    may_have: bool,
    /// The iterator, once it is loaded; the inner `None` if this kernel has no such links.
    iterator: Option<Option<LinkIterator>>,
}

/// The protocol families (`NFPROTO_*`) and hooks (`NF_INET_*`) at which this network namespace has
/// BPF programs; `None` if this kernel does not describe its structures.
///
/// # Errors
/// If the kernel does not permit this process to list them.
pub fn netfilter_hooks() -> io::Result<Option<Vec<(u32, u32)>>> {
    let mut seen = LINKS_SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.may_have |= seen.look_at_new().is_err();
    if !seen.may_have {
        return Ok(Some(Vec::new()));
    }
    if seen.iterator.is_none() {
        let Ok(btf) = std::fs::read(BTF) else { return Ok(None) };
        // Kernels before 6.4 have no such links.
        let has_links = btf.windows(LINK.len()).any(|bytes| bytes == LINK);
        seen.iterator =
            Some(has_links.then(LinkIterator::load).transpose().map_err(io::Error::other)?);
    }
    let Some(Some(iterator)) = &seen.iterator else { return Ok(Some(Vec::new())) };
    // A namespace's number is the inode of its file.
    let own = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let all = iterator.read()?;
    seen.may_have = !all.is_empty();
    let word = |record: &[u8], at: usize| {
        let bytes = record.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let here = all.chunks_exact(RECORD).filter(|record| u64::from(word(record, 8)) == own);
    Ok(Some(here.map(|record| (word(record, 0), word(record, 4))).collect()))
}

/// The iterator, attached.
struct LinkIterator {
    _program: Ebpf,
    link: OwnedFd,
}

impl Seen {
    /// Looks at the links that are new.
    fn look_at_new(&mut self) -> io::Result<()> {
        while let Some(id) = ids::next(Ids::Links, self.last)? {
            match ids::link_type(id) {
                // One that is being made is looked at again.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
                kind => self.may_have |= kind? == Some(NETFILTER),
            }
            self.last = id;
        }
        Ok(())
    }
}

impl LinkIterator {
    fn load() -> Result<Self, Failure> {
        let mut ebpf = Ebpf::load(LINKS)?;
        let program: &mut Iter =
            ebpf.program_mut("links").ok_or("the BPF object has no program `links`")?.try_into()?;
        program.load("bpf_link", &Btf::from_sys_fs()?)?;
        let link = ids::iterator(program.fd()?.as_fd())?;
        Ok(Self { _program: ebpf, link })
    }

    /// All records.
    fn read(&self) -> io::Result<Vec<u8>> {
        const USUAL_BYTES: usize = 64 * RECORD;
        let mut all = Vec::with_capacity(USUAL_BYTES);
        ids::iterate(self.link.as_fd())?.take(u64::MAX).read_to_end(&mut all)?;
        Ok(all)
    }
}
