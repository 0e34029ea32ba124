//! What a module defines, what it brings into scope, and the paths that it names.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree};

/// A path as it is written, without `::*`.
pub struct NamedPath {
    pub names: Vec<String>,
    pub line: usize,
}

/// The names of a module.
#[derive(Default)]
pub struct Scope {
    /// What the module defines.
    pub items: BTreeSet<String>,
    /// What `use` brings into scope: its path by its name here.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// The paths of `use path::*`.
    pub globs: Vec<Vec<String>>,
    /// All paths, those of `use` first.
    pub paths: Vec<NamedPath>,
    /// Names of parameters and variables.
    pub variables: BTreeSet<String>,
}

impl Scope {
    /// The names of a module with these items, without those of its children and of tests.
    pub fn of(items: &[Item]) -> Self {
        let mut scope = Self::default();
        scope.items.extend(items.iter().filter_map(defined).map(Ident::to_string));
        for item in items {
            scope.visit_item(item);
        }
        scope
    }

    fn add_use(&mut self, tree: &UseTree, before: &[&Ident]) {
        let path = |last: Option<&Ident>| {
            let idents = || before.iter().copied().chain(last.filter(|last| *last != "self"));
            let line = idents().last().map_or(0, |ident| ident.span().start().line);
            NamedPath { names: idents().map(Ident::to_string).collect(), line }
        };
        let (path, alias) = match tree {
            UseTree::Path(path) => {
                return self.add_use(&path.tree, &[before, &[&path.ident]].concat());
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(tree, before));
            }
            UseTree::Glob(_) => {
                let path = path(None);
                self.globs.push(path.names.clone());
                return self.paths.push(path);
            }
            UseTree::Name(name) => (path(Some(&name.ident)), None),
            UseTree::Rename(name) => (path(Some(&name.ident)), Some(name.rename.to_string())),
        };
        if let Some(alias) = alias.or(path.names.last().cloned()) {
            self.aliases.insert(alias, path.names.clone());
        }
        self.paths.push(path);
    }

    fn add_path(&mut self, idents: &[&Ident]) {
        let Some(first) = idents.first() else { return };
        let names = idents.iter().map(ToString::to_string).collect();
        self.paths.push(NamedPath { names, line: first.span().start().line });
    }

    /// Paths of two names or more in the tokens of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let is_punct = |at: usize, sign: char| match tokens.get(at) {
            Some(TokenTree::Punct(punct)) => punct.as_char() == sign,
            _ => false,
        };
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(ident) => {
                    // `::path` is of another crate.
                    let is_foreign = at > 1 && is_punct(at - 1, ':') && is_punct(at - 2, ':');
                    let mut path = vec![ident];
                    while is_punct(at + 1, ':') && is_punct(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next);
                        at += 3;
                    }
                    if path.len() > 1 && !is_foreign {
                        self.add_path(&path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Visits nodes that are not for tests only.
macro_rules! unless_test {
    ($($visit:ident: $node:ident),* $(,)?) => {$(
        fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_test(&node.attrs) {
                visit::$visit(self, node);
            }
        }
    )*};
}

impl<'ast> Visit<'ast> for Scope {
    unless_test! {
        visit_arm: Arm, visit_field: Field, visit_field_value: FieldValue, visit_local: Local,
        visit_impl_item_const: ImplItemConst, visit_impl_item_fn: ImplItemFn,
        visit_item_const: ItemConst, visit_item_enum: ItemEnum, visit_item_fn: ItemFn,
        visit_item_impl: ItemImpl, visit_item_macro: ItemMacro, visit_item_static: ItemStatic,
        visit_item_struct: ItemStruct, visit_item_trait: ItemTrait, visit_item_type: ItemType,
        visit_trait_item_fn: TraitItemFn, visit_variant: Variant,
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() && !is_test(&item.attrs) {
            self.add_use(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let idents: Vec<_> = path.segments.iter().map(|segment| &segment.ident).collect();
            self.add_path(&idents);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.variables.insert(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }

    /// A child has a scope of its own.
    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {}

    /// The path in `pub(in path)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// Derived code has paths of its attributes, such as `#[error("...", super::MOST)]`.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
        }
    }
}

/// The name of what an item defines, except modules.
fn defined(item: &Item) -> Option<&Ident> {
    let (ident, attributes) = match item {
        Item::Const(item) => (&item.ident, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.attrs),
        Item::Fn(item) => (&item.sig.ident, &item.attrs),
        Item::Macro(item) => (item.ident.as_ref()?, &item.attrs),
        Item::Static(item) => (&item.ident, &item.attrs),
        Item::Struct(item) => (&item.ident, &item.attrs),
        Item::Trait(item) => (&item.ident, &item.attrs),
        Item::Type(item) => (&item.ident, &item.attrs),
        Item::Union(item) => (&item.ident, &item.attrs),
        _ => return None,
    };
    (!is_test(attributes)).then_some(ident)
}

/// Whether attributes exclude an item from every build that is not a test.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && holds(&attribute.meta, true) == Some(false))
    })
}

/// Whether a condition holds in builds that are not tests; `None` if that depends on other
/// conditions too. `is_cfg` says that this is `cfg(...)` itself, which means the same as
/// `all(...)`.
fn holds(condition: &Meta, is_cfg: bool) -> Option<bool> {
    let list = match condition {
        Meta::Path(path) => return path.is_ident("test").then_some(false),
        Meta::List(list) => list,
        Meta::NameValue(_) => return None,
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let parts: Vec<_> = parts.iter().map(|part| holds(part, false)).collect();
    match () {
        () if is_cfg || list.path.is_ident("all") => parts.contains(&Some(false)).then_some(false),
        () if list.path.is_ident("any") => {
            parts.iter().all(|part| *part == Some(false)).then_some(false)
        }
        () if list.path.is_ident("not") => parts.first().copied().flatten().map(|holds| !holds),
        () => None,
    }
}
