//! A folder as the repository, as on a network file system.

use gridguard_fleet::{Channel, FleetError, Location, Puller, Store};

use crate::support::{profile, profiles, signer, trusted, warps};

#[tokio::test]
async fn a_folder_serves_releases_like_a_registry() {
    let (repository, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("file://{}/profiles:stable", repository.path().display());
    let location: Location = url.parse().expect("an address");
    let channel = || {
        Channel::new(Store::open(&location).expect("a store"), location.clone(), None, trusted())
    };
    let missing = channel().verify().await.expect_err("nothing is there");
    assert!(matches!(missing, FleetError::Missing { .. }), "{missing}");
    let puller =
        Puller { channel: channel(), folder: folder.path().to_owned(), node: "node".into() };
    for number in [1, 2] {
        channel()
            .push(&signer(), profiles(&[&profile("A", 2, number)], 100))
            .await
            .expect("pushed");
        assert!(puller.pull().await.expect("pulled").is_new);
        assert!(!puller.pull().await.expect("pulled").is_new);
        assert_eq!(warps(folder.path()), number);
    }
    let tags = Store::open(&location).expect("a store").tags().await.expect("listed");
    assert_eq!(tags, ["stable", "stable-1", "stable-2"]);
    // A tag cannot lead out of the repository.
    assert!(location.with_tag("../stable").is_err());
    std::fs::remove_dir_all(repository.path().join("profiles")).unwrap();
    puller.pull().await.expect_err("the repository is gone");
    assert_eq!(warps(folder.path()), 2);
}
