//! The arguments `--image` and `--kernel`: reads the kernels of a file and their attributes.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::Hash;
use std::path::{Path, PathBuf};

use clap::Args;
use cpp_demangle::{DemangleOptions, Symbol};
use gridguard::image::{FileImage, ImageFile, KernelAttributes};
use gridguard::{DeviceLimits, Rule};
use gridguard_index::{EntryIndex, EntryPlaces};
use serde::Serialize;

use crate::error::CommandError;
use crate::files::read_start;
use crate::output::Table;
use crate::words::similar;

#[derive(Args)]
pub(super) struct ImageArgs {
    /// File with the kernel: a cubin, PTX, a fatbin, or an object file, static or shared library or program. It
    /// gives the kernel's registers, memory, parameters and launch bounds. Without --grid, lists its kernels
    #[arg(long, value_name = "FILE")]
    pub(super) image: Option<PathBuf>,
    /// Name of the kernel in the file or in the source [default: the only kernel of the file]
    #[arg(long, value_name = "NAME", requires = "image")]
    pub(super) kernel: Option<String>,
    /// Value of a parameter by its name in the PTX or its number, for 32-bit indices; NAME+8 is the value 8 bytes into
    /// it
    #[arg(long, hide_short_help = true, value_name = "NAME=VALUE", requires = "image")]
    pub(super) param: Vec<String>,
}

/// A file of images.
pub(super) struct KernelFile<'a> {
    path: &'a Path,
    images: ImageFile<'a>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ImageKernel {
    /// The architecture of the image, if known.
    architecture: Option<String>,
    ptx: bool,
    /// The name in the source, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    demangled: Option<String>,
    #[serde(flatten)]
    pub(super) attributes: KernelAttributes,
    /// Rules that cannot be checked, because attributes are missing.
    unchecked_rules: Vec<Rule>,
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let bytes = read_start(path, MOST_BYTES + 1)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read <= MOST_BYTES) {
        return Ok(bytes);
    }
    let too_large = format!("the file has more than {MOST_BYTES} bytes");
    Err(CommandError::failed(format_args!("{}: {too_large}", path.display())))
}

impl<'a> KernelFile<'a> {
    pub(super) fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Self, CommandError> {
        let images = ImageFile::parse(bytes);
        Ok(Self { path, images: images.map_err(CommandError::in_file(path))? })
    }

    /// The kernels for one of `devices`, or all kernels without devices. `name` selects some of them. Sorted by
    /// name.
    pub(super) fn kernels(
        &self,
        devices: &[&DeviceLimits],
        name: Option<&str>,
    ) -> Result<Vec<ImageKernel>, CommandError> {
        let is_used = |image: &FileImage<'_>| {
            let is_chosen = |device: &&DeviceLimits| {
                let mut chosen = self.images.images_for(device.compute_capability);
                chosen.any(|other| std::ptr::eq(other, image))
            };
            devices.is_empty() || devices.iter().any(is_chosen)
        };
        let mut kernels = Vec::new();
        for image in self.images.images().filter(|image| is_used(image)) {
            let of_image = image.kernels();
            let of_image = of_image.map_err(CommandError::in_file(self.path))?;
            kernels.extend(of_image.into_iter().map(|kernel| ImageKernel::new(image, kernel)));
        }
        kernels.sort_by(|one, other| one.attributes.name.cmp(&other.attributes.name));
        drop_linked(&mut kernels, |kernel| (kernel.ptx, kernel.architecture.clone()));
        match name {
            Some(name) => self.called(name, kernels),
            None => Ok(kernels),
        }
    }

    /// The kernel called `name` for `device`, or the only one. `Ok(Err(reason))` if the file has no image for the
    /// device.
    pub(super) fn kernel(
        &self,
        device: &DeviceLimits,
        name: Option<&str>,
    ) -> Result<Result<ImageKernel, String>, CommandError> {
        if let Some(mismatch) = self.mismatch(device) {
            return Ok(Err(mismatch));
        }
        let mut kernels = self.kernels(&[device], name)?;
        drop_linked(&mut kernels, |_| ());
        // Several source files may contain the same kernel.
        kernels.dedup_by(|one, other| one.attributes == other.attributes);
        if let [kernel] = &kernels[..] {
            return Ok(Ok(kernel.clone()));
        }
        let path = self.path.display();
        let problem = match (kernels.len(), name) {
            (0, _) => self.without_kernels(&[]),
            (number, None) => format!("{path} contains {number} kernels: choose one with --kernel"),
            (number, Some(name)) => {
                format!("{path} contains {number} kernels called {name:?}: use one of these names")
            }
        };
        Err(CommandError::invalid(
            problem + &lines(kernels.iter().map(|kernel| &*kernel.attributes.name)),
        ))
    }

    /// The indices of the kernel `name`, if the file has PTX of it, at best for `device`.
    pub(super) fn index(&self, device: &DeviceLimits, name: &str) -> Option<EntryIndex> {
        let of_device = self.images.images_for(device.compute_capability);
        let mut texts = of_device.chain(self.images.images()).filter(|image| image.is_ptx());
        texts.find_map(|image| {
            // Cheaper than the analysis of a library's many texts.
            let kernels = image.kernels().ok()?;
            kernels.iter().find(|kernel| kernel.name == name)?;
            let text = image.ptx().ok()?;
            EntryPlaces::read(&text).ok()?.index(&text, name).ok()?
        })
    }

    /// Describes a kernel, and how to find its missing attributes.
    pub(super) fn describe(&self, kernel: &ImageKernel, device: &DeviceLimits) -> String {
        let mut lines = format!("  {}\n", kernel.description());
        if kernel.unchecked_rules.is_empty() {
            return lines;
        }
        let (rules, path) = (kernel.unchecked(), self.path.display());
        let sm = device.compute_capability.sm();
        let one_image = self.images.images().count() == 1;
        let (why, command) = match (kernel.ptx, kernel.attributes.registers_per_thread) {
            (true, _) if one_image => (
                "PTX lacks the attributes that they need",
                format!("ptxas --gpu-name {sm} --output-file kernel.cubin {path}"),
            ),
            (true, _) => (
                "PTX lacks the attributes that they need",
                format!("cuobjdump --extract-ptx all {path}, ptxas --gpu-name {sm}"),
            ),
            (false, None) => (
                "the file is not linked yet, which may change the attributes that they need",
                format!("nvlink --arch {sm} --output-file linked.cubin {path}"),
            ),
            (false, Some(_)) => {
                let why = "the depth of recursion or of calls through pointers depends on the data";
                lines += &format!("  not checked: {rules}: {why}\n");
                return lines;
            }
        };
        lines += &format!(
            "  not checked: {rules}: {why}; check the cubin that this writes: {command}\n"
        );
        lines
    }

    /// The kernels called `name`, exactly or else in the source.
    fn called(
        &self,
        name: &str,
        kernels: Vec<ImageKernel>,
    ) -> Result<Vec<ImageKernel>, CommandError> {
        let is_exact = |kernel: &ImageKernel| kernel.attributes.name == name;
        let only_exact = kernels.iter().any(is_exact);
        let matches =
            |kernel: &&ImageKernel| is_exact(kernel) || !only_exact && kernel.is_called(name);
        let found: Vec<_> = kernels.iter().filter(matches).cloned().collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let path = self.path.display();
        let compared = kernels.iter().take(MOST_COMPARED);
        let names = compared.flat_map(|kernel| [&*kernel.attributes.name, kernel.name()]);
        let (heading, names) = match similar(name, names, SHOWN_SIMILAR) {
            similar if similar.is_empty() => {
                ("it contains", kernels.iter().map(ImageKernel::name).collect())
            }
            similar => ("similar names are", similar),
        };
        let problem = format!("{path} contains no kernel {name:?}; {heading}");
        Err(CommandError::invalid(problem + &lines(names.into_iter())))
    }

    /// Why there are no kernels for one of `devices`, or none at all.
    pub(super) fn without_kernels(&self, devices: &[&DeviceLimits]) -> String {
        let mismatch = devices.iter().find_map(|device| self.mismatch(device));
        mismatch.unwrap_or_else(|| format!("{} contains no kernel", self.path.display()))
    }

    /// Why `device` cannot use any image, if it cannot.
    fn mismatch(&self, device: &DeviceLimits) -> Option<String> {
        if self.images.images_for(device.compute_capability).next().is_some() {
            return None;
        }
        let mut architectures: Vec<String> = Vec::new();
        for image in self.images.images() {
            let kind = if image.is_ptx() { "PTX for " } else { "" };
            let name = image.architecture().map_or_else(String::new, |one| format!("{kind}{one}"));
            if !architectures.contains(&name) && architectures.len() < SHOWN_NAMES {
                architectures.push(name);
            }
        }
        let (path, architectures) = (self.path.display(), architectures.join(", "));
        let DeviceLimits { name, compute_capability, .. } = device;
        let sm = compute_capability.sm();
        Some(format!(
            "{path} is for {architectures}, but {name} has compute capability {compute_capability}: \
             compile it for {sm}"
        ))
    }
}

impl ImageKernel {
    fn new(image: &FileImage<'_>, attributes: KernelAttributes) -> Self {
        let architecture = image.architecture().map(|architecture| architecture.to_string());
        let demangled = demangled(&attributes.name, DemangleOptions::new());
        let unchecked_rules = attributes.unchecked_rules();
        Self { architecture, ptx: image.is_ptx(), demangled, attributes, unchecked_rules }
    }

    pub(super) fn with_attributes(self, attributes: KernelAttributes) -> Self {
        Self { unchecked_rules: attributes.unchecked_rules(), attributes, ..self }
    }

    pub(super) fn name(&self) -> &str {
        self.demangled.as_ref().unwrap_or(&self.attributes.name)
    }

    fn description(&self) -> String {
        let of_column = |(_, template, value): &Column| {
            let value = value(&self.attributes)?;
            let template = if value == ANY { "{} cluster" } else { template };
            Some(template.replace("{}", &value))
        };
        let attributes: Vec<String> = COLUMNS.iter().filter_map(of_column).collect();
        let kind = if self.ptx { "PTX for " } else { "" };
        let architecture = self.architecture.as_deref().unwrap_or("any architecture");
        format!("kernel {} ({kind}{architecture}): {}", self.name(), attributes.join(", "))
    }

    pub(super) fn unchecked(&self) -> String {
        self.unchecked_rules.iter().map(Rule::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Whether `name` is its name in the source, with or without parameters, template arguments and namespaces.
    fn is_called(&self, name: &str) -> bool {
        let options = DemangleOptions::new().no_params().no_return_type();
        let Some(qualified) = demangled(&self.attributes.name, options) else { return false };
        let plain = qualified.split('<').next().unwrap_or_default();
        let own = plain.rsplit("::").next().unwrap_or_default();
        [self.name(), &qualified, plain, own].contains(&name)
    }
}

/// Drops relocatable kernels and PTX if the file also has the same kernel linked, with the same `key`.
fn drop_linked<K: Hash + Eq>(kernels: &mut Vec<ImageKernel>, key: impl Fn(&ImageKernel) -> K) {
    let is_linked = |kernel: &ImageKernel| kernel.attributes.registers_per_thread.is_some();
    let declared = |kernel: &ImageKernel| KernelAttributes {
        registers_per_thread: None,
        static_shared_bytes: None,
        local_bytes_per_thread: None,
        ..kernel.attributes.clone()
    };
    let named = |kernel: &ImageKernel| (kernel.attributes.name.clone(), key(kernel));
    let linked = kernels.iter().filter(|kernel| is_linked(kernel));
    let linked: HashMap<_, _> = linked.map(|kernel| (named(kernel), declared(kernel))).collect();
    kernels.retain(|kernel| {
        is_linked(kernel) || linked.get(&named(kernel)) != Some(&declared(kernel))
    });
}

/// An attribute: its title in the table, its text in a description, and its value.
type Column = (&'static str, &'static str, fn(&KernelAttributes) -> Option<String>);

const COLUMNS: [Column; 7] = [
    (">registers", "{} registers", |it| text(it.registers_per_thread)),
    (">static shared", "{} bytes of static shared memory", |it| text(it.static_shared_bytes)),
    (">local", "{} bytes of local memory", |it| text(it.local_bytes_per_thread)),
    (">parameters", "{} bytes of parameters", |it| text(it.parameter_bytes)),
    (">max threads", "at most {} threads", |it| text(it.max_threads_per_block)),
    ("block", "block of {}", |it| text(it.required_block)),
    ("cluster", "cluster of {}", |it| {
        text(it.required_cluster).or(it.cluster_must_be_set.then(|| ANY.to_owned()))
    }),
];
/// The cluster of a kernel that needs one of any size.
const ANY: &str = "any";

fn text(value: Option<impl ToString>) -> Option<String> {
    Some(value?.to_string())
}

pub(super) fn table(kernels: &[ImageKernel]) -> Table {
    let titles = COLUMNS.iter().map(|(title, ..)| *title);
    let mut table = Table::new(["kernel", "image"].into_iter().chain(titles));
    for kernel in kernels {
        let kind = if kernel.ptx { "PTX " } else { "" };
        let image = format!("{kind}{}", kernel.architecture.as_deref().unwrap_or_default());
        let values = COLUMNS.iter().map(|(_, _, value)| value(&kernel.attributes));
        let values = values.map(Option::unwrap_or_default);
        table.push([kernel.name().to_owned(), image].into_iter().chain(values));
    }
    table
}

/// The name in the source of a mangled name. Long names stay mangled.
fn demangled(mangled: &str, options: DemangleOptions) -> Option<String> {
    struct Bounded(String);
    impl Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() > LONGEST_NAME { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let is_mangled = mangled.starts_with("_Z") && mangled.len() <= LONGEST_NAME;
    let symbol = Symbol::new(is_mangled.then_some(mangled)?).ok()?;
    let mut name = Bounded(String::new());
    symbol.structured_demangle(&mut name, &options).ok()?;
    Some(name.0)
}

fn lines<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(SHOWN_NAMES);
    let mut lines: String = names.take(SHOWN_NAMES).map(|name| format!("\n  {name}")).collect();
    if more > 0 {
        lines += &format!("\n  and {more} more: without --grid and --kernel, all are listed");
    }
    lines
}

/// The largest file; the largest libraries have about 2 GiB.
const MOST_BYTES: u64 = 4 << 30;
/// Bytes of the longest mangled and demangled name.
const LONGEST_NAME: usize = 4096;
/// The most kernels that are compared with a misspelt name.
const MOST_COMPARED: usize = 20_000;
const SHOWN_SIMILAR: usize = 5;
const SHOWN_NAMES: usize = 20;
