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

/// A kind of wheel of PyTorch's index.
struct Wheel {
    cuda: i32,
    tag: &'static str,
    /// The oldest and the newest capability that it has code for.
    capabilities: [(u32, u32); 2],
}

/// The newest first, as of PyTorch 2.9; those for CUDA 12.4 and before have older PyTorch only.
const WHEELS: [Wheel; 6] = [
    Wheel { cuda: 13_000, tag: "cu130", capabilities: [(7, 5), (12, 1)] },
    Wheel { cuda: 12_080, tag: "cu128", capabilities: [(7, 5), (12, 1)] },
    Wheel { cuda: 12_060, tag: "cu126", capabilities: [(5, 0), (9, 0)] },
    Wheel { cuda: 12_040, tag: "cu124", capabilities: [(5, 0), (9, 0)] },
    Wheel { cuda: 12_010, tag: "cu121", capabilities: [(5, 0), (9, 0)] },
    Wheel { cuda: 11_080, tag: "cu118", capabilities: [(3, 7), (9, 0)] },
];

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
                "run \"{python}\" -X importtime -c 'import torch' and see where it stays, or give it more \
                 --patience"
            ),
        ),
        Told::Died(why) => Finding::bad(
            SUBJECT,
            format!("{python} died of importing torch: {why}"),
            format!(
                "its libraries do not fit each other: unset LD_LIBRARY_PATH and try again, or install \
                 torch anew in an environment of its own, {}",
                install(machine)
            ),
        ),
        Told::Garbled(words) => {
            Finding::unknown(SUBJECT, format!("{python} answers something else: {words:?}"), other)
        }
    };
    vec![one]
}

fn of_torch(torch: &Torch, python: &str, machine: &Machine) -> Vec<Finding> {
    if let Some(file) = &torch.hidden_by {
        let what = format!("{python} finds {file} in its place");
        return vec![Finding::bad(
            SUBJECT,
            what,
            "rename that file: it is no PyTorch, and hides it",
        )];
    }
    if torch.missing && torch.python.starts_with("2.") {
        let what = format!("{python} is Python {}, and PyTorch needs Python 3", torch.python);
        return vec![Finding::bad(SUBJECT, what, "gridguard doctor --torch python3")];
    }
    if torch.missing {
        let what = format!("none in {python} ({})", torch.python);
        let remedy = format!(
            "name the Python that has it, gridguard doctor --torch PATH/bin/python, or {}",
            install(machine)
        );
        return vec![Finding::bad(SUBJECT, what, remedy)];
    }
    if let Some(error) = &torch.error {
        let remedy = version::meaning(error).unwrap_or_else(|| {
            format!("install torch anew in an environment of its own: {}", install(machine))
        });
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
                wheel_for(machine.driver, Some(*capability)),
            ),
            Service::None => Finding::bad(
                SUBJECT,
                format!("has no code for {name} ({sm}), only for {has}"),
                wheel_for(machine.driver, Some(*capability)),
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
    let remedy = || {
        let named = torch.warnings.iter().find_map(|words| version::meaning(words));
        named.unwrap_or_else(|| "gridguard explain tells what its message means".to_owned())
    };
    if !torch.available {
        let what = format!("sees no device, the driver shows {shown}: {said}");
        return Some(Finding::bad(SUBJECT, what, remedy()));
    }
    if u64::try_from(shown).ok() != Some(torch.devices) {
        let what = format!("sees {} devices, the driver shows {shown}", torch.devices);
        let remedy =
            "start both in the same environment: CUDA_VISIBLE_DEVICES, the container's GPUs";
        return Some(Finding::warning(SUBJECT, what, remedy));
    }
    (!torch.warnings.is_empty())
        .then(|| Finding::warning(SUBJECT, format!("warns: {said}"), remedy()))
}

/// How to get a wheel that serves the devices under this driver.
fn install(machine: &Machine) -> String {
    wheel_for(machine.driver, machine.devices.first().map(|(_, capability)| *capability))
}

/// The newest wheel for the device that the driver serves, if need be one of its major version; else
/// the driver is to be updated first.
fn wheel_for(driver: Option<i32>, capability: Option<ComputeCapability>) -> String {
    let has_code = |wheel: &&Wheel| {
        let [oldest, newest] = wheel.capabilities.map(ComputeCapability::from);
        capability.is_none_or(|it| (oldest..=newest).contains(&it))
    };
    let with_code = || WHEELS.iter().filter(has_code);
    let whole = |wheel: &&Wheel| driver.is_none_or(|driver| wheel.cuda <= driver);
    let partly = |wheel: &&Wheel| driver.is_none_or(|driver| wheel.cuda / 1000 == driver / 1000);
    let served = with_code().find(whole).or_else(|| with_code().rfind(partly));
    let pip = |tag: &str| {
        format!(
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{tag}"
        )
    };
    match (served, with_code().next_back(), capability) {
        (Some(wheel), ..) => pip(wheel.tag),
        (None, Some(wheel), _) => {
            let needed = version::words(wheel.cuda);
            format!("update the driver to one for CUDA {needed} or later, then {}", pip(wheel.tag))
        }
        (None, None, Some(it)) => {
            format!(
                "no wheel has code for {}: build PyTorch from source, or use another GPU",
                it.sm()
            )
        }
        (None, None, None) => "update the driver".to_owned(),
    }
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
