//! The attributes of kernels in images, compared with the compiler's report.
//!
//! | file | source | compiler |
//! |---|---|---|
//! | `turing.cubin` | `kernels.ptx`, `clusters.ptx` | `ptxas` 12.4 for sm_75 |
//! | `hopper.cubin` | the same | `ptxas` 12.4 for sm_90a |
//! | `blackwell.cubin` | the same | `ptxas` 13.0 for sm_120 |
//! | `relocatable.cubin` | the same | `ptxas` 13.0 for sm_86 |
//! | `thor.cubin` | `kernels.ptx` | `ptxas` 13.0 for sm_110, `-c`: symbols end past its reserved shared memory |
//! | `recursive.cubin` | `recursive.ptx` | `ptxas` 12.2, whose relocations link to a wrong symbol section |
//! | `relocatable.a` | `relocatable.cu`, `callee.cu` | `nvcc` 13.0, `-rdc=true` for sm_90 and compute_90, then `ar` |
//! | `linked.so` | the same | `nvcc` 13.0, `-dlink` for sm_90, then `g++ -shared` |
//! | `intermediate.o` | `callee.cu` | `nvcc` 13.0, `-rdc=true` for lto_90 |
//! | `zstd.fatbin`, `lz4.fatbin` | `kernels.ptx`, a debug build for sm_80, a build for sm_90a | `fatbinary` 13.0, `-compress-mode` `default`, `speed` |

mod hostile;
mod linked;

use gridguard::image::{ImageError, ImageFile, KernelAttributes, fatbin_bytes};
use gridguard::{ComputeCapability, Dim3, Rule};

const KERNELS: &[u8] = include_bytes!("kernels.ptx");
const CLUSTERS: &[u8] = include_bytes!("clusters.ptx");
const TURING: &[u8] = include_bytes!("turing.cubin");
const HOPPER: &[u8] = include_bytes!("hopper.cubin");
const BLACKWELL: &[u8] = include_bytes!("blackwell.cubin");
const RECURSIVE: &[u8] = include_bytes!("recursive.cubin");
const RELOCATABLE: &[u8] = include_bytes!("relocatable.cubin");
const THOR: &[u8] = include_bytes!("thor.cubin");
const ZSTD: &[u8] = include_bytes!("zstd.fatbin");
const LZ4: &[u8] = include_bytes!("lz4.fatbin");

/// Registers, static shared memory and stack of a kernel.
type Resources = (u64, u64, u64);

/// The kernels of the only image, by name.
fn kernels(bytes: &[u8]) -> Vec<KernelAttributes> {
    let file = ImageFile::parse(bytes).expect("an image");
    let images: Vec<_> = file.images().collect();
    assert_eq!(images.len(), 1);
    sorted(images[0].kernels().expect("complete"))
}

fn sorted(mut kernels: Vec<KernelAttributes>) -> Vec<KernelAttributes> {
    kernels.sort_by(|one, other| one.name.cmp(&other.name));
    kernels
}

/// Registers, static shared memory and stack of each kernel, by name; none where they are unknown.
fn resources(kernels: &[KernelAttributes]) -> Vec<(&str, Option<Resources>)> {
    let of = |kernel: &KernelAttributes| {
        let shared = kernel.static_shared_bytes?;
        Some((kernel.registers_per_thread?, shared, kernel.local_bytes_per_thread?))
    };
    kernels.iter().map(|kernel| (kernel.name.as_str(), of(kernel))).collect()
}

/// What the source declares, for every image of it.
fn assert_declared(kernels: &[KernelAttributes]) {
    for kernel in kernels {
        let KernelAttributes { parameter_bytes, max_threads_per_block, required_block, .. } =
            *kernel;
        let (bytes, threads, block) = match kernel.name.as_str() {
            "bounded" => (17, Some(128), None),
            "exact" => (4004, Some(128), Some(Dim3::new(64, 2, 1))),
            "without_parameters" => (0, None, None),
            _ => (8, None, None),
        };
        assert_eq!(parameter_bytes, Some(bytes), "{kernel:?}");
        assert_eq!((max_threads_per_block, required_block), (threads, block), "{kernel:?}");
        let cluster = (kernel.name == "clustered").then_some(Dim3::new(2, 2, 1));
        assert_eq!(kernel.required_cluster, cluster, "{kernel:?}");
        assert_eq!(kernel.cluster_must_be_set, kernel.name.contains("cluster"), "{kernel:?}");
    }
}

#[test]
fn a_cubin_states_what_the_compiler_reported() {
    let common = |registers: [u64; 3]| {
        vec![
            ("bounded", Some((4, 0, 0))),
            ("exact", Some((4, 0, 0))),
            ("shared_memory", Some((registers[0], 272, 0))),
            ("stack", Some((registers[1], 0, 3000))),
            ("without_parameters", Some((registers[2], 0, 0))),
        ]
    };
    assert_eq!(resources(&kernels(TURING)), common([6, 6, 4]));
    assert_eq!(resources(&kernels(BLACKWELL)), common([12, 10, 4]));
    let hopper = [
        &[("any_cluster", Some((4, 0, 0)))],
        &common([12, 10, 4])[..1],
        &[("clustered", Some((4, 0, 0)))],
        &common([12, 10, 4])[1..],
    ];
    assert_eq!(resources(&kernels(HOPPER)), hopper.concat());
    for image in [TURING, HOPPER, BLACKWELL, RECURSIVE, RELOCATABLE, THOR, KERNELS, CLUSTERS] {
        assert_declared(&kernels(image));
    }
}

#[test]
fn the_architecture_has_its_suffix() {
    let of = |bytes| {
        let file = ImageFile::parse(bytes).expect("an image");
        let images = file.images();
        images.map(|image| image.architecture().expect("stated").to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of(TURING), ["sm_75"]);
    assert_eq!(of(HOPPER), ["sm_90a"]);
    assert_eq!(of(BLACKWELL), ["sm_120"]);
    assert_eq!(of(THOR), ["sm_110"]);
    assert_eq!(of(KERNELS), ["sm_75"]);
    assert_eq!(of(ZSTD), ["sm_80", "sm_90a", "sm_75"]);
    for target in ["", ".target sm_90zz\n"] {
        let text = format!(".version 8.0\n{target}.entry k() {{ ret; }}");
        let file = ImageFile::parse(text.as_bytes()).expect("PTX");
        let image = file.images().next().expect("one");
        assert!(image.architecture().is_none() && image.runs_on(ComputeCapability::new(5, 0)));
    }
}

#[test]
fn the_ptx_of_a_fatbin_is_that_which_was_put_into_it() {
    for fatbin in [ZSTD, LZ4] {
        let file = ImageFile::parse(fatbin).expect("a fatbin");
        let [debug, code, ptx] = &file.images().collect::<Vec<_>>()[..] else { panic!("three") };
        // `fatbinary` leaves out comments and indentation.
        let dense = |text: &[u8]| {
            let text = str::from_utf8(text).expect("text");
            let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            lines.flat_map(str::split_whitespace).collect::<String>()
        };
        let text = ptx.ptx().expect("PTX");
        assert_eq!(dense(&text).trim_end_matches('\0'), dense(KERNELS));
        assert_eq!(ptx.compiler_options(), "");
        for image in [debug, code] {
            assert!(matches!(image.ptx(), Err(ImageError::Unknown { .. })), "{image:?}");
            let cubin = image.cubin().expect("a cubin");
            let alone = ImageFile::parse(&cubin).expect("a cubin");
            let [alone] = &alone.images().collect::<Vec<_>>()[..] else { panic!("one") };
            assert_eq!(alone.architecture(), image.architecture());
        }
        assert!(matches!(ptx.cubin(), Err(ImageError::Unknown { .. })), "{ptx:?}");
        let start = fatbin.first_chunk().expect("a header");
        assert_eq!(fatbin_bytes(start), u64::try_from(fatbin.len()).ok());
    }
    assert_eq!(fatbin_bytes(KERNELS.first_chunk().expect("16 bytes")), None);
}

#[test]
fn what_an_image_does_not_state_is_unknown_and_so_are_the_rules_that_depend_on_it() {
    let unchecked = [
        Rule::RegistersPerBlock,
        Rule::LocalMemory,
        Rule::SharedMemoryTotal,
        Rule::DynamicSharedMemoryOptIn,
    ];
    for image in [KERNELS, RELOCATABLE, THOR] {
        for kernel in kernels(image) {
            assert_eq!(resources(std::slice::from_ref(&kernel))[0].1, None);
            assert_eq!(kernel.unchecked_rules(), unchecked);
        }
    }
    for kernel in kernels(BLACKWELL) {
        assert!(kernel.unchecked_rules().is_empty());
    }
}

#[test]
fn the_stack_of_a_kernel_whose_functions_call_themselves_is_unknown() {
    let kernels = kernels(RECURSIVE);
    let unknown = kernels.iter().filter(|kernel| kernel.local_bytes_per_thread.is_none());
    let [kernel] = &unknown.collect::<Vec<_>>()[..] else { panic!("one of {kernels:?}") };
    assert_eq!((kernel.name.as_str(), kernel.registers_per_thread), ("recursive", Some(24)));
    assert_eq!(kernel.unchecked_rules(), [Rule::LocalMemory]);
}

#[test]
fn attributes_become_the_limits_of_the_kernel() {
    let stack = kernels(TURING).remove(3).limits();
    assert_eq!((stack.name.as_str(), stack.registers_per_thread), ("stack", 6));
    assert_eq!((stack.local_bytes_per_thread, stack.max_threads_per_block), (3000, None));
    let clustered = kernels(HOPPER).remove(2).limits();
    assert_eq!(clustered.required_cluster, Some(Dim3::new(2, 2, 1)));
    assert!(clustered.cluster_must_be_set);
    let exact = kernels(KERNELS).remove(1).limits();
    assert_eq!((exact.max_threads_per_block, exact.registers_per_thread), (Some(128), 0));
}

#[test]
fn a_compressed_image_states_the_same_and_each_device_has_its_own() {
    for fatbin in [ZSTD, LZ4] {
        let file = ImageFile::parse(fatbin).expect("a fatbin");
        let of_device = |major, minor| {
            let mut images = file.images_for(ComputeCapability::new(major, minor));
            let image = images.next()?;
            assert!(images.next().is_none());
            let kernels = sorted(image.kernels().expect("complete"));
            assert_declared(&kernels);
            let name = format!("{}", image.architecture().expect("stated"));
            let stack = resources(&kernels).into_iter().find(|(name, _)| *name == "stack");
            Some((name, image.is_ptx(), stack.expect("in each").1))
        };
        let ampere = Some(("sm_80".to_owned(), false, Some((12, 0, 3000))));
        assert_eq!(of_device(8, 0), ampere);
        assert_eq!(of_device(8, 9), ampere);
        assert_eq!(of_device(9, 0), Some(("sm_90a".to_owned(), false, Some((10, 0, 3000)))));
        assert_eq!(of_device(10, 0), Some(("sm_75".to_owned(), true, None)));
        assert_eq!(of_device(7, 0), None);
    }
}

/// A 64-bit ELF file of a program whose section `name` has these contents.
fn program(name: &str, contents: &[u8]) -> Vec<u8> {
    let names = format!("\0.shstrtab\0{name}\0");
    let table = (64 + names.len() + contents.len()).next_multiple_of(8);
    let mut bytes = vec![0; table + 3 * 64];
    let mut write = |at: usize, size: usize, value: usize| {
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    for (at, size, value) in [(18, 2, 62), (40, 8, table), (58, 2, 64), (60, 2, 3), (62, 2, 1)] {
        write(at, size, value);
    }
    let sections = [(1, 1, 3, 64, names.len()), (2, 11, 1, 64 + names.len(), contents.len())];
    for (index, name, kind, start, size) in sections {
        for (at, width, value) in [(0, 4, name), (4, 4, kind), (24, 8, start), (32, 8, size)] {
            write(table + index * 64 + at, width, value);
        }
    }
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[64..64 + names.len()].copy_from_slice(names.as_bytes());
    bytes[64 + names.len()..][..contents.len()].copy_from_slice(contents);
    bytes
}

#[test]
fn a_program_has_the_images_of_all_its_fatbins() {
    let contents = [ZSTD, &[0; 8], LZ4].concat();
    let two = program(".nv_fatbin", &contents);
    let file = ImageFile::parse(&two).expect("a program");
    assert_eq!(file.images().count(), 6);
    let ampere: Vec<_> = file.images_for(ComputeCapability::new(8, 6)).collect();
    let [one, other] = ampere[..] else { panic!("one of each fatbin: {ampere:?}") };
    assert_eq!(one.kernels(), other.kernels());

    let linkable = program("__nv_relfatbin", LZ4);
    assert_eq!(ImageFile::parse(&linkable).expect("an object").images().count(), 3);
    let none = program(".text", &contents);
    assert_eq!(ImageFile::parse(&none).expect_err("no section"), ImageError::NoImage);
    assert_eq!(ImageError::NoImage.to_string(), "the file contains neither a cubin nor PTX");
}
