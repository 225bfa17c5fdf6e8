//! Keys, profiles, channels and pullers.

use std::path::{Path, PathBuf};

use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, Layers, Provenance, StoredChoice, Summary,
};
use gridguard_fleet::{
    Change, Channel, FleetError, Location, Pulled, Puller, Release, SigningKey, Store, TrustedKeys,
};
use tempfile::TempDir;

use crate::registry::Link;

pub(crate) const URL: &str = "oci://r.example/gpu/profiles:stable";

/// The example of RFC 8410.
pub(crate) fn signer() -> SigningKey {
    SigningKey::from_pem(include_bytes!("../keys/signer.pem")).expect("a key")
}

pub(crate) fn other_signer() -> SigningKey {
    SigningKey::from_pem(include_bytes!("../keys/other.pem")).expect("a key")
}

pub(crate) fn trusted() -> TrustedKeys {
    TrustedKeys::from_pem(include_bytes!("../keys/signer.pub.pem")).expect("a key")
}

pub(crate) fn device(name: &str) -> DeviceIdentity {
    DeviceIdentity { name: name.into(), ..DeviceIdentity::new(&DeviceLimits::any_device()) }
}

/// A profile with `entries` entries, all with `warps` warps.
pub(crate) fn profile(name: &str, entries: u64, warps: u64) -> String {
    let environment =
        Environment { driver: "13.0".into(), compiler: "13.0".into(), tuner: "0.1.0".into() };
    let mut document = Document::new(device(name), environment);
    for rows in 1..=entries {
        let entry = Entry {
            key: Key {
                kernel: "k".into(),
                source: "0f".into(),
                dtypes: "f16".into(),
                ..Key::default()
            },
            shape: vec![("rows".into(), rows)],
            choice: StoredChoice::Whole,
            parameters: vec![("warps".into(), warps)],
            launches: 1,
            chosen: Summary::default(),
            default: Summary::default(),
            found: Provenance::default(),
        };
        document.insert(entry).expect("within the limits");
    }
    document.to_string()
}

pub(crate) fn location() -> Location {
    URL.parse().expect("an address")
}

pub(crate) fn channel(link: &Link) -> Channel {
    channel_with(link, trusted())
}

pub(crate) fn channel_with(link: &Link, keys: TrustedKeys) -> Channel {
    let store = Store::on(link.network(), &location()).expect("a store");
    Channel::new(store, location(), None, keys)
}

pub(crate) fn puller(link: &Link, folder: &Path, node: &str) -> Puller {
    Puller { channel: channel(link), folder: folder.to_owned(), node: node.to_owned() }
}

pub(crate) fn profiles(texts: &[&str], percent: u8) -> Change {
    Change::Profiles { texts: texts.iter().map(|text| text.as_bytes().to_vec()).collect(), percent }
}

/// A node, and its own way to the registry.
pub(crate) struct Node {
    pub(crate) link: Link,
    pub(crate) folder: TempDir,
    pub(crate) puller: Puller,
}

impl Node {
    pub(crate) fn new() -> Self {
        let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
        let puller = puller(&link, folder.path(), "node");
        Self { link, folder, puller }
    }

    /// A node that has pulled a profile with one warp.
    pub(crate) async fn with_release() -> Self {
        let node = Self::new();
        push(&node.link, 1, 100).await;
        node.pull().await;
        node
    }

    pub(crate) async fn pull(&self) -> Pulled {
        self.puller.pull().await.expect("pulled")
    }

    pub(crate) async fn refusal(&self) -> FleetError {
        self.puller.pull().await.expect_err("refused")
    }

    pub(crate) fn warps(&self) -> u64 {
        warps(self.folder.path())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Pushes a change to the channel of the registry.
pub(crate) async fn publish(link: &Link, change: Change) -> Release {
    channel(link).push(&signer(), change).await.expect("pushed")
}

/// Pushes a profile of the device `A` with this number of warps.
pub(crate) async fn push(link: &Link, warps: u64, percent: u8) -> Release {
    publish(link, profiles(&[&profile("A", 3, warps)], percent)).await
}

/// The number of warps in the profile of the device `A` that a server would load; 0 without one.
pub(crate) fn warps(folder: &Path) -> u64 {
    let loaded = Layers::new().user_at(folder).load(&device("A"), &Environment::default());
    loaded.profile.entries().next().map_or(0, |(_, entry)| entry.parameters[0].1)
}
