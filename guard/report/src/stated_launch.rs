//! Checks the launch configuration that a log states against limits.

use gridguard::catalog::{self, CatalogError};
use gridguard::{
    DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Owner, Rule, Violation,
    Violations, validate,
};
use gridguard_diagnose::{Capability, Evidence, LaunchConfig, LaunchSizes, ViolatedRule};

use crate::evidence::{launch_config, violated_rule};

/// Adds the rules that the launch violates: on `device`, on the compute capability in the log, or on the GPUs of the
/// catalogue. The log may come from another machine, so the devices of this one do not count.
pub(crate) fn checked(
    evidence: Evidence,
    device: Option<&DeviceLimits>,
) -> Result<Evidence, CatalogError> {
    let LaunchSizes { grid, block, shared_bytes, kernel_threads, .. } = evidence.launch_sizes;
    let stated = evidence
        .capability
        .and_then(|Capability(major, minor)| catalog::limits(&format!("sm_{major}{minor}")).ok());
    let max_shared_bytes = stated.as_ref().map(|it| it.max_shared_bytes_per_block_opt_in);
    let evidence = Evidence { max_shared_bytes, ..evidence };
    if grid.is_none() && block.is_none() && shared_bytes.is_none() {
        return Ok(evidence);
    }
    let size = |size: Option<[u64; 3]>| size.map_or(Dim3::ONE, |[x, y, z]| Dim3::new(x, y, z));
    let mut request = LaunchRequest::new(size(grid), size(block));
    request.dynamic_shared_bytes = shared_bytes.unwrap_or(0);
    let kernel = KernelLimits {
        name: evidence.kernel.clone().unwrap_or_else(|| "of the launch".into()),
        max_threads_per_block: kernel_threads,
        ..KernelLimits::default()
    };
    let (device_name, violations) = match device.or(stated.as_deref()) {
        Some(device) => {
            let violations = violations(&request, device, &kernel);
            // The catalogue names the limits of `sm_86` `any sm_86`.
            let name = device.name.strip_prefix("any ").unwrap_or(&device.name);
            let name = catalog::limits(name).is_ok().then(|| name.to_owned());
            (name, violations.iter().cloned().collect())
        }
        None => on_catalogue(&request, &kernel)?,
    };
    let rules: Vec<_> = violations.iter().map(stated_rule).collect();
    // A legal launch of any GPU need not be checked again.
    let launch = (!rules.is_empty() || device.is_some())
        .then(|| LaunchConfig { kernel_threads, ..launch_config(&request) });
    // Without grid or block, further rules may be violated.
    let is_whole = grid.is_some() && block.is_some();
    let violated_rules = (is_whole || !rules.is_empty()).then_some(rules);
    Ok(Evidence { device_name, launch, violated_rules, ..evidence })
}

/// The rules that `request` violates on GPUs of the catalogue, each with the highest limit, and the first such GPU,
/// unless a rule is violated on all. Rules that are violated on all come first.
fn on_catalogue(
    request: &LaunchRequest,
    kernel: &KernelLimits,
) -> Result<(Option<String>, Vec<Violation>), CatalogError> {
    let gpus = catalog::gpus()?;
    let mut found: Vec<(Violation, usize)> = Vec::new();
    for gpu in gpus {
        for violation in &violations(request, &gpu.limits, kernel) {
            match found.iter_mut().find(|(known, _)| known.rule == violation.rule) {
                Some((known, count)) => {
                    *count += 1;
                    // A launch that violates the rule everywhere exceeds the highest limit.
                    if violation.limit > known.limit {
                        *known = violation.clone();
                    }
                }
                None => found.push((violation.clone(), 1)),
            }
        }
    }
    found.sort_by_key(|(_, count)| gpus.len() - count);
    let owned_by_all = |(mut violation, count): (Violation, usize)| {
        if let Owner::Device(name) = &mut violation.owner {
            *name = match gpus.len() {
                all if all == count => format!("all {all} GPUs of the catalogue"),
                all => format!("{name}, one of {count} such GPUs of {all} in the catalogue"),
            };
        }
        violation
    };
    let is_on_some = found.first().is_some_and(|(_, count)| *count < gpus.len());
    let mut on_some = gpus.iter().filter(|_| is_on_some);
    let first = on_some.find(|gpu| !violations(request, &gpu.limits, kernel).is_empty());
    let name = first.map(|gpu| gpu.limits.name.clone());
    Ok((name, found.into_iter().map(owned_by_all).collect()))
}

/// The violated rule in the words of somebody who has a log, but not the launching code.
fn stated_rule(violation: &Violation) -> ViolatedRule {
    let mut rule = violated_rule(violation);
    match violation.rule {
        Rule::KernelThreadsPerBlock => {
            // The driver returns the code for registers.
            rule.codes = &[1, 9, 701];
            rule.remedy += ", or compile the kernel for fewer registers (maxregs in CUDA.jl, \
                            --maxrregcount in nvcc)";
        }
        Rule::DynamicSharedMemoryOptIn => {
            let bytes = violation.requested;
            rule.remedy = format!(
                "before the launch, call cudaFuncSetAttribute(kernel, \
                 cudaFuncAttributeMaxDynamicSharedMemorySize, {bytes}), or in CuPy set \
                 kernel.max_dynamic_shared_size_bytes = {bytes}; or request less"
            );
        }
        Rule::SharedMemoryTotal => rule.remedy += "; opting in does not allow more",
        _ => {}
    }
    rule
}

/// The rules that `request` violates on `device` with a kernel that opted in to the most shared memory, or else those
/// without opting in.
fn violations(request: &LaunchRequest, device: &DeviceLimits, kernel: &KernelLimits) -> Violations {
    let opted_in = Some(device.max_shared_bytes_per_block_opt_in);
    for max_dynamic_shared_bytes in [opted_in, None] {
        let kernel = KernelLimits { max_dynamic_shared_bytes, ..kernel.clone() };
        if let Err(violations) = validate(request, &LaunchLimits::new(device.clone(), kernel)) {
            return violations;
        }
    }
    Violations::default()
}
