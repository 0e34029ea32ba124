//! The bpf(2) system call, and the dispatcher's other system calls. Every unsafe operation of the
//! dispatcher is here, in [`ethtool`](super::ethtool), in [`page`](super::page) or in
//! [`shared`](super::shared).

#![allow(unsafe_code)]

pub(super) mod ids;
pub(super) mod loading;

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::context::{Context, SkbContext};
use super::counts::PortCounts;
pub(super) use super::page::{Page, coarse_ns};

/// Types of plain numbers and bytes without padding, for which any bit pattern is valid.
///
/// # Safety
/// The type must be just that.
pub(super) unsafe trait Plain: Copy + Default {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for [u32; 2] {}
// SAFETY: bytes.
unsafe impl Plain for [u8; 4] {}
// SAFETY: bytes.
unsafe impl Plain for [u8; 16] {}
// SAFETY: numbers.
unsafe impl Plain for [u64; 2] {}
// SAFETY: numbers.
unsafe impl Plain for [u64; 8] {}
// SAFETY: numbers of 64 bits.
unsafe impl Plain for PortCounts {}

/// Commands of bpf(2) (`enum bpf_cmd`, include/uapi/linux/bpf.h).
#[derive(Clone, Copy)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgTestRun = 10,
    ObjInfo = 15,
    ProgQuery = 16,
    BtfLoad = 18,
    BtfFdById = 19,
    BtfNextId = 23,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkFdById = 30,
    LinkNextId = 31,
    IterCreate = 33,
    LinkDetach = 34,
}

/// Arguments of commands on an element of a map.
#[derive(Default)]
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Arguments of BPF_MAP_CREATE.
#[derive(Default)]
#[repr(C)]
struct NewMap {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// `BPF_MAP_TYPE_ARRAY`, and `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

/// Arguments of commands on a path in the BPF file system.
#[derive(Default)]
#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Arguments of BPF_LINK_CREATE (those for XDP and tcx), BPF_LINK_UPDATE and BPF_LINK_DETACH.
#[derive(Default)]
#[repr(C)]
struct Link {
    first: u32,
    second: u32,
    third: u32,
    flags: u32,
}

/// Arguments of BPF_OBJ_GET_INFO_BY_FD.
#[derive(Default)]
#[repr(C)]
struct Info {
    fd: u32,
    len: u32,
    info: u64,
}

/// Arguments of BPF_PROG_TEST_RUN.
#[derive(Default)]
#[repr(C)]
struct Run {
    program: u32,
    result: u32,
    in_len: u32,
    out_len: u32,
    input: u64,
    output: u64,
    repeat: u32,
    duration: u32,
    context_in_len: u32,
    context_out_len: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch: u32,
    pad: u32,
}

/// Arguments of BPF_PROG_QUERY.
#[derive(Default)]
#[repr(C)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// The system call bpf(2).
///
/// # Safety
/// `arguments` must be of the command's type, and its addresses must point to memory that the
/// command may read or write.
unsafe fn bpf<T>(command: Command, arguments: &mut T) -> io::Result<RawFd> {
    let pointer: *mut T = arguments;
    // SAFETY: the arguments are borrowed exclusively and have the given length; the caller ensures
    // the rest.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as i32, pointer, size_of::<T>() as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Creates a map; names have up to 15 bytes.
fn create(name: &str, mut map: NewMap) -> io::Result<OwnedFd> {
    map.key_size = size_of::<u32>() as u32;
    for (to, from) in map.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the arguments hold no addresses.
    let fd = unsafe { bpf(Command::MapCreate, &mut map) }?;
    // SAFETY: a descriptor that was just opened, and nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates an array of `count` zeroed elements of `size` bytes, which can be mapped.
pub(super) fn create_array(name: &str, size: u32, count: u32) -> io::Result<OwnedFd> {
    let flags = MMAPABLE;
    create(
        name,
        NewMap { kind: ARRAY, value_size: size, max_entries: count, flags, ..NewMap::default() },
    )
}

/// Creates an array with one element, a map like `inner`.
pub(super) fn create_array_of_maps(name: &str, inner: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let inner_map = number(inner);
    create(
        name,
        NewMap {
            kind: ARRAY_OF_MAPS,
            value_size: 4,
            max_entries: 1,
            inner_map,
            ..NewMap::default()
        },
    )
}

/// Sets a map in an array of maps, or a program in one of programs. For a map, the kernel waits until all programs that run
/// now have ended.
pub(super) fn set_at(array: BorrowedFd<'_>, index: u32, element: BorrowedFd<'_>) -> io::Result<()> {
    update(array, &index, &number(element))
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Sets an element of a map.
pub(super) fn update<K: Plain, V: Plain>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &V,
) -> io::Result<()> {
    let (key, value) = (address::<K>(key), address::<V>(value));
    let mut element = Element { map: number(map), key, value, ..Element::default() };
    // SAFETY: the map's key and value are of these types; both are only read.
    unsafe { bpf(Command::MapUpdate, &mut element) }?;
    Ok(())
}

/// An element of a per-CPU map, for all processors.
pub(super) fn lookup_each<V: Plain>(
    map: BorrowedFd<'_>,
    key: u32,
    processors: usize,
) -> io::Result<Vec<V>> {
    // The kernel writes each value to a multiple of 8 bytes.
    const { assert!(size_of::<V>().is_multiple_of(8)) };
    let mut values = vec![V::default(); processors];
    let values_at = address(values.as_mut_ptr());
    let key_at = address::<u32>(&raw const key);
    let mut element =
        Element { map: number(map), key: key_at, value: values_at, ..Element::default() };
    // SAFETY: the map's key is a u32, and there is room for the values of all possible processors,
    // which may be any bytes.
    unsafe { bpf(Command::MapLookup, &mut element) }?;
    Ok(values)
}

/// Removes an element from a map; returns false if it did not exist.
pub(super) fn delete<K: Plain>(map: BorrowedFd<'_>, key: &K) -> io::Result<bool> {
    let mut element = Element { map: number(map), key: address::<K>(key), ..Element::default() };
    // SAFETY: the map's key is of this type and only read.
    found(unsafe { bpf(Command::MapDelete, &mut element) })
}

/// Turns ENOENT into `false`.
fn found(result: io::Result<RawFd>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Pins an object in the BPF file system.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut arguments =
        Object { path: address(path.as_ptr()), fd: number(object), ..Object::default() };
    // SAFETY: the path is a string that ends with a zero and outlives the call.
    unsafe { bpf(Command::ObjPin, &mut arguments) }?;
    Ok(())
}

/// Opens a pinned object.
pub(super) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut arguments = Object { path: address(path.as_ptr()), ..Object::default() };
    // SAFETY: the path is a string that ends with a zero and outlives the call.
    let fd = unsafe { bpf(Command::ObjGet, &mut arguments) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// BPF_XDP of `enum bpf_attach_type`.
pub(super) const XDP: u32 = 37;
/// Generic XDP (`XDP_FLAGS_SKB_MODE`).
pub(super) const XDP_GENERIC: u32 = 1 << 1;
/// XDP in the driver (`XDP_FLAGS_DRV_MODE`).
pub(super) const XDP_NATIVE: u32 = 1 << 2;

/// Attaches a program to a hook of a device, as long as the link exists: behind other programs, if there are any.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    (attach_type, flags): (u32, u32),
) -> io::Result<OwnedFd> {
    let mut link = Link { first: number(program), second: ifindex, third: attach_type, flags };
    // SAFETY: the arguments are numbers.
    let fd = unsafe { bpf(Command::LinkCreate, &mut link) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// BPF_TCX_INGRESS and BPF_TCX_EGRESS of `enum bpf_attach_type`.
pub(super) const TCX_INGRESS: u32 = 46;
pub(super) const TCX_EGRESS: u32 = 47;

/// The most programs at a hook (`BPF_MPROG_MAX`).
const MOST_PROGRAMS: usize = 64;

/// The ids of the programs at a device's hook, in their order.
pub(super) fn attached(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MOST_PROGRAMS];
    let (programs, count) = (address(ids.as_mut_ptr()), MOST_PROGRAMS as u32);
    let mut query = Query { target: ifindex, attach_type, programs, count, ..Query::default() };
    // SAFETY: there is room for `count` ids, which may be any numbers.
    unsafe { bpf(Command::ProgQuery, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok(ids)
}

/// Replaces a link's program between two packets.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut link = Link { first: number(link), second: number(program), ..Link::default() };
    // SAFETY: the arguments are numbers.
    unsafe { bpf(Command::LinkUpdate, &mut link) }?;
    Ok(())
}

/// Detaches a link's program, even if other processes have the link.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut fd = number(link);
    // SAFETY: the argument is a number.
    unsafe { bpf(Command::LinkDetach, &mut fd) }?;
    Ok(())
}

/// The id of a link's program, and the ifindex of its device (`struct bpf_link_info`), which is 0 when the device is
/// gone.
pub(super) fn link_program(link: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // Type, id and program, padding, then fields of the link type: for XDP and tcx, the ifindex.
    let [_, _, program, _, ifindex, ..] = info::<8>(link)?;
    Ok((program, ifindex))
}

/// A map's id, unique while the map exists (`struct bpf_map_info`).
pub(super) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(info::<2>(map)?[1])
}

/// The first words of the kernel's information on an object.
fn info<const WORDS: usize>(object: BorrowedFd<'_>) -> io::Result<[u32; WORDS]> {
    let mut words = [0_u32; WORDS];
    let len = size_of::<[u32; WORDS]>() as u32;
    let mut arguments = Info { fd: number(object), len, info: address(words.as_mut_ptr()) };
    // SAFETY: there is room for `len` bytes, which may be any.
    unsafe { bpf(Command::ObjInfo, &mut arguments) }?;
    Ok(words)
}

/// Runs an XDP program once on a frame that goes nowhere; returns its verdict and the resulting
/// frame.
pub(super) fn run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ingress: Option<(u32, u32)>,
) -> io::Result<(u32, Vec<u8>)> {
    // Without a context, the frame arrives on the first queue of the loopback device.
    let context = ingress.map(|(ifindex, queue)| Context::new(frame.len() as u32, ifindex, queue));
    run_with(program, frame, context.as_ref())
}

/// As [`run`], for a tc program and a frame that arrives by a device. If `segment` is not 0, the frame is a
/// super-frame for segments of so many bytes.
pub(super) fn run_tc(
    program: BorrowedFd<'_>,
    frame: &[u8],
    (ifindex, segment): (u32, u32),
) -> io::Result<(u32, Vec<u8>)> {
    run_with(program, frame, Some(&SkbContext::new(ifindex, segment)))
}

fn run_with<C>(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: Option<&C>,
) -> io::Result<(u32, Vec<u8>)> {
    let in_len = frame.len() as u32;
    // Room for a larger header.
    let mut output = vec![0; frame.len() + 64];
    let mut arguments = Run {
        program: number(program),
        in_len,
        out_len: output.len() as u32,
        input: address(frame.as_ptr()),
        output: address(output.as_mut_ptr()),
        context_in_len: context.map_or(0, |_| size_of::<C>() as u32),
        context_in: context.map_or(0, |context| address::<C>(context)),
        repeat: 1,
        ..Run::default()
    };
    // SAFETY: frame and context are read and the output written, of the lengths given.
    unsafe { bpf(Command::ProgTestRun, &mut arguments) }?;
    output.truncate(arguments.out_len as usize);
    Ok((arguments.result, output))
}

/// `BPF_F_TEST_XDP_LIVE_FRAMES`: the frames really go where the program sends them.
const LIVE_FRAMES: u32 = 1 << 1;

/// Runs an XDP program once on a frame as if a device had received it, and carries out its verdict.
pub(super) fn run_live(program: BorrowedFd<'_>, frame: &[u8], ingress: u32) -> io::Result<()> {
    let in_len = frame.len() as u32;
    let context = Context::new(in_len, ingress, 0);
    let mut arguments = Run {
        program: number(program),
        in_len,
        input: address(frame.as_ptr()),
        context_in_len: size_of::<Context>() as u32,
        context_in: address(&raw const context),
        repeat: 1,
        flags: LIVE_FRAMES,
        ..Run::default()
    };
    // SAFETY: the frame and the context are read, of the lengths given; nothing is written to them.
    unsafe { bpf(Command::ProgTestRun, &mut arguments) }?;
    Ok(())
}

/// The number of values in an element of a per-CPU map (`cpu_possible_mask`).
pub(super) fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS: i64 = 0xcafe_4a11;

/// Whether a BPF file system is mounted there.
pub(super) fn is_bpffs(path: &Path) -> io::Result<bool> {
    let path = c_path(path)?;
    let mut about = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path is a string that ends with a zero; there is room for the answer.
    if unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: numbers, of which zero is a value, and which the kernel has written.
    let about = unsafe { about.assume_init() };
    Ok(about.f_type == BPF_FS)
}

/// Mounts a BPF file system.
pub(super) fn mount_bpffs(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let kind = c"bpf".as_ptr();
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RELATIME;
    let data = c"mode=0700".as_ptr().cast();
    // SAFETY: strings that end with a zero.
    if unsafe { libc::mount(kind, path.as_ptr(), kind, flags, data) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
