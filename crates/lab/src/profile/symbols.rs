//! Resolves a program's addresses to functions, inlined ones included.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::{Loader, demangle_auto};
use object::{Object, ObjectSymbol};

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Frame {
    /// Its path without the hash; `[libc.so.6]` and the like if it has no name.
    pub(crate) function: Rc<str>,
    /// Whether it is inlined there.
    pub(crate) inlined: bool,
}

impl Frame {
    pub(crate) fn new(function: &str, inlined: bool) -> Self {
        Self { function: function.into(), inlined }
    }
}

/// The debug information of programs and libraries, read on demand.
#[derive(Default)]
pub(crate) struct Symbols {
    loaders: HashMap<PathBuf, Option<Loader>>,
    exports: HashMap<PathBuf, Vec<Export>>,
    known: HashMap<(PathBuf, u64), Rc<[Frame]>>,
}

impl Symbols {
    /// The functions at an address of a file, in the numbering of its sections; the outermost
    /// first, at least one.
    pub(crate) fn at(&mut self, object: &Path, address: u64) -> Rc<[Frame]> {
        let key = (object.to_owned(), address);
        if let Some(frames) = self.known.get(&key) {
            return Rc::clone(frames);
        }
        let loader =
            self.loaders.entry(object.to_owned()).or_insert_with(|| Loader::new(object).ok());
        let mut named = loader.as_ref().map(|loader| frames(loader, address)).unwrap_or_default();
        if named.is_empty() {
            let exports = self.exports.entry(object.to_owned()).or_insert_with(|| exports(object));
            named.extend(find(exports, address).map(|name| Frame::new(name, false)));
        }
        let frames: Rc<[Frame]> = match named.is_empty() {
            true => [Frame::new(&unnamed(object), false)].into(),
            false => named.into(),
        };
        self.known.insert(key, Rc::clone(&frames));
        frames
    }
}

/// An exported function, which has a name even in a stripped file.
struct Export {
    address: u64,
    size: u64,
    name: String,
}

/// The exports of a library, by address; empty if it cannot be read.
fn exports(object: &Path) -> Vec<Export> {
    let Ok(bytes) = std::fs::read(object) else { return Vec::new() };
    let Ok(file) = object::File::parse(&*bytes) else { return Vec::new() };
    let export = |symbol: object::Symbol<'_, '_>| {
        let name = plain(&demangle_auto(Cow::Borrowed(symbol.name().ok()?), None));
        let (address, size) = (symbol.address(), symbol.size());
        (symbol.is_definition() && size > 0).then_some(Export { address, size, name })
    };
    let mut exports: Vec<Export> = file.dynamic_symbols().filter_map(export).collect();
    // If a function has several names, the public one starts without an underscore.
    exports.sort_by_key(|export| (export.address, export.name.starts_with('_')));
    exports
}

fn find(exports: &[Export], address: u64) -> Option<&str> {
    let after = exports.partition_point(|export| export.address <= address);
    let last = exports[..after].last()?.address;
    let first = exports[..after].partition_point(|export| export.address < last);
    let export = &exports[first];
    (address - export.address < export.size).then_some(&*export.name)
}

fn unnamed(object: &Path) -> String {
    let name = object.file_name().unwrap_or(object.as_os_str());
    format!("[{}]", name.to_string_lossy())
}

/// The functions at an address; empty if nothing is known about it.
fn frames(loader: &Loader, address: u64) -> Vec<Frame> {
    let mut names = Vec::new();
    if let Ok(mut found) = loader.find_frames(address) {
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.as_ref().and_then(|function| function.demangle().ok());
            let file = frame.location.as_ref().and_then(|location| location.file);
            names.extend(name.map(|name| placed(&plain(&name), file)));
        }
    }
    if names.is_empty() {
        let symbol = loader.find_symbol(address);
        names.extend(symbol.map(|name| plain(&demangle_auto(Cow::Borrowed(name), None))));
    }
    names.reverse();
    names.iter().enumerate().map(|(at, name)| Frame::new(name, at > 0)).collect()
}

/// A name with the path of its module. Line tables have only the name without its type, but the
/// file determines the module.
fn placed(name: &str, file: Option<&str>) -> String {
    if name.contains("::") && !name.contains('<') {
        return name.to_owned();
    }
    let own = name.split('<').next().filter(|own| !own.is_empty()).unwrap_or(name);
    match file.and_then(module) {
        Some(module) if !own.contains("::") => format!("{module}::{own}"),
        _ => name.to_owned(),
    }
}

/// The module of a Rust source file.
fn module(file: &str) -> Option<String> {
    let (root, path) = file.strip_suffix(".rs")?.rsplit_once("/src/")?;
    let directory = root.rsplit('/').next()?;
    // Directories of a registry have a version after the name.
    let version = |tail: &str| tail.starts_with(|first: char| first.is_ascii_digit());
    let name = match directory.rsplit_once('-') {
        Some((name, tail)) if version(tail) => name,
        _ => directory,
    };
    let name = name.replace('-', "_");
    let name = match name.starts_with("tollway") || is_foreign(file) {
        true => name,
        false => format!("tollway_{name}"),
    };
    let parts = path.split('/').filter(|part| !["mod", "lib", "main", ".."].contains(part));
    Some([&*name].into_iter().chain(parts).collect::<Vec<_>>().join("::"))
}

/// Whether a source file belongs to the standard library or to a dependency. All other files are of
/// this workspace, where the package `tollway-NAME` is in the directory NAME.
fn is_foreign(file: &str) -> bool {
    const FOREIGN: [&str; 4] = ["/rustc/", "/rustlib/", "/registry/src/", "/git/checkouts/"];
    FOREIGN.iter().any(|part| file.contains(part))
}

/// A name without the hash that distinguishes builds.
fn plain(name: &str) -> String {
    let hash = |tail: &str| tail.len() == 16 && tail.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once("::h") {
        Some((path, tail)) if hash(tail) => path.to_owned(),
        _ => name.to_owned(),
    }
}

/// The files that this process has mapped, and where.
#[derive(Debug)]
pub(crate) struct Maps {
    mapped: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    range: std::ops::Range<usize>,
    /// The address that the file's own addresses are relative to.
    base: usize,
    path: PathBuf,
}

impl Maps {
    /// The mappings of this process at this moment.
    pub(crate) fn of_self() -> Self {
        let program = std::env::current_exe().unwrap_or_default();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self::parse(&text, &program)
    }

    /// Parses `/proc/PID/maps`. Reads the program's own file by another name, since the original
    /// may be deleted.
    fn parse(text: &str, program: &Path) -> Self {
        let mut mapped: Vec<Mapped> = Vec::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(range), Some(path)) = (words.next(), words.nth(4)) else { continue };
            let hex = |text| usize::from_str_radix(text, 16).ok();
            let ends = range.split_once('-').and_then(|(from, to)| Some((hex(from)?, hex(to)?)));
            let Some((from, to)) = ends else { continue };
            let path = match Path::new(path) == program {
                true => PathBuf::from("/proc/self/exe"),
                false => PathBuf::from(path),
            };
            // The lines are sorted by address, and a file's first part is mapped from its start.
            let base =
                mapped.iter().find(|other| other.path == path).map_or(from, |first| first.base);
            mapped.push(Mapped { range: from..to, base, path });
        }
        Self { mapped }
    }

    /// The file that contains an address, and the address within it.
    pub(crate) fn find(&self, address: usize) -> Option<(&Path, u64)> {
        let mapped = self.mapped.iter().find(|mapped| mapped.range.contains(&address))?;
        Some((&mapped.path, (address - mapped.base) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_process_are_named() {
        let maps = Maps::of_self();
        let mut symbols = Symbols::default();
        let (object, address) = maps.find(frames as *const () as usize).unwrap();
        let found = symbols.at(object, address);
        let last = &found[found.len() - 1];
        assert!(last.function.ends_with("profile::symbols::frames"), "{found:?}");
        let (object, address) = maps.find(libc::getpid as *const () as usize).unwrap();
        assert!(object.to_string_lossy().contains("libc"), "{object:?}");
        assert!(symbols.at(object, address)[0].function.contains("getpid"));
    }

    #[test]
    fn functions_without_a_name_have_that_of_their_file() {
        let mut symbols = Symbols::default();
        let found = symbols.at(Path::new("/nowhere/lib.so"), 1);
        assert_eq!(*found, [Frame::new("[lib.so]", false)]);
    }

    #[test]
    fn a_name_alone_gets_the_module_of_its_file() {
        for (name, file, expected) in [
            (
                "find<u8, a::B>",
                "/x/crates/dataplane/src/stages/route/stage.rs",
                "tollway_dataplane::stages::route::stage::find",
            ),
            ("forward", "crates/lab/src/bench.rs", "tollway_lab::bench::forward"),
            ("forward", "/x/crates/lab/src/bench.rs", "tollway_lab::bench::forward"),
            ("find", "/x/crates/firewall/src/ir/set.rs", "tollway_firewall::ir::set::find"),
            ("run", "crates/commands/src/cli/run.rs", "tollway_commands::cli::run::run"),
            ("read", "/rustc/0123/library/core/src/ptr/mod.rs", "core::ptr::read"),
            ("get", "/c/registry/src/index-1/some-map-0.15.2/src/lib.rs", "some_map::get"),
            (
                "{closure#0}<u8>",
                "/x/crates/dataplane/src/path.rs",
                "tollway_dataplane::path::{closure#0}",
            ),
            ("a::b", "/x/crates/dataplane/src/path.rs", "a::b"),
            ("main", "/x/main.c", "main"),
        ] {
            assert_eq!(placed(name, Some(file)), expected);
        }
        assert_eq!(placed("x<u8>", None), "x<u8>");
    }

    #[test]
    fn a_hash_is_no_part_of_a_name() {
        assert_eq!(plain("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(plain("a::hello"), "a::hello");
        assert_eq!(plain("memcpy"), "memcpy");
    }

    #[test]
    fn a_file_counts_from_where_its_first_part_is() {
        let text = "1000-2000 r--p 00000000 00:00 1 /bin/x\n2000-3000 r-xp 00000800 00:00 1 /bin/x\n\
                    5000-6000 rw-p 00000000 00:00 0\n7000-8000 r-xp 00000000 00:00 0 [vdso]\n";
        let maps = Maps::parse(text, Path::new("/bin/y"));
        assert_eq!(maps.find(0x2010), Some((Path::new("/bin/x"), 0x1010)));
        assert_eq!(maps.find(0x5000), None);
        assert_eq!(maps.find(0x7001), Some((Path::new("[vdso]"), 1)));
        let maps = Maps::parse(text, Path::new("/bin/x"));
        assert_eq!(maps.find(0x1000), Some((Path::new("/proc/self/exe"), 0)));
    }
}
