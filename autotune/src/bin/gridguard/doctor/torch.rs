//! PyTorch held against driver and devices.

use gridguard::ComputeCapability;

use super::finding::Finding;
use super::python::{Told, Torch, short};
use super::version;

const SUBJECT: &str = "torch";

/// What a PyTorch has to agree with.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// The CUDA version that the driver supports, where there is one.
    pub(super) driver: Option<i32>,
    /// Each device's name and capability.
    pub(super) devices: Vec<(String, ComputeCapability)>,
}

/// Wheels that PyTorch's index has, the newest first, by CUDA version.
const WHEELS: [(i32, &str); 5] =
    [(13_000, "cu130"), (12_080, "cu128"), (12_060, "cu126"), (12_040, "cu124"), (11_080, "cu118")];

/// `python` is how the Python was named.
pub(super) fn findings(told: &Told, python: &str, machine: &Machine) -> Vec<Finding> {
    let other = "name a Python that has torch: gridguard doctor --torch PATH/bin/python";
    let one = match told {
        Told::Torch(torch) => return of_torch(torch, python, machine),
        Told::Unstarted(why) => {
            Finding::unknown(SUBJECT, format!("{python} does not start: {why}"), other)
        }
        Told::Late(within) => Finding::unknown(
            SUBJECT,
            format!("{python} did not answer within {}", humantime::format_duration(*within)),
            format!(
                "run {python} -c 'import torch' and see where it stays, or give it more --patience"
            ),
        ),
        Told::Died(why) => Finding::bad(
            SUBJECT,
            format!("{python} died of importing torch: {why}"),
            "install torch anew in an environment of its own: its libraries do not fit each other",
        ),
        Told::Garbled(words) => {
            Finding::unknown(SUBJECT, format!("{python} answers something else: {words:?}"), other)
        }
    };
    vec![one]
}

fn of_torch(torch: &Torch, python: &str, machine: &Machine) -> Vec<Finding> {
    if torch.missing {
        let what = format!("none in {python} ({})", torch.python);
        let remedy = format!(
            "name the Python that has it, gridguard doctor --torch PATH/bin/python, or {}",
            install(machine)
        );
        return vec![Finding::bad(SUBJECT, what, remedy)];
    }
    if let Some(error) = &torch.error {
        let remedy = "install torch anew in an environment of its own";
        return vec![Finding::bad(SUBJECT, format!("{python}: {}", short(error)), remedy)];
    }
    let Some(cuda) = torch.cuda.as_deref() else {
        let without = match &torch.hip {
            Some(hip) => format!("{} is a wheel for ROCm {hip}, not for CUDA", torch.version),
            None => format!("{} is a wheel for the CPU only", torch.version),
        };
        return vec![Finding::bad(SUBJECT, without, install(machine))];
    };
    let mut findings = vec![of_wheel(torch, cuda, machine)];
    findings.extend(of_devices(torch, cuda, machine));
    findings.extend(of_availability(torch, machine));
    findings
}

/// The wheel against the driver.
fn of_wheel(torch: &Torch, cuda: &str, machine: &Machine) -> Finding {
    let cudnn = torch.cudnn.map(|cudnn| format!(", cuDNN {}", cudnn_words(cudnn)));
    let what = format!("{} for CUDA {cuda}{}", torch.version, cudnn.unwrap_or_default());
    let (Some(wheel), Some(driver)) = (parse(cuda), machine.driver) else {
        return Finding::good(SUBJECT, what);
    };
    let supports = version::words(driver);
    if wheel / 1000 > driver / 1000 {
        let what = format!("{what}: newer than the driver, which supports CUDA {supports}");
        return Finding::bad(SUBJECT, what, format!("update the driver, or {}", install(machine)));
    }
    if wheel > driver {
        let what = format!(
            "{what}: newer than the driver, which supports CUDA {supports}; its machine code runs, \
             PTX and what it compiles at run time may not"
        );
        return Finding::warning(
            SUBJECT,
            what,
            format!("update the driver, or {}", install(machine)),
        );
    }
    Finding::good(SUBJECT, what)
}

/// How a device is served by the architectures of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Service {
    /// By machine code for this architecture.
    Code(String),
    /// By PTX that the driver compiles.
    Ptx(String),
    None,
}

/// The code against each model of device.
fn of_devices(torch: &Torch, cuda: &str, machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for (name, capability) in &machine.devices {
        if seen.contains(&capability) {
            continue;
        }
        seen.push(capability);
        let sm = capability.sm();
        let has = torch.architectures.join(" ");
        findings.push(match service(&torch.architectures, *capability) {
            Service::Code(by) if by == sm => {
                Finding::good(SUBJECT, format!("has code for {name} ({sm})"))
            }
            Service::Code(by) => {
                Finding::good(SUBJECT, format!("has code for {name} ({sm}), that for {by}"))
            }
            Service::Ptx(_) if parse(cuda) > machine.driver => Finding::bad(
                SUBJECT,
                format!("has only PTX for {name} ({sm}), which is newer than the driver: {has}"),
                format!("update the driver, or {}", install(machine)),
            ),
            Service::Ptx(by) => Finding::warning(
                SUBJECT,
                format!("has no code for {name} ({sm}): the driver compiles {by}, which takes minutes at first"),
                format!("install a wheel with {sm}: {}", install(machine)),
            ),
            Service::None => Finding::bad(
                SUBJECT,
                format!("has no code for {name} ({sm}), only for {has}"),
                format!("install a wheel with {sm}: a newer torch for a new GPU, an older one for an old GPU, or {}", install(machine)),
            ),
        });
    }
    findings
}

/// Code runs on its own major capability, from its minor one on; PTX is compiled for any later one.
fn service(architectures: &[String], device: ComputeCapability) -> Service {
    let mut best = Service::None;
    for name in architectures {
        let Some((kind, capability, only)) = architecture(name) else { continue };
        let fits = match (kind, only) {
            (_, Only::This) => capability == device,
            ("sm", _) | (_, Only::Family) => {
                capability.major == device.major && capability.minor <= device.minor
            }
            _ => capability <= device,
        };
        best = match (fits, kind, best) {
            (false, _, best) => best,
            (true, "sm", Service::Code(by)) if by == device.sm() => Service::Code(by),
            (true, "sm", _) => Service::Code(name.clone()),
            (true, _, Service::Code(by)) => Service::Code(by),
            (true, ..) => Service::Ptx(name.clone()),
        };
    }
    best
}

/// Which devices a suffix leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    Any,
    /// `sm_90a`: this capability alone.
    This,
    /// `sm_100f`: its family.
    Family,
}

/// `sm_90a` in parts.
fn architecture(name: &str) -> Option<(&str, ComputeCapability, Only)> {
    let (kind, number) = name.split_once('_')?;
    let (digits, only) = match number.strip_suffix('a') {
        Some(digits) => (digits, Only::This),
        None => number.strip_suffix('f').map_or((number, Only::Any), |it| (it, Only::Family)),
    };
    let number: u32 = digits.parse().ok()?;
    Some((kind, ComputeCapability::new(number / 10, number % 10), only))
}

/// What PyTorch itself sees.
fn of_availability(torch: &Torch, machine: &Machine) -> Option<Finding> {
    let shown = machine.devices.len();
    let said = match torch.warnings.as_slice() {
        [] => "it does not say why".to_owned(),
        words => words.iter().map(|one| short(one)).collect::<Vec<_>>().join("; "),
    };
    if shown == 0 {
        // Without a device the driver's own findings say why.
        return None;
    }
    if !torch.available {
        let what = format!("sees no device, the driver shows {shown}: {said}");
        let remedy = "gridguard explain tells what its message means";
        return Some(Finding::bad(SUBJECT, what, remedy));
    }
    if u64::try_from(shown).ok() != Some(torch.devices) {
        let what = format!("sees {} devices, the driver shows {shown}", torch.devices);
        let remedy =
            "start both in the same environment: CUDA_VISIBLE_DEVICES, the container's GPUs";
        return Some(Finding::warning(SUBJECT, what, remedy));
    }
    (!torch.warnings.is_empty()).then(|| {
        let remedy = "gridguard explain tells what its message means";
        Finding::warning(SUBJECT, format!("warns: {said}"), remedy)
    })
}

/// The newest wheel that the driver supports.
fn install(machine: &Machine) -> String {
    let fits = |(cuda, _): &&(i32, &str)| machine.driver.is_none_or(|driver| *cuda <= driver);
    let oldest = WHEELS.last();
    let tag = WHEELS.iter().find(fits).or(oldest).map_or("", |(_, tag)| tag);
    format!(
        "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{tag}"
    )
}

/// `12.8` as the driver counts.
fn parse(cuda: &str) -> Option<i32> {
    let mut parts = cuda.split('.').map(str::parse::<u32>);
    let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(version::number(major, minor))
}

/// `9.1.0` for 90100, `8.9.2` for 8902.
fn cudnn_words(cudnn: u64) -> String {
    let thousand = if cudnn >= 90_000 { 10_000 } else { 1000 };
    format!("{}.{}.{}", cudnn / thousand, cudnn % thousand / 100, cudnn % 100)
}

#[cfg(test)]
mod tests;
