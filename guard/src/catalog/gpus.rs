//! The GPU catalogue: limits per compute capability and per GPU, each number with its source.

use core::fmt::Display;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use once_cell::sync::OnceCell;
use serde::Deserialize;

use crate::dim::Dim3;
use crate::limits::{ComputeCapability, DeviceLimits};

/// A GPU of the catalogue.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Its limits, as the driver would report them.
    pub limits: Arc<DeviceLimits>,
    /// Other names, in lower case.
    pub aliases: Vec<String>,
    /// The vendor's memory bandwidth in bytes per second.
    pub memory_bytes_per_second: u64,
    /// Every number with its source.
    pub facts: Vec<Fact>,
}

impl Gpu {
    fn names(&self) -> impl Iterator<Item = &str> {
        core::iter::once(&*self.limits.name).chain(self.aliases.iter().map(String::as_str))
    }
}

/// A number of the catalogue and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The number's name in the catalogue's file.
    pub name: &'static str,
    /// The number; 0 and 1 stand for no and yes.
    pub value: u64,
    /// The source that states it. `None` if none was found; the number is then 0.
    pub source: Option<Arc<Source>>,
}

/// The source of a number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The title of the document, or the device that was measured.
    pub title: String,
    /// Its address, empty for a measurement.
    pub url: String,
}

/// A number with the id of its source.
type Sourced = (u64, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    sources: BTreeMap<String, Source>,
    capabilities: Vec<CapabilityRow>,
    gpus: Vec<GpuRow>,
    /// How names begin that are not in the catalogue, by compute capability.
    #[serde(default)]
    families: Families,
}

type Families = Vec<(ComputeCapability, Vec<String>)>;

/// Declares a row of sourced numbers, and lists them as facts.
macro_rules! row {
    ($(#[$doc:meta])* struct $row:ident { $($plain:ident: $type:ty,)* } numbers { $($number:ident,)* }) => {
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $row {
            $($plain: $type,)*
            $($number: Sourced,)*
        }

        impl $row {
            fn numbers(&self) -> Vec<(&'static str, &Sourced)> {
                vec![$((stringify!($number), &self.$number),)*]
            }
        }
    };
}

row! {
    /// The numbers of a compute capability.
    struct CapabilityRow {
        compute_capability: ComputeCapability,
        cooperative_launch: (bool, String),
        cluster_launch: (bool, String),
    }
    numbers {
        max_grid_x,
        max_grid_y,
        max_grid_z,
        max_block_x,
        max_block_y,
        max_block_z,
        max_threads_per_block,
        warp_size,
        max_warps_per_multiprocessor,
        max_threads_per_multiprocessor,
        max_blocks_per_multiprocessor,
        max_registers_per_thread,
        max_registers_per_block,
        registers_per_multiprocessor,
        register_allocation_unit,
        warp_allocation_granularity,
        max_shared_bytes_per_block,
        max_shared_bytes_per_block_opt_in,
        shared_bytes_per_multiprocessor,
        reserved_shared_bytes_per_block,
        max_portable_cluster_blocks,
        max_parameter_bytes,
    }
}

row! {
    /// The numbers of a GPU.
    struct GpuRow {
        name: String,
        aliases: Vec<String>,
        compute_capability: ComputeCapability,
    }
    numbers {
        multiprocessors,
        l2_bytes,
        memory_bytes,
        memory_bytes_per_second,
    }
}

const FILE: &str = "gpus.ron";
/// The source of a number that is not known.
const UNKNOWN: &str = "unknown";
/// The schema of the catalogue that this code reads.
const SCHEMA: u32 = 1;

/// All GPUs of the catalogue.
///
/// # Errors
///
/// [`CatalogError`] if the built-in data does not parse.
pub fn gpus() -> Result<&'static [Gpu], CatalogError> {
    catalogue().map(|(gpus, _)| gpus.as_slice())
}

fn catalogue() -> Result<&'static (Vec<Gpu>, Families), CatalogError> {
    static CATALOGUE: OnceCell<Result<(Vec<Gpu>, Families), CatalogError>> = OnceCell::new();
    CATALOGUE.get_or_init(|| parse(gridguard_data::GPUS_RON)).as_ref().map_err(Clone::clone)
}

/// The GPU with this name or alias. Case, spaces, hyphens, `NVIDIA`, `GeForce` and `Tesla` do not matter.
///
/// # Errors
///
/// [`CatalogError::unknown_gpu`], with the compute capability to use instead where the name tells it.
///
/// ```
/// use gridguard::catalog;
/// assert_eq!(catalog::gpu("h200")?.limits.max_grid.y, 65_535);
/// assert_eq!(catalog::gpu("NVIDIA H200")?.limits.multiprocessors, 132);
/// # Ok::<(), catalog::CatalogError>(())
/// ```
pub fn gpu(name: &str) -> Result<&'static Gpu, CatalogError> {
    let wanted = plain(name);
    let named = |gpu: &&Gpu| gpu.names().any(|known| plain(known) == wanted);
    let found: Vec<_> = gpus()?.iter().filter(named).collect();
    match found[..] {
        [gpu] => Ok(gpu),
        [] => Err(CatalogError::of_name(name, "no GPU", &instead(name)?)),
        _ => {
            let words = found.iter().filter_map(|gpu| {
                Some(format!("{} ({})", gpu.aliases.first()?, gpu.limits.compute_capability))
            });
            let words: Vec<_> = words.collect();
            let several = format!(": it is {} GPUs, name one: {}", found.len(), words.join(", "));
            Err(CatalogError::of_name(name, "no single GPU", &several))
        }
    }
}

/// A name without case, separators and the words that people leave out.
fn plain(name: &str) -> String {
    let signs = name.chars().filter(|sign| sign.is_alphanumeric() || *sign == '.');
    let mut name = signs.collect::<String>().to_lowercase();
    for word in ["nvidia", "geforce", "tesla"] {
        if let Some(rest) = name.strip_prefix(word) {
            name = rest.to_owned();
        }
    }
    name
}

/// What to use instead of a name that no GPU has: never a GPU, because a similar name may be another architecture.
fn instead(name: &str) -> Result<String, CatalogError> {
    let (gpus, families) = catalogue()?;
    let has: BTreeSet<_> = gpus.iter().map(|gpu| gpu.limits.compute_capability).collect();
    if capability(name).is_some() {
        let has: Vec<_> = has.iter().map(ToString::to_string).collect();
        return Ok(format!(", which has {}", has.join(", ")));
    }
    let name = plain(name);
    let family = families.iter().find(|(_, words)| words.iter().any(|word| name.starts_with(word)));
    Ok(match family {
        Some((capability, _)) => format!(": use {capability}, its compute capability"),
        None => ": use its compute capability, such as 8.6".to_owned(),
    })
}

/// The limits of the GPU with this name or alias, as [`gpu`]. `sm_86`, `compute_86` and `8.6` stand for the GPU of
/// this compute capability with the fewest multiprocessors, `any` for [`DeviceLimits::any_device`]. The names of these
/// limits are known too, for example `any sm_86`. The suffixes of
/// `sm_90a` and `sm_100f` are ignored.
///
/// # Errors
///
/// As [`gpu`].
///
/// ```
/// use gridguard::catalog;
/// assert_eq!(catalog::limits("sm_90")?.compute_capability.to_string(), "9.0");
/// assert_eq!(catalog::limits("9.0")?, catalog::limits("sm_90")?);
/// # Ok::<(), catalog::CatalogError>(())
/// ```
pub fn limits(name: &str) -> Result<Arc<DeviceLimits>, CatalogError> {
    let name = name.trim();
    let any = DeviceLimits::any_device();
    if name.eq_ignore_ascii_case("any") || name == any.name {
        return Ok(Arc::new(any));
    }
    let capability = capability(name);
    let of_capability =
        gpus()?.iter().filter(|gpu| Some(gpu.limits.compute_capability) == capability);
    match of_capability.min_by_key(|gpu| gpu.limits.multiprocessors) {
        Some(smallest) => {
            let mut limits = DeviceLimits::clone(&smallest.limits);
            limits.name = format!("any {}", limits.compute_capability.sm());
            Ok(Arc::new(limits))
        }
        None => Ok(Arc::clone(&gpu(name)?.limits)),
    }
}

/// The compute capability that `sm_90`, `sm_90a`, `compute_90` or `9.0` names, or `any sm_90`, which is the name of
/// its limits.
fn capability(name: &str) -> Option<ComputeCapability> {
    let name = name.strip_prefix("any ").unwrap_or(name);
    if let Some((major, minor)) = name.split_once('.') {
        return Some(ComputeCapability::new(major.parse().ok()?, minor.parse().ok()?));
    }
    let name = name.to_ascii_lowercase();
    let number = name.strip_prefix("sm_").or_else(|| name.strip_prefix("compute_"))?;
    let number = number.strip_suffix(['a', 'f']).unwrap_or(number);
    let number: u32 = number.parse().ok()?;
    Some(ComputeCapability::new(number / 10, number % 10))
}

/// Why a catalogue lookup or file failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CatalogError {
    message: String,
    unknown_gpu: Option<String>,
}

impl CatalogError {
    /// The name that no GPU of the catalogue has, or several have, if that is why the lookup failed.
    pub fn unknown_gpu(&self) -> Option<&str> {
        self.unknown_gpu.as_deref()
    }

    fn of_name(name: &str, no_gpu: &str, instead: &str) -> Self {
        let message = format!("{no_gpu} {name:?} in the catalogue{instead}");
        Self { message, unknown_gpu: Some(name.to_owned()) }
    }

    fn inconsistent(what: impl Display) -> Self {
        Self { message: format!("{FILE}: {what}"), unknown_gpu: None }
    }
}

/// Parses another catalogue in the format of the built-in one.
///
/// # Errors
///
/// [`CatalogError`] with the position if the text does not parse, for another schema, or if a capability or a source
/// is missing; all name the file `gpus.ron`.
pub fn parse_gpus(text: &str) -> Result<Vec<Gpu>, CatalogError> {
    parse(text).map(|(gpus, _)| gpus)
}

fn parse(text: &str) -> Result<(Vec<Gpu>, Families), CatalogError> {
    let file: File = ron::from_str(text)
        .map_err(|error| CatalogError { message: format!("{FILE}:{error}"), unknown_gpu: None })?;
    if file.schema != SCHEMA {
        let what = format!("schema {}, this version reads {SCHEMA}", file.schema);
        return Err(CatalogError::inconsistent(what));
    }
    let sources: BTreeMap<String, Arc<Source>> =
        file.sources.into_iter().map(|(id, source)| (id, Arc::new(source))).collect();
    let gpu = |gpu: &GpuRow| {
        let capability = gpu.compute_capability;
        let same = |row: &&CapabilityRow| row.compute_capability == capability;
        let row = file.capabilities.iter().find(same).ok_or_else(|| {
            let what = format!("{} has no row for capability {capability}", gpu.name);
            CatalogError::inconsistent(what)
        })?;
        build(gpu, row, &sources)
    };
    let gpus: Result<Vec<Gpu>, CatalogError> = file.gpus.iter().map(gpu).collect();
    Ok((gpus?, file.families))
}

fn build(
    gpu: &GpuRow,
    row: &CapabilityRow,
    sources: &BTreeMap<String, Arc<Source>>,
) -> Result<Gpu, CatalogError> {
    let fact = |(name, (value, source)): (&'static str, &Sourced)| {
        if source == UNKNOWN && *value == 0 {
            return Ok(Fact { name, value: 0, source: None });
        }
        let source = sources.get(source).ok_or_else(|| {
            let what = format!("{name} of {} names no source: {source:?}", gpu.name);
            CatalogError::inconsistent(what)
        })?;
        Ok(Fact { name, value: *value, source: Some(Arc::clone(source)) })
    };
    let flag = |(value, source): &(bool, String)| (u64::from(*value), source.clone());
    let flags = [flag(&row.cooperative_launch), flag(&row.cluster_launch)];
    let facts: Result<Vec<Fact>, CatalogError> = gpu
        .numbers()
        .into_iter()
        .chain(row.numbers())
        .chain(["cooperative_launch", "cluster_launch"].into_iter().zip(&flags))
        .map(fact)
        .collect();
    let limits = DeviceLimits {
        name: gpu.name.clone(),
        compute_capability: gpu.compute_capability,
        max_grid: Dim3::new(row.max_grid_x.0, row.max_grid_y.0, row.max_grid_z.0),
        max_block: Dim3::new(row.max_block_x.0, row.max_block_y.0, row.max_block_z.0),
        max_threads_per_block: row.max_threads_per_block.0,
        warp_size: row.warp_size.0,
        max_registers_per_block: row.max_registers_per_block.0,
        register_allocation_unit: row.register_allocation_unit.0,
        warp_allocation_granularity: row.warp_allocation_granularity.0,
        max_shared_bytes_per_block: row.max_shared_bytes_per_block.0,
        max_shared_bytes_per_block_opt_in: row.max_shared_bytes_per_block_opt_in.0,
        reserved_shared_bytes_per_block: row.reserved_shared_bytes_per_block.0,
        shared_bytes_per_multiprocessor: row.shared_bytes_per_multiprocessor.0,
        multiprocessors: gpu.multiprocessors.0,
        max_threads_per_multiprocessor: row.max_threads_per_multiprocessor.0,
        max_blocks_per_multiprocessor: row.max_blocks_per_multiprocessor.0,
        registers_per_multiprocessor: row.registers_per_multiprocessor.0,
        l2_bytes: gpu.l2_bytes.0,
        memory_bytes: gpu.memory_bytes.0,
        cooperative_launch: row.cooperative_launch.0,
        cluster_launch: row.cluster_launch.0,
        max_portable_cluster_blocks: row.max_portable_cluster_blocks.0,
        max_parameter_bytes: row.max_parameter_bytes.0,
    };
    Ok(Gpu {
        limits: Arc::new(limits),
        aliases: gpu.aliases.clone(),
        memory_bytes_per_second: gpu.memory_bytes_per_second.0,
        facts: facts?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_alias_and_the_name_of_each_gpu_are_its_own() {
        for known in gpus().expect("the catalogue parses") {
            for name in [&known.aliases[0], &known.limits.name] {
                assert_eq!(gpu(name).expect("one GPU").limits.name, known.limits.name);
            }
        }
        for name in ["RTX 2080Ti", "nvidia geforce rtx 2080 ti", "2080-ti"] {
            assert_eq!(gpu(name).map(|gpu| gpu.limits.multiprocessors), Ok(68), "{name}");
        }
    }

    #[test]
    fn every_number_has_a_source() {
        for gpu in gpus().expect("the catalogue parses") {
            assert_eq!(gpu.facts.len(), 28);
            for Fact { name, value, source } in &gpu.facts {
                let is_known = source.as_ref().is_some_and(|source| !source.title.is_empty());
                assert!(is_known || *value == 0, "{}: {name}", gpu.limits.name);
            }
        }
        let unknown = |gpu: &Gpu| {
            gpu.facts.iter().any(|fact| fact.source.is_none() && fact.name != "l2_bytes")
        };
        assert!(!gpus().expect("the catalogue parses").iter().any(unknown));
    }

    #[test]
    fn a_number_that_is_given_without_a_source_is_an_error() {
        let text = gridguard_data::GPUS_RON.replace(": (0, \"unknown\")", ": (1, \"unknown\")");
        let error = parse_gpus(&text).expect_err("it has a value");
        assert_eq!(
            error.to_string(),
            "gpus.ron: l2_bytes of NVIDIA A16 names no source: \"unknown\""
        );
    }

    #[test]
    fn the_error_for_a_name_never_leads_to_another_compute_capability() {
        for (name, text) in [
            ("gtx-1070", "no GPU \"gtx-1070\" in the catalogue: use 6.1, its compute capability"),
            ("RTX A4000", "no GPU \"RTX A4000\" in the catalogue: use 8.6, its compute capability"),
            ("m100", "no GPU \"m100\" in the catalogue: use its compute capability, such as 8.6"),
            (
                "rtx-6000",
                "no single GPU \"rtx-6000\" in the catalogue: it is 2 GPUs, name one: quadro-rtx-6000 (7.5), \
                 rtx-6000-ada (8.9)",
            ),
        ] {
            let error = gpu(name).expect_err(text);
            assert_eq!((&*error.to_string(), error.unknown_gpu()), (text, Some(name)));
        }
        let error = limits("9.7").expect_err("none").to_string();
        assert!(error.starts_with("no GPU \"9.7\" in the catalogue, which has 6.0, "), "{error}");
        let (_, families) = catalogue().expect("the catalogue parses");
        assert!(families.iter().all(|(capability, _)| limits(&capability.to_string()).is_ok()));
    }

    #[test]
    fn a_compute_capability_has_several_spellings() {
        let named = |name| limits(name).map(|limits| limits.name.clone());
        for name in ["sm_120", "SM_120", "sm_120a", "sm_120f", "compute_120", "12.0", "any sm_120"]
        {
            assert_eq!(named(name), Ok("any sm_120".to_owned()), "{name}");
        }
        let any = &*DeviceLimits::any_device().name;
        assert_eq!((named("ANY"), named(any)), (Ok(any.to_owned()), Ok(any.to_owned())));
        for name in ["sm_", "sm_12", "sm_a", "12", "12.", ".0", "12.0.1", "-9.0", "9.99", "sm_-9"] {
            let refused = named(name).expect_err("unknown");
            assert_eq!(refused.unknown_gpu(), Some(name));
        }
    }

    #[test]
    fn broken_data_is_an_error_with_its_position() {
        let error = parse_gpus("(schema: 1,\n sources: oops)").expect_err("no map");
        assert!(error.to_string().starts_with("gpus.ron:2:"), "{error}");
        let error =
            parse_gpus("(schema: 2, sources: {}, capabilities: [], gpus: [])").expect_err("new");
        assert_eq!(error.to_string(), "gpus.ron: schema 2, this version reads 1");
    }
}
