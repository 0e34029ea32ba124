//! No sibling modules import each other in a circle, in any crate of the workspace.
//!
//! The children of a module are the nodes of a graph, each with all modules below it. An import
//! from `a::x::y` of something that `a::z::w` defines is the edge from `x` to `z` among the
//! children of `a`. That graph must have no circle. Imports between a module and what is below it
//! are no edges, and test code does not count.

mod circles;
mod resolve;
mod scope;
mod synthetic;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, str};

use serde_json::Value;
use tree::Tree;

/// How to mend a circle.
const REMEDY: &str = "Move the definition that both sides use into a module below both, \
                      or the one that needs it up to its user.";

/// Root files of all libraries, programs and build scripts, and the directory of the workspace.
fn roots() -> Result<(Vec<PathBuf>, PathBuf), String> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout).map_err(|error| {
        format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&metadata.stderr))
    })?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(PathBuf::from);
    let counts = |target: &Value| {
        !list(&target["kind"]).iter().any(|kind| ["test", "bench"].map(Value::from).contains(kind))
    };
    let packages = list(&metadata["packages"]);
    let targets = packages.iter().flat_map(|package| list(&package["targets"]));
    let roots = targets.filter(counts).filter_map(|target| text(&target["src_path"])).collect();
    let workspace = text(&metadata["workspace_root"]).ok_or("cargo metadata: no workspace")?;
    Ok((roots, workspace))
}

#[test]
fn no_sibling_modules_import_each_other_in_a_circle() {
    let (roots, workspace) = roots().unwrap();
    let names: Vec<_> = roots.iter().filter_map(|root| root.file_name()).collect();
    for name in ["lib.rs", "main.rs", "build.rs"] {
        assert!(names.contains(&name.as_ref()), "no {name} among {roots:?}");
    }
    let read = |file: &Path| fs::read_to_string(workspace.join(file));
    let circles: Vec<String> = roots
        .iter()
        .map(|root| root.strip_prefix(&workspace).unwrap())
        .flat_map(|root| circles::find(&Tree::read(root, &read).unwrap()))
        .collect();
    assert!(
        circles.is_empty(),
        "{} circles of modules that import each other:\n{}\n{REMEDY}",
        circles.len(),
        circles.join("\n"),
    );
}
