//! Which profile each model of device uses.

use std::path::Path;

use gridguard::cuda;
use gridguard::profile::{
    DeviceIdentity, Environment, Layer, LayerFinding, Layers, Level as Severity,
};

use super::result::CheckResult;

const SUBJECT: &str = "profile";

/// Checks the profiles of the first `count` devices, once for each model.
pub(super) fn check_profiles(count: usize, explicit: Option<&Path>) -> Vec<CheckResult> {
    let environment = Environment::of_cuda().unwrap_or_default();
    let mut seen: Vec<DeviceIdentity> = Vec::new();
    let mut results = Vec::new();
    for ordinal in 0..count {
        // A device that cannot be queried is reported elsewhere.
        let Ok(limits) = cuda::device_limits(ordinal) else { continue };
        let identity = DeviceIdentity::of(&limits);
        if seen.contains(&identity) {
            continue;
        }
        let layers = explicit.map_or_else(Layers::new, |path| Layers::new().explicit(path));
        let loaded = layers.user().built_in(&identity).load(&identity, &environment);
        let entries: Vec<Layer> = loaded.profile.entries().map(|(layer, _)| layer).collect();
        results.extend(check_model(ordinal, &identity.name, &entries, &loaded.findings));
        seen.push(identity);
    }
    results
}

/// `ordinal` is the first device of the model, `entries` has the layer of each entry.
fn check_model(
    ordinal: usize,
    name: &str,
    entries: &[Layer],
    findings: &[LayerFinding],
) -> Vec<CheckResult> {
    let tune = format!("gridguard tune --device {ordinal}");
    let counts: Vec<String> = [Layer::Explicit, Layer::User, Layer::Embedded]
        .into_iter()
        .zip(["from --profile", "from the user's profile", "built in"])
        .map(|(layer, name)| (entries.iter().filter(|it| **it == layer).count(), name))
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    let mut results = vec![match counts.is_empty() {
        true => CheckResult::warning(
            SUBJECT,
            format!("none for {name}: kernels run with their defaults"),
            &tune,
        ),
        false => CheckResult::good(SUBJECT, format!("{name}: entries: {}", counts.join(", "))),
    }];
    results.extend(findings.iter().map(|finding| {
        let what = finding.to_string();
        match (finding.level(), finding.layer) {
            (Severity::Note, _) => CheckResult::good(SUBJECT, what),
            // The file that the user named must be usable.
            (Severity::Reject, Layer::Explicit) => CheckResult::bad(SUBJECT, what, &tune),
            (Severity::Reject | Severity::Degrade, _) => CheckResult::warning(SUBJECT, what, &tune),
        }
    }));
    results
}

#[cfg(test)]
mod tests {
    use gridguard::profile::Finding;

    use super::super::result::Level;
    use super::*;

    fn check(entries: &[Layer], finding: Option<(Layer, Finding)>) -> Vec<CheckResult> {
        let finding = finding.map(|(layer, finding)| LayerFinding {
            layer,
            path: Some("p.ron".into()),
            finding,
        });
        check_model(2, "NVIDIA L4", entries, finding.as_slice())
    }

    #[test]
    fn entries_are_counted_by_layer_and_none_is_a_warning() {
        let results = check(&[Layer::Embedded, Layer::User, Layer::Embedded], None);
        let what = "NVIDIA L4: entries: 1 from the user's profile, 2 built in";
        assert_eq!(results, [CheckResult::good(SUBJECT, what)]);
        let none = check(&[], None).remove(0);
        assert_eq!(none.what, "none for NVIDIA L4: kernels run with their defaults");
        assert_eq!(none.remedy.as_deref(), Some("gridguard tune --device 2"));
    }

    #[test]
    fn a_stale_profile_is_bad_only_if_the_user_named_it() {
        let major =
            || Finding::DriverMajor { measured: "12.8".into(), running: "13.0".into(), entries: 3 };
        let level = |layer, finding| check(&[layer], Some((layer, finding)))[1].level;
        assert_eq!(level(Layer::User, major()), Level::Warning);
        assert_eq!(level(Layer::User, Finding::Missing), Level::Warning);
        assert_eq!(level(Layer::Explicit, Finding::Missing), Level::Bad);
        let tuner = Finding::Tuner { measured: "0.0".into(), running: "0.1".into(), entries: 1 };
        assert_eq!(level(Layer::Embedded, tuner), Level::Good);
        let what = &check(&[], Some((Layer::User, major())))[1].what;
        assert!(what.starts_with("degrade: user profile p.ron: 3 entries are from driver 12.8"));
    }
}
