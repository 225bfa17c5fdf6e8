//! The `use` edges between the files of a crate, read from its source.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree};

/// The files of a crate and the other files of it that each refers to.
///
/// A reference is a path in a `use` declaration, an expression, a type or a pattern that begins with
/// `crate`, `self`, `super` or a child module. It leads to the file of the innermost module that the
/// path names, so a path through a re-export leads to the file that re-exports. `mod` declarations
/// and modules under `#[cfg(test)]` do not count.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// The file of each module, by its path from the root of the crate.
    files: HashMap<Vec<String>, PathBuf>,
    edges: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Modules {
    /// Reads the crate whose root is `root`, such as `src/lib.rs`.
    pub(crate) fn of_crate(root: &Path) -> Self {
        let mut modules = Self::default();
        let mut parsed = Vec::new();
        modules.add_file(root, &[], &mut parsed);
        for (module, file, syntax) in parsed {
            let mut references =
                References { modules: &modules.files, module, found: BTreeSet::new() };
            references.visit_file(&syntax);
            let mut found = references.found;
            found.remove(&file);
            modules.edges.entry(file).or_default().extend(found);
        }
        modules
    }

    /// The sets of files that refer to each other in a circle, each sorted.
    pub(crate) fn circles(&self) -> BTreeSet<Vec<PathBuf>> {
        let reach: BTreeMap<_, _> =
            self.edges.keys().map(|file| (file, self.reachable(file))).collect();
        let circle = |file| -> Vec<PathBuf> {
            let back = |other: &&&PathBuf| reach.get(**other).is_some_and(|to| to.contains(file));
            reach[file].iter().filter(back).map(|other| PathBuf::clone(other)).collect()
        };
        self.edges.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }

    /// The files that `file` refers to, also through others.
    fn reachable<'a>(&'a self, file: &'a PathBuf) -> BTreeSet<&'a PathBuf> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(file) = open.pop() {
            open.extend(
                self.edges.get(file).into_iter().flatten().filter(|to| reached.insert(*to)),
            );
        }
        reached
    }

    /// How many files the crate has.
    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    fn add_file(
        &mut self,
        file: &Path,
        module: &[String],
        parsed: &mut Vec<(Vec<String>, PathBuf, syn::File)>,
    ) {
        let source = std::fs::read_to_string(file).expect("the module's file");
        let syntax = syn::parse_file(&source).expect("Rust");
        let folder = match module.is_empty() || file.ends_with("mod.rs") {
            true => file.parent().expect("a folder").to_path_buf(),
            false => file.with_extension(""),
        };
        self.files.insert(module.to_vec(), file.to_path_buf());
        self.add_items(&syntax.items, file, &folder, module, parsed);
        parsed.push((module.to_vec(), file.to_path_buf(), syntax));
    }

    fn add_items(
        &mut self,
        items: &[Item],
        file: &Path,
        folder: &Path,
        module: &[String],
        parsed: &mut Vec<(Vec<String>, PathBuf, syn::File)>,
    ) {
        for item in items {
            let Item::Mod(child) = item else { continue };
            if is_test(&child.attrs) {
                continue;
            }
            let is_moved = child.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
            assert!(!is_moved, "{}: `#[path]` on {}", file.display(), child.ident);
            let name = child.ident.to_string();
            let path = [module, std::slice::from_ref(&name)].concat();
            match &child.content {
                Some((_, items)) => {
                    self.files.insert(path.clone(), file.to_path_buf());
                    self.add_items(items, file, &folder.join(&name), &path, parsed);
                }
                None => {
                    let candidates =
                        [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
                    let child = candidates.iter().find(|path| path.exists());
                    self.add_file(child.expect("a file of the module"), &path, parsed);
                }
            }
        }
    }
}

/// Collects the files that one file refers to.
struct References<'a> {
    modules: &'a HashMap<Vec<String>, PathBuf>,
    /// The module that is being visited.
    module: Vec<String>,
    found: BTreeSet<PathBuf>,
}

impl References<'_> {
    fn refer(&mut self, segments: &[String]) {
        let mut path = self.module.clone();
        let mut rest = segments.iter().peekable();
        match segments.first().map(String::as_str) {
            Some("crate") => {
                path.clear();
                rest.next();
            }
            Some("self") => {
                rest.next();
            }
            Some("super") => {
                while rest.next_if(|segment| *segment == "super").is_some() {
                    path.pop();
                }
            }
            // Another crate, an item in scope, or a child module.
            Some(name) if self.modules.contains_key(&[&path[..], &[name.to_owned()]].concat()) => {}
            _ => return,
        }
        for segment in rest {
            path.push(segment.clone());
            if !self.modules.contains_key(&path) {
                path.pop();
                break;
            }
        }
        if let Some(file) = self.modules.get(&path) {
            self.found.insert(file.clone());
        }
    }

    fn refer_tree(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.refer_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.refer(&with(&name.ident)),
            UseTree::Rename(rename) => self.refer(&with(&rename.ident)),
            UseTree::Glob(_) => self.refer(prefix),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.refer_tree(prefix, tree));
            }
        }
    }
}

impl<'ast> Visit<'ast> for References<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() && !is_test(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.refer_tree(&[], &item.tree);
    }

    /// A visibility such as `pub(in super::super)` refers to no item.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() && segments.len() > 1 {
            self.refer(&segments);
        }
        visit::visit_path(self, path);
    }
}

/// Whether a module is compiled for tests alone.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list
            .tokens
            .to_string()
            .split(|char: char| !char.is_alphanumeric())
            .any(|word| word == "test"),
        _ => false,
    })
}
