//! Checks the profile of each model of device, and the cache of compiled kernels.

use std::path::Path;

use gridguard::cuda;
use gridguard::profile::{DeviceIdentity, Environment, Layer, LayerNotice, Layers, NoticeLevel};
use gridguard_kernels::CubinCache;

use super::finding::{Finding, Subject};

const PROFILE: Subject = Subject::new("profile");

/// Checks the profiles of the first `count` devices, once for each model.
pub(super) fn check_profiles(count: usize, explicit: Option<&Path>) -> Vec<Finding> {
    let environment = Environment::cuda().unwrap_or_default();
    let mut seen: Vec<DeviceIdentity> = Vec::new();
    let mut findings = Vec::new();
    for ordinal in 0..count {
        // The smoke test reports such a device.
        let Ok(limits) = cuda::device_limits(ordinal) else { continue };
        let identity = DeviceIdentity::new(&limits);
        if seen.contains(&identity) {
            continue;
        }
        let layers = explicit.map_or_else(Layers::new, |path| Layers::new().explicit(path));
        let loaded = layers.user().built_in(&identity).load(&identity, &environment);
        let entries: Vec<Layer> = loaded.profile.entries().map(|(layer, _)| layer).collect();
        findings.extend(check_model(ordinal, &identity.name, &entries, &loaded.notices));
        seen.push(identity);
    }
    findings
}

pub(super) fn check_cache() -> Option<Finding> {
    let reason = CubinCache::for_user()?.check().err()?;
    let remedy = "or set GRIDGUARD_CUBIN_CACHE to a folder of your own";
    Some(Subject::new("cubin cache").warning(reason.to_string(), remedy))
}

/// `ordinal` is the first device of the model, `entries` the layer of each entry.
fn check_model(
    ordinal: usize,
    name: &str,
    entries: &[Layer],
    notices: &[LayerNotice],
) -> Vec<Finding> {
    let tune = format!("gridguard tune --device {ordinal}");
    let counts: Vec<String> = [Layer::Explicit, Layer::User, Layer::Embedded]
        .into_iter()
        .zip(["from --profile", "from the user's profile", "built in"])
        .map(|(layer, name)| (entries.iter().filter(|it| **it == layer).count(), name))
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    let mut findings = vec![match counts.is_empty() {
        true => PROFILE.warning(format!("none for {name}: kernels run with their defaults"), &tune),
        false => PROFILE.good(format!("{name}: entries: {}", counts.join(", "))),
    }];
    findings.extend(notices.iter().map(|notice| {
        let what = notice.to_string();
        match (notice.level(), notice.layer) {
            (NoticeLevel::Note, _) => PROFILE.good(what),
            // The file that the user named must be usable.
            (NoticeLevel::Reject, Layer::Explicit) => PROFILE.bad(what, &tune),
            (NoticeLevel::Reject | NoticeLevel::Degrade, _) => PROFILE.warning(what, &tune),
        }
    }));
    findings
}

#[cfg(test)]
mod tests {
    use gridguard::profile::ProfileNotice;

    use super::super::finding::Level;
    use super::*;

    fn check(entries: &[Layer], notice: Option<(Layer, ProfileNotice)>) -> Vec<Finding> {
        let notice =
            notice.map(|(layer, notice)| LayerNotice { layer, path: Some("p.ron".into()), notice });
        check_model(2, "NVIDIA L4", entries, notice.as_slice())
    }

    #[test]
    fn entries_are_counted_by_layer_and_none_is_a_warning() {
        let findings = check(&[Layer::Embedded, Layer::User, Layer::Embedded], None);
        let what = "NVIDIA L4: entries: 1 from the user's profile, 2 built in";
        assert_eq!(findings, [PROFILE.good(what)]);
        let none = check(&[], None).remove(0);
        assert_eq!(none.what, "none for NVIDIA L4: kernels run with their defaults");
        assert_eq!(none.remedy.as_deref(), Some("gridguard tune --device 2"));
    }

    #[test]
    fn a_stale_profile_is_bad_only_if_the_user_named_it() {
        let other_version = |component| {
            let (measured, running) = ("12.8".into(), "13.0".into());
            ProfileNotice::OtherVersion { component, measured, running, entries: 3 }
        };
        let major = || other_version("driver");
        let level = |layer, notice| check(&[layer], Some((layer, notice)))[1].level;
        assert_eq!(level(Layer::User, major()), Level::Warning);
        assert_eq!(level(Layer::User, ProfileNotice::Missing), Level::Warning);
        assert_eq!(level(Layer::Explicit, ProfileNotice::Missing), Level::Bad);
        assert_eq!(level(Layer::Embedded, other_version("tuner")), Level::Good);
        let what = &check(&[], Some((Layer::User, major())))[1].what;
        assert!(
            what.starts_with(
                "degrade: user profile p.ron: 3 entries were measured with driver 12.8"
            )
        );
    }
}
