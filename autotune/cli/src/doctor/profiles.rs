//! Which profile would serve each model of device.

use std::path::Path;

use gridguard::cuda;
use gridguard::profile::{
    DeviceIdentity, Environment, Layer, LayerFinding, Layers, Level as Stale,
};

use super::finding::Finding;

const SUBJECT: &str = "profile";
/// The layers that this command knows, each as its users call it.
const LAYERS: [(Layer, &str); 3] = [
    (Layer::Explicit, "of the file that was named"),
    (Layer::User, "of the user's own"),
    (Layer::Embedded, "built in"),
];

/// The profiles of a model of device.
#[derive(Debug)]
pub(super) struct Profiles {
    /// The first device of its model.
    pub(super) ordinal: usize,
    pub(super) name: String,
    /// Entries of each layer that serve.
    pub(super) entries: Vec<Layer>,
    pub(super) findings: Vec<LayerFinding>,
}

/// Reads the profiles of the first `count` devices, once for each model.
pub(super) fn gather(count: usize, named: Option<&Path>) -> Vec<Profiles> {
    let environment = Environment::of_cuda().unwrap_or_default();
    let mut seen: Vec<DeviceIdentity> = Vec::new();
    let mut profiles = Vec::new();
    for ordinal in 0..count {
        // A device that does not answer is a finding of its own.
        let Ok(limits) = cuda::device_limits(ordinal) else { continue };
        let identity = DeviceIdentity::of(&limits);
        if seen.contains(&identity) {
            continue;
        }
        let layers = named.map_or_else(Layers::new, |path| Layers::new().explicit(path));
        let loaded = layers.user().built_in(&identity).load(&identity, &environment);
        profiles.push(Profiles {
            ordinal,
            name: identity.name.clone(),
            entries: loaded.profile.entries().map(|(layer, _)| layer).collect(),
            findings: loaded.findings,
        });
        seen.push(identity);
    }
    profiles
}

pub(super) fn findings(profiles: &Profiles) -> Vec<Finding> {
    let Profiles { ordinal, name, entries, findings } = profiles;
    let tune = format!("gridguard tune --device {ordinal}");
    let of_layer = |(layer, words): &(Layer, &str)| {
        let count = entries.iter().filter(|of| *of == layer).count();
        (count > 0).then(|| format!("{count} {words}"))
    };
    let counts: Vec<String> = LAYERS.iter().filter_map(of_layer).collect();
    let first = if counts.is_empty() {
        let what = format!("none for {name}: kernels run with their defaults");
        Finding::warning(SUBJECT, what, tune.as_str())
    } else {
        Finding::good(SUBJECT, format!("{name}: entries {}", counts.join(", ")))
    };
    let stale = findings.iter().map(|finding| of_finding(finding, &tune));
    std::iter::once(first).chain(stale).collect()
}

/// The file that was named has to serve; of the others a warning is enough.
fn of_finding(finding: &LayerFinding, tune: &str) -> Finding {
    let what = finding.to_string();
    match (finding.level(), finding.layer) {
        (Stale::Note, _) => Finding::good(SUBJECT, what),
        (Stale::Reject, Layer::Explicit) => Finding::bad(SUBJECT, what, tune),
        (Stale::Reject | Stale::Degrade, _) => Finding::warning(SUBJECT, what, tune),
    }
}

#[cfg(test)]
mod tests {
    use gridguard::profile::Finding as Found;

    use super::*;
    use crate::doctor::finding::Level;

    fn judged(entries: Vec<Layer>, found: Option<(Layer, Found)>) -> Vec<Finding> {
        let finding =
            |(layer, finding)| LayerFinding { layer, path: Some("p.ron".into()), finding };
        let findings = found.map(finding).into_iter().collect();
        let profiles = Profiles { ordinal: 2, name: "NVIDIA L4".into(), entries, findings };
        super::findings(&profiles)
    }

    #[test]
    fn entries_are_counted_by_layer_and_none_is_a_warning() {
        let found = judged(vec![Layer::Embedded, Layer::User, Layer::Embedded], None);
        let what = "NVIDIA L4: entries 1 of the user's own, 2 built in";
        assert_eq!(found, [Finding::good(SUBJECT, what)]);
        let none = judged(Vec::new(), None).remove(0);
        assert_eq!(none.what, "none for NVIDIA L4: kernels run with their defaults");
        assert_eq!(none.remedy.as_deref(), Some("gridguard tune --device 2"));
    }

    #[test]
    fn what_is_stale_is_as_bad_as_its_layer() {
        let major =
            || Found::DriverMajor { measured: "12.8".into(), running: "13.0".into(), entries: 3 };
        let level = |layer, finding| judged(vec![layer], Some((layer, finding)))[1].level;
        assert_eq!(level(Layer::User, major()), Level::Warning);
        assert_eq!(level(Layer::User, Found::Missing), Level::Warning);
        assert_eq!(level(Layer::Explicit, Found::Missing), Level::Bad);
        let tuner = Found::Tuner { measured: "0.0".into(), running: "0.1".into(), entries: 1 };
        assert_eq!(level(Layer::Embedded, tuner), Level::Good);
        let told = &judged(Vec::new(), Some((Layer::User, major())))[1].what;
        assert!(told.starts_with("degrade: user profile p.ron: 3 entries are from driver 12.8"));
    }
}
