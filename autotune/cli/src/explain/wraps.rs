//! The 32-bit indices of kernels that wrap in the launch of a log.

use core::cell::RefCell;
use std::path::Path;

use gridguard::Axis;
use gridguard_diagnose::{Evidence, ViolatedRule};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, Wrap, index};

use crate::error::CommandError;
use crate::output::note;
use crate::ptx::index::{place, set_parameters};
use crate::ptx::text_of;

/// The entries of a PTX file.
#[derive(Default)]
pub(super) struct Entries(RefCell<Vec<Entry>>);

struct Entry {
    index: EntryIndex,
    /// The parameters that are given.
    sizes: Sizes,
    given: Vec<Size>,
    is_noted: bool,
}

impl Entries {
    /// The entries that have the parameters `given`, which at least one must have.
    pub(super) fn read(file: &Path, given: &[String]) -> Result<Self, CommandError> {
        let all = index(&text_of(file)?);
        let all = all.map_err(CommandError::in_file(file))?;
        let (mut entries, mut refused) = (Vec::new(), None);
        for index in all {
            let mut sizes = Sizes::default();
            match set_parameters(&mut sizes, &index, given) {
                Ok(given) => entries.push(Entry { index, sizes, given, is_noted: false }),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if entries.is_empty() => Err(error),
            _ => Ok(Self(entries.into())),
        }
    }

    /// The worst index that wraps in the launch of `evidence`. Notes an index that only wraps for some parameters.
    pub(super) fn wraps(&self, evidence: &Evidence) -> Vec<ViolatedRule> {
        let kernel = evidence.kernel.as_deref();
        let mut all = self.0.borrow_mut();
        let mut named = all.iter_mut().filter(|entry| is_called(&entry.index.name, kernel));
        let (Some(entry), None) = (named.next(), named.next()) else { return Vec::new() };
        let (mut sizes, mut known) = (entry.sizes.clone(), entry.given.clone());
        let launch = &evidence.launch_sizes;
        let mut set = |size: fn(usize) -> Size, dim: Option<[u64; 3]>| {
            for (axis, value) in dim.into_iter().flatten().enumerate() {
                sizes.set(size(axis), i64::try_from(value).unwrap_or(i64::MAX));
                known.push(size(axis));
            }
        };
        set(Size::Grid, launch.grid);
        set(Size::Block, launch.block);
        let Verdict::Wraps(wraps) = entry.index.verdict(&sizes) else { return Vec::new() };
        let is_whole = entry.index.sizes().iter().all(|(size, _)| known.contains(size));
        let is_certain =
            |wrap: &&Wrap| is_whole || wrap.first.iter().any(|first| known.contains(&first.size));
        let worst = |wrap: &&Wrap| (wrap.is_address, wrap.extreme.abs());
        if let Some(wrap) = wraps.iter().filter(is_certain).max_by_key(worst) {
            return vec![violated(wrap)];
        }
        if let Some(Wrap { expression, formula, .. }) = wraps.iter().max_by_key(worst)
            && !core::mem::replace(&mut entry.is_noted, true)
        {
            note(format_args!(
                "a 32-bit index of {} may wrap: {expression}, if {formula}; --grid, --block and --param decide it",
                entry.index.name
            ));
        }
        Vec::new()
    }
}

/// Whether a log means the kernel `name`, mangled or as in the source. A log may name none.
fn is_called(name: &str, stated: Option<&str>) -> bool {
    let Some(stated) = stated else { return true };
    let rest = stated.strip_prefix(name);
    let is_same = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('('));
    let source = stated.split(['(', '<']).next().and_then(|it| it.rsplit([' ', ':']).next());
    let mangled = source.map(|source| format!("{}{source}", source.len()));
    is_same || name.starts_with("_Z") && mangled.is_some_and(|mangled| name.contains(&mangled))
}

fn violated(wrap: &Wrap) -> ViolatedRule {
    let Wrap { expression, extreme, .. } = wrap;
    let mut remedy = "compile the kernel with 64-bit indices".to_owned();
    let on_grid = wrap.first.iter().find_map(|first| match first.size {
        Size::Grid(axis) if first.value > 1 => Some((Axis::ALL.get(axis)?, first.value - 1)),
        _ => None,
    });
    if let Some((axis, most)) = on_grid {
        remedy += &format!(
            ", or launch chunks of at most {most} blocks on {}, each with pointers to its own items",
            axis.letter()
        );
    }
    ViolatedRule {
        id: "index-wrap".to_owned(),
        what: format!("a 32-bit index wraps: {expression} reaches {extreme} ({})", place(wrap)),
        remedy,
        codes: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_name_mangled_or_not() {
        for stated in
            ["rows", "rows(float*, int)", "void rows<float>(float*, int)", "own::rows(int)"]
        {
            assert!(is_called("_ZN3own4rowsIfEEvPfi", Some(stated)), "{stated}");
        }
        assert!(is_called("rows", Some("rows")) && is_called("rows", Some("rows(float*)")));
        assert!(is_called("anything", None));
        for other in ["row", "rows2", "2rows(int)", "", "(", "narrows"] {
            assert!(!is_called("_Z4rowsPfi", Some(other)), "{other}");
            assert!(!is_called("rows", Some(other)), "{other}");
        }
    }
}
