//! A family of kernels, each close to a different limit. All return at once: their parameter is zero.
#![allow(unsafe_code, reason = "raw handles of functions")]

use cudarc::driver::CudaFunction;
use cudarc::nvrtc::Ptx;
use gridguard::LOCAL_BYTES_PER_THREAD;
use gridguard::cuda::{CompileOptions, Compiler};
use gridguard_test_support::conformance::kernel::{
    KernelUnderTest, MAX_DYNAMIC_SHARED_SIZE_BYTES, NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
};
use gridguard_test_support::conformance::raw::RawDriver;

use crate::support::{context, guard};

/// The kernel `k`; macros select its behaviour.
const SOURCE: &str = r#"
typedef unsigned int u32;

#ifndef ATTRIBUTES
#define ATTRIBUTES
#endif
#ifndef PARAMETER_BYTES
#define PARAMETER_BYTES 8
#endif

struct Parameter { char bytes[PARAMETER_BYTES]; };

extern "C" __global__ void ATTRIBUTES k(const Parameter parameter) {
#if defined(STATIC_WORDS) || defined(LOCAL_WORDS) || defined(LIVE)
    volatile u32 *out = (volatile u32 *)*(const unsigned long long *)&parameter;
    if (!out) return;
    out += threadIdx.x;
#endif
#ifdef STATIC_WORDS
    __shared__ u32 shared[STATIC_WORDS];
    shared[threadIdx.x % STATIC_WORDS] = out[0];
    __syncthreads();
    out[0] = shared[out[1] % STATIC_WORDS];
#endif
#ifdef LOCAL_WORDS
    volatile u32 local[LOCAL_WORDS];
    #pragma unroll 1
    for (u32 i = 0; i < LOCAL_WORDS; i++) local[i] = out[0];
    out[0] = local[out[1] % LOCAL_WORDS];
#endif
#ifdef LIVE
    // All are read before the first is written, so all live at once.
    u32 live[LIVE];
    #pragma unroll
    for (int i = 0; i < LIVE; i++) live[i] = out[1024 * i];
    #pragma unroll
    for (int i = 0; i < LIVE; i++) out[1024 * i] = live[LIVE - 1 - i];
#endif
}
"#;

/// A kernel whose launches must name a cluster, which CUDA C++ cannot express.
const EXPLICIT_CLUSTER: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 8 .b8 parameter[8])
.explicitcluster
{
    ret;
}
";

/// The attributes that are set on a kernel before it is launched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Nothing.
    No,
    /// Opts in to more dynamic shared memory than every kernel has.
    SomeShared,
    /// Opts in to all shared memory of the device.
    AllShared,
    /// Allows clusters above the portable size.
    Clusters,
    /// Both.
    ClustersAndAllShared,
}

/// A member of the family.
pub(crate) struct Member {
    name: &'static str,
    /// Macros and their values.
    macros: &'static [(&'static str, &'static str)],
    opened: Opened,
    parameter_bytes: u64,
}

const fn member(name: &'static str, macros: &'static [(&'static str, &'static str)]) -> Member {
    Member { name, macros, opened: Opened::No, parameter_bytes: 8 }
}

impl Member {
    const fn opened(mut self, opened: Opened) -> Self {
        self.opened = opened;
        self
    }

    const fn parameter_bytes(mut self, bytes: u64) -> Self {
        self.parameter_bytes = bytes;
        self
    }

    /// Whether it needs a device with clusters.
    fn needs_clusters(&self) -> bool {
        self.name.contains("cluster")
    }
}

/// Bytes of [`Opened::SomeShared`], which every device from compute capability 8.0 on has.
const SOME_SHARED: i32 = 90_000;
/// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`.
const SHARED_SIZE_BYTES: i32 = 1;

/// Words of local memory of a thread: 512 KiB, which no launch has, 512 KiB less 16 bytes, and 511, 256, 128,
/// 64 and 16 KiB. The largest is first, so that no size uses memory that a smaller one reserved.
pub(crate) const LOCAL_WORDS: [&str; 7] =
    ["131072", "131068", "130816", "65536", "32768", "16384", "4096"];
/// Memory that stays free beside the local memory of a member.
const SPARE: u64 = 4 << 30;

const FAMILY: [Member; 44] = [
    member("plain", &[]),
    member("bounded_1", &[("ATTRIBUTES", "__launch_bounds__(1)")]),
    member("bounded_64", &[("ATTRIBUTES", "__launch_bounds__(64)")]),
    member("bounded_100", &[("ATTRIBUTES", "__launch_bounds__(100)")]),
    member("bounded_128", &[("ATTRIBUTES", "__launch_bounds__(128)")]),
    member("bounded_256", &[("ATTRIBUTES", "__launch_bounds__(256, 2)")]),
    member("bounded_1024", &[("ATTRIBUTES", "__launch_bounds__(1024)"), ("LIVE", "80")]),
    member("live_60", &[("LIVE", "60")]),
    member("live_80", &[("LIVE", "80")]),
    member("live_120", &[("LIVE", "120")]),
    member("live_150", &[("LIVE", "150")]),
    member("live_200", &[("LIVE", "200")]),
    member("live_300", &[("LIVE", "300")]),
    member("capped_at_40", &[("ATTRIBUTES", "__maxnreg__(40)"), ("LIVE", "100")]),
    member("capped_at_128", &[("ATTRIBUTES", "__maxnreg__(128)"), ("LIVE", "200")]),
    member("capped_at_168", &[("ATTRIBUTES", "__maxnreg__(168)"), ("LIVE", "200")]),
    member("capped_at_210", &[("ATTRIBUTES", "__maxnreg__(210)"), ("LIVE", "240")]),
    member("bounded_128_live_200", &[("ATTRIBUTES", "__launch_bounds__(128)"), ("LIVE", "200")]),
    member("static_1k", &[("STATIC_WORDS", "256")]),
    member("static_47k", &[("STATIC_WORDS", "12032")]),
    member("static_48k", &[("STATIC_WORDS", "12288")]),
    member("opted_in", &[]).opened(Opened::AllShared),
    member("opted_in_in_part", &[]).opened(Opened::SomeShared),
    member("opted_in_live_200", &[("LIVE", "200")]).opened(Opened::AllShared),
    member("opted_in_static_48k", &[("STATIC_WORDS", "12288")]).opened(Opened::AllShared),
    member("local_512k", &[("LOCAL_WORDS", LOCAL_WORDS[0])]),
    member("local_512k_less_16", &[("LOCAL_WORDS", LOCAL_WORDS[1])]),
    member("local_511k", &[("LOCAL_WORDS", LOCAL_WORDS[2])]),
    member("local_256k", &[("LOCAL_WORDS", LOCAL_WORDS[3])]),
    member("local_128k", &[("LOCAL_WORDS", LOCAL_WORDS[4])]),
    member("local_64k", &[("LOCAL_WORDS", LOCAL_WORDS[5])]),
    member("local_16k", &[("LOCAL_WORDS", LOCAL_WORDS[6])]),
    member("local_1k", &[("LOCAL_WORDS", "256")]),
    member("cluster_2", &[("ATTRIBUTES", "__cluster_dims__(2, 1, 1)")]),
    member("cluster_1_2_2", &[("ATTRIBUTES", "__cluster_dims__(1, 2, 2)")]),
    member("cluster_8", &[("ATTRIBUTES", "__cluster_dims__(8, 1, 1)")]),
    member("cluster_3_opted_in", &[("ATTRIBUTES", "__cluster_dims__(3, 1, 1)")])
        .opened(Opened::AllShared),
    member("wide_clusters", &[]).opened(Opened::Clusters),
    member("wide_clusters_live_200", &[("LIVE", "200")]).opened(Opened::Clusters),
    member("wide_clusters_opted_in", &[]).opened(Opened::ClustersAndAllShared),
    member("bytes_4096", &[("PARAMETER_BYTES", "4096")]).parameter_bytes(4096),
    member("bytes_4097", &[("PARAMETER_BYTES", "4097")]).parameter_bytes(4097),
    member("bytes_32764", &[("PARAMETER_BYTES", "32764")]).parameter_bytes(32_764),
    member("explicit_cluster", &[]),
];

/// The kernels, and the functions that keep them loaded.
pub(crate) struct Family {
    pub(crate) kernels: Vec<KernelUnderTest>,
    /// Kernels that could not be compiled or loaded, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    _functions: Vec<CudaFunction>,
}

impl Family {
    /// All members, on the tests' device.
    pub(crate) fn new(driver: &RawDriver) -> Self {
        let mut family = Self { kernels: Vec::new(), left_out: Vec::new(), _functions: Vec::new() };
        let clusters = guard().limits().cluster_launch;
        for member in FAMILY.iter().filter(|member| clusters || !member.needs_clusters()) {
            let Member { name, macros, opened, parameter_bytes } = member;
            let loaded = match *name {
                "explicit_cluster" => load(Ptx::from_src(EXPLICIT_CLUSTER)),
                _ => compile(macros).and_then(load),
            };
            let opened = loaded.and_then(|function| open(driver, function, *opened));
            match opened {
                Ok(function) => {
                    let kernel = under_test(driver, name, &function, *parameter_bytes);
                    family.kernels.push(kernel);
                    family._functions.push(function);
                }
                Err(reason) => family.left_out.push(((*name).to_owned(), reason)),
            }
        }
        family
    }
}

/// Whether the local memory of a kernel is free, or no device launches it. What is free is no limit that a rule knows.
/// A kernel whose local memory only this device lacks takes the driver 10 ms a launch, so a few launches of `facts`
/// stand for it.
pub(crate) fn has_memory(kernel: &KernelUnderTest) -> bool {
    let (kernel, device) = (kernel.limits.kernel(), kernel.limits.device());
    let (free, _) = guard().free_memory().expect("memory");
    kernel.local_bytes_per_thread > LOCAL_BYTES_PER_THREAD
        || kernel.local_memory(device).is_none_or(|local| local.total_bytes() + SPARE <= free)
}

/// The loaded `function` with the limits that the guard queries for it.
pub(crate) fn under_test(
    driver: &RawDriver,
    name: &str,
    function: &CudaFunction,
    parameter_bytes: u64,
) -> KernelUnderTest {
    let handle = function.cu_function().cast();
    // SAFETY: the function is of the guard's context, and the caller keeps it loaded.
    let raw = unsafe { guard().raw_kernel(handle, Some(name)) }.expect("its limits");
    let limits = raw.limits().clone();
    let occupancy = move |request: &_| raw.occupancy(request).map_err(|error| error.to_string());
    KernelUnderTest::new(driver, name, handle, &limits, parameter_bytes, occupancy)
}

/// The kernel of [`SOURCE`] under `macros`.
pub(crate) fn compile(macros: &[(&str, &str)]) -> Result<Ptx, String> {
    let architecture = guard().limits().compute_capability;
    let mut options = CompileOptions::new("conformance.cu", architecture);
    for (name, value) in macros {
        options = options.define(*name, value);
    }
    let compiler = Compiler::find().map_err(|error| error.to_string())?;
    let compiled = compiler.compile(SOURCE, &options).map_err(|error| error.to_string())?;
    Ok(Ptx::from_binary(compiled.image.bytes().to_vec()))
}

/// The kernel `k` of an image.
pub(crate) fn load(image: Ptx) -> Result<CudaFunction, String> {
    let module = context().load_module(image).map_err(|error| error.to_string())?;
    module.load_function("k").map_err(|error| error.to_string())
}

/// Sets the attributes of a member.
pub(crate) fn open(
    driver: &RawDriver,
    function: CudaFunction,
    opened: Opened,
) -> Result<CudaFunction, String> {
    let handle = function.cu_function().cast();
    let fixed = driver.attribute(handle, SHARED_SIZE_BYTES).map_err(|code| code.to_string())?;
    let most = i32::try_from(guard().limits().max_shared_bytes_per_block_opt_in);
    let all = (MAX_DYNAMIC_SHARED_SIZE_BYTES, most.map_err(|error| error.to_string())? - fixed);
    let clusters = (NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    let wanted = match opened {
        Opened::No => vec![],
        Opened::SomeShared => vec![(MAX_DYNAMIC_SHARED_SIZE_BYTES, SOME_SHARED)],
        Opened::AllShared => vec![all],
        Opened::Clusters => vec![clusters],
        Opened::ClustersAndAllShared => vec![clusters, all],
    };
    for (attribute, value) in wanted {
        let result = driver.set_attribute(handle, attribute, value);
        if result != 0 {
            return Err(format!("attribute {attribute} = {value} returned {result}"));
        }
    }
    Ok(function)
}
