//! Lists the BPF programs that netfilter calls, by an iterator over links (`bpf/links.c`).
//!
//! This module loads the iterator only if the kernel has any link to netfilter. To load it, it must parse the types
//! of the whole kernel, which takes longer than everything else that `tollway check` does.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};

use aya::programs::links::{LinkError, LinkInfo, LinkType};
use aya::programs::{Iter, loaded_links};
use aya::{Btf, Ebpf, include_bytes_aligned};

static LINKS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/links.o"));

/// Why the kernel does not list the programs.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name of such links among the kernel's types.
const LINK: &[u8] = b"\0bpf_nf_link\0";
/// Bytes per record.
const RECORD: usize = 12;

/// The iterator, once it is loaded; the inner `None` if this kernel has no such programs.
static LOADED: Mutex<Option<Option<Ebpf>>> = Mutex::new(None);

/// The types of the kernel's structures.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The protocol families (`NFPROTO_*`) and hooks (`NF_INET_*`) at which this network namespace has
/// BPF programs; `None` if this kernel does not describe its structures.
///
/// # Errors
/// If the kernel does not permit this process to list them.
pub fn netfilter_hooks() -> io::Result<Option<Vec<(u32, u32)>>> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded.is_none() {
        if has_no_link() {
            return Ok(Some(Vec::new()));
        }
        let Ok(btf) = std::fs::read(BTF) else { return Ok(None) };
        // Kernels before 6.4 have no such links.
        let has_links = btf.windows(LINK.len()).any(|bytes| bytes == LINK);
        *loaded = Some(has_links.then(load).transpose().map_err(io::Error::other)?);
    }
    let Some(Some(ebpf)) = loaded.as_mut() else { return Ok(Some(Vec::new())) };
    // A namespace's number is the inode of its file.
    let own = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let all = read(ebpf).map_err(io::Error::other)?;
    let word = |record: &[u8], at: usize| {
        let bytes = record.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let here = all.chunks_exact(RECORD).filter(|record| u64::from(word(record, 8)) == own);
    Ok(Some(here.map(|record| (word(record, 0), word(record, 4))).collect()))
}

/// The most links that [`has_no_link`] looks at one by one. A router looks 20 times a second, and each link takes
/// several system calls. With more links, it costs less to load the iterator once.
const MOST_LINKS: usize = 16;

/// Whether the kernel certainly has no link to netfilter, in no namespace.
fn has_no_link() -> bool {
    let mut links = loaded_links();
    // A link that ends meanwhile is an error, too. Then the iterator decides.
    let is_other = |link: Result<LinkInfo, LinkError>| {
        link.is_ok_and(|link| link.link_type().is_ok_and(|kind| kind != LinkType::Netfilter))
    };
    links.by_ref().take(MOST_LINKS).all(is_other) && links.next().is_none()
}

fn load() -> Result<Ebpf, Failure> {
    let mut ebpf = Ebpf::load(LINKS)?;
    let program: &mut Iter =
        ebpf.program_mut("links").ok_or("the BPF object has no program `links`")?.try_into()?;
    program.load("bpf_link", &Btf::from_sys_fs()?)?;
    Ok(ebpf)
}

/// All output of the iterator.
fn read(ebpf: &mut Ebpf) -> Result<Vec<u8>, Failure> {
    let program = ebpf.program_mut("links").ok_or("the BPF object has no program `links`")?;
    let program: &mut Iter = program.try_into()?;
    let link = program.attach()?;
    let mut file = program.take_link(link)?.into_file()?;
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
    Ok(all)
}
