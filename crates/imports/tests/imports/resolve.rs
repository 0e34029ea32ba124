//! Finds the module that defines what a path names, through any number of re-exports up to
//! [`DEPTH`].

use crate::tree::Tree;

/// The most re-exports on the way to a definition. It ends the search if two of them name each
/// other.
const DEPTH: usize = 8;

/// What a name stands for.
#[derive(Clone, Copy)]
pub enum Definition {
    /// A module.
    Module(usize),
    /// Something in a module.
    Item(usize),
}

impl Definition {
    /// The module, or the one that the item is in.
    pub const fn module(self) -> usize {
        let (Self::Module(module) | Self::Item(module)) = self;
        module
    }
}

impl Tree {
    /// The module that defines what `path` names in module `from`. None, if that is no part of this
    /// crate.
    pub fn resolve(&self, from: usize, path: &[String]) -> Option<usize> {
        let scope = &self.modules[from].scope;
        let is_local = |name: &String| {
            let is_child = self.modules[from].children.iter().any(|(child, _)| child == name);
            is_child || scope.aliases.contains_key(name) || scope.variables.contains(name)
        };
        match path {
            // The `use` of a name is a path as well, so only names from globs are left.
            [name] if is_local(name) => None,
            _ => self.follow(from, path, DEPTH).map(Definition::module),
        }
    }

    fn follow(&self, from: usize, path: &[String], depth: usize) -> Option<Definition> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent,
            first => match self.find(from, first, depth)? {
                Definition::Module(module) => module,
                item => return Some(item),
            },
        };
        for name in rest {
            at = match name.as_str() {
                "self" => at,
                "super" => self.modules[at].parent,
                name => match self.find(at, name, depth) {
                    Some(Definition::Module(module)) => module,
                    Some(item) => return Some(item),
                    // Made by a macro, or of another crate and exported here.
                    None => return Some(Definition::Item(at)),
                },
            };
        }
        Some(Definition::Module(at))
    }

    /// What a name stands for in a module: a child, what it defines, what it uses.
    fn find(&self, module: usize, name: &str, depth: usize) -> Option<Definition> {
        let depth = depth.checked_sub(1)?;
        let (scope, children) = (&self.modules[module].scope, &self.modules[module].children);
        if let Some((_, child)) = children.iter().find(|(child, _)| child == name) {
            return Some(Definition::Module(*child));
        }
        if scope.items.contains(name) {
            return Some(Definition::Item(module));
        }
        if let Some(path) = scope.aliases.get(name) {
            return self.follow(module, path, depth);
        }
        scope.globs.iter().find_map(|glob| match self.follow(module, glob, depth)? {
            Definition::Module(other) if other != module => self.find(other, name, depth),
            _ => None,
        })
    }
}
