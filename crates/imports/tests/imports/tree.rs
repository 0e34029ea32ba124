//! The modules of a crate, read from its files.

use std::io;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::scope::{Scope, is_test};

/// Reads a file. Tests have files that exist nowhere else.
pub type Read<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// A module.
pub struct Module {
    /// The names from the crate's root to it; empty for the root.
    pub path: Vec<String>,
    /// The file that it is in.
    pub file: PathBuf,
    /// The module that it is a child of. The root is its own parent.
    pub parent: usize,
    /// Its children, by name.
    pub children: Vec<(String, usize)>,
    /// What it defines and names.
    pub scope: Scope,
}

/// All modules of a crate without those for tests; the first one is the root.
#[derive(Default)]
pub struct Tree {
    pub modules: Vec<Module>,
}

/// Where a module is.
struct Place {
    file: PathBuf,
    /// The directory of the files of its children.
    directory: PathBuf,
    /// Whether it is written within another module's file.
    is_inline: bool,
}

impl Tree {
    /// Reads a crate from its root file on.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn read(root: &Path, read: Read<'_>) -> Result<Self, String> {
        let mut tree = Self::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        let place = Place { file: root.to_owned(), directory, is_inline: false };
        let file = parse(root, read)?.map_err(|error| format!("{}: {error}", root.display()))?;
        tree.add(Vec::new(), 0, place, &file.items, read)?;
        Ok(tree)
    }

    fn add(
        &mut self,
        path: Vec<String>,
        parent: usize,
        place: Place,
        items: &[Item],
        read: Read<'_>,
    ) -> Result<usize, String> {
        let index = self.modules.len();
        let (file, scope) = (place.file.clone(), Scope::of(items));
        self.modules.push(Module { path, file, parent, children: Vec::new(), scope });
        for item in items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            if name == "tests" || is_test(&module.attrs) {
                continue;
            }
            let mut path = self.modules[index].path.clone();
            path.push(name.clone());
            let child = match &module.content {
                Some((_, items)) => {
                    let directory = place.directory.join(&name);
                    let place = Place { file: place.file.clone(), directory, is_inline: true };
                    Some(self.add(path, index, place, items, read)?)
                }
                None => match open(module, &name, &place, read)? {
                    Some((place, file)) => Some(self.add(path, index, place, &file.items, read)?),
                    None => None,
                },
            };
            self.modules[index].children.extend(child.map(|child| (name, child)));
        }
        Ok(index)
    }
}

/// The outer result is that of reading, the inner one that of parsing.
fn parse(file: &Path, read: Read<'_>) -> Result<syn::Result<syn::File>, String> {
    let text = read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(syn::parse_file(&text))
}

/// The file of a child module; none if it says that it is for tests.
fn open(
    module: &ItemMod,
    name: &str,
    parent: &Place,
    read: Read<'_>,
) -> Result<Option<(Place, syn::File)>, String> {
    let (candidates, directory) = match module.attrs.iter().find_map(path_attribute) {
        Some(path) => {
            let beside = parent.file.parent().unwrap_or(Path::new(""));
            let file = if parent.is_inline { &parent.directory } else { beside }.join(path);
            let directory = file.parent().unwrap_or(Path::new("")).to_owned();
            (vec![file], directory)
        }
        None => {
            let directory = parent.directory.join(name);
            (vec![directory.with_extension("rs"), directory.join("mod.rs")], directory)
        }
    };
    for file in candidates {
        let Ok(parsed) = parse(&file, read) else { continue };
        let parsed = parsed.map_err(|error| format!("{}: {error}", file.display()))?;
        let place = Place { file, directory, is_inline: false };
        return Ok(Some((place, parsed)).filter(|(_, file)| !is_test(&file.attrs)));
    }
    Err(format!("{}: cannot find the file of module {name}", parent.file.display()))
}

/// The file that `#[path = "..."]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    }
}
