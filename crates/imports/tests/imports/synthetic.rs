//! The check on small crates that exist only here.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::circles;
use crate::tree::Tree;

/// The reports on a crate with these files, or the error of reading it; `lib.rs` is its root.
fn reports(files: &[(&str, &str)]) -> Vec<String> {
    let files: BTreeMap<_, _> =
        files.iter().map(|(file, text)| (Path::new(file), (*text).to_owned())).collect();
    let read = |file: &Path| files.get(file).cloned().ok_or(io::ErrorKind::NotFound.into());
    Tree::read(Path::new("lib.rs"), &read)
        .map_or_else(|error| vec![error], |tree| circles::find(&tree))
}

/// The first lines of the reports: the circles.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let first = |report: String| report.lines().next().unwrap_or_default().to_owned();
    reports(files).into_iter().map(first).collect()
}

#[test]
fn a_circle_of_two_is_reported_with_an_example_of_each_import() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B;\npub struct A;"),
        ("b.rs", "\npub struct B;\nfn b() -> crate::a::A { crate::a::A }"),
    ];
    let report = "lib.rs: crate: a -> b -> a\n    a.rs:1 -> b.rs (crate::b::B)\n    \
                  b.rs:3 -> a.rs (crate::a::A)";
    assert_eq!(reports(&files), [report]);
}

#[test]
fn a_circle_of_three_counts_and_a_chain_does_not() {
    let lib = ("lib.rs", "mod a; mod b; mod c;");
    let (a, b) = (("a.rs", "use crate::b::{self, X};"), ("b.rs", "use crate::c::Y as Z;"));
    assert_eq!(circles(&[lib, a, b, ("c.rs", "")]), [""; 0]);
    let c = ("c.rs", "static A: &str = crate::a::NAME;");
    assert_eq!(circles(&[lib, a, b, c]), ["lib.rs: crate: a -> b -> c -> a"]);
}

#[test]
fn of_several_circles_among_the_same_modules_the_shortest_is_reported() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::A;\nuse crate::b::B;"),
    ];
    let report = "lib.rs: crate: b -> c -> b (the shortest of several circles among 3 modules)";
    assert_eq!(circles(&files), [report]);
}

#[test]
fn a_name_counts_for_the_file_that_defines_it() {
    let b = ("b.rs", "use super::Deep;");
    let inner = ("a/inner.rs", "pub struct Deep;\nfn f() { crate::b::f() }");
    for (lib, a) in [
        ("mod a; mod b; pub use a::Deep;", "mod inner; pub use inner::Deep;"),
        ("mod a; mod b; use a::Other as Deep;", "mod inner; pub use self::inner::Deep as Other;"),
        ("mod a; mod b; pub use a::*;", "mod inner; pub use inner::*;"),
    ] {
        let report = "lib.rs: crate: a -> b -> a\n    a/inner.rs:2 -> b.rs (crate::b::f)\n    \
                      b.rs:1 -> a/inner.rs (super::Deep)";
        assert_eq!(reports(&[("lib.rs", lib), ("a/mod.rs", a), b, inner]), [report]);
    }
    // What the parent itself defines is no sibling's.
    let lib = ("lib.rs", "mod a; mod b; pub struct Deep;");
    assert_eq!(circles(&[lib, ("a/mod.rs", "mod inner;"), b, inner]), [""; 0]);
}

#[test]
fn names_through_a_glob_count() {
    let lib = ("lib.rs", "mod a; mod b; use b::B;");
    let a = ("a.rs", "use super::*;\npub fn a(b: B) {}");
    let b = ("b.rs", "use crate::a::*;\npub struct B;");
    assert_eq!(circles(&[lib, a, b]), ["lib.rs: crate: a -> b -> a"]);
    // This parameter is no name of the parent.
    let a = ("a.rs", "use super::*;\npub fn a(B: u8) -> u8 { B }");
    assert_eq!(circles(&[lib, a, b]), [""; 0]);
}

#[test]
fn children_of_any_module_count_with_all_that_is_below_them() {
    let files = [
        ("lib.rs", "mod top;"),
        ("top.rs", "mod x { mod y { use super::super::z::Z; } pub struct X; } mod z;"),
        ("top/z.rs", "mod w;"),
        ("top/z/w.rs", "fn f() { let x: super::super::x::X; }"),
    ];
    assert_eq!(circles(&files), ["lib.rs: crate::top: x -> z -> x"]);
}

#[test]
fn paths_in_macros_and_relative_to_names_in_scope_count() {
    let lib = ("lib.rs", "mod a; mod b;");
    let b = ("b.rs", "use crate::a;\nfn b() { a::f() }");
    let a = ("a.rs", "pub fn f() { println!(\"{}\", (1, super::b::X)); }");
    assert_eq!(circles(&[lib, a, b]), ["lib.rs: crate: a -> b -> a"]);
    let a = ("a.rs", "#[derive(Error)] #[error(\"{}\", super::b::X)] struct A;");
    assert_eq!(circles(&[lib, a, b]), ["lib.rs: crate: a -> b -> a"]);
    let a = ("a.rs", "use super as top;\npub fn f() { top::b::b() }");
    assert_eq!(circles(&[lib, a, b]), ["lib.rs: crate: a -> b -> a"]);
    let a = ("a.rs", "pub fn f() { println!(\"{}\", ::b::X); std::b::b() }");
    assert_eq!(circles(&[lib, a, b]), [""; 0]);
}

#[test]
fn test_code_does_not_count() {
    let lib = ("lib.rs", "mod a; mod b; #[cfg(test)] #[path = \"elsewhere.rs\"] mod kit;");
    let b = ("b.rs", "use crate::a::A;");
    for a in [
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(all(test, not(loom)))] mod models { use crate::b::B; }",
        "mod tests { use crate::b::B; }",
        "#[test] fn f() { crate::b::f() }",
        "impl A { #[cfg(test)] fn f() { crate::b::f() } }",
    ] {
        assert_eq!(circles(&[lib, ("a.rs", a), b]), [""; 0], "{a}");
    }
    for a in ["#[cfg(not(test))] use crate::b::B;", "#[cfg(any(test, loom))] use crate::b::B;"] {
        assert_eq!(circles(&[lib, ("a.rs", a), b]), ["lib.rs: crate: a -> b -> a"], "{a}");
    }
}

#[test]
fn parent_and_child_may_import_each_other() {
    let files = [
        ("lib.rs", "mod a; use a::inner::Deep; pub struct Top;"),
        ("a.rs", "pub mod inner; use inner::Deep; use crate::Top; pub(in crate::a) struct A;"),
        ("a/inner.rs", "use super::A; use crate::Top; pub struct Deep;"),
    ];
    assert_eq!(circles(&files), [""; 0]);
}

#[test]
fn a_module_without_a_file_is_an_error() {
    let error = "lib.rs: cannot find the file of module missing";
    assert_eq!(reports(&[("lib.rs", "mod missing;")]), [error]);
}
