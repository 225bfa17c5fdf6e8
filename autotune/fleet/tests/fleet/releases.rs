//! Pushes, pulls, staged roll-outs, roll-backs and misses.

use core::time::Duration;
use std::fs;

use gridguard::profile::{Key, MatchKind, MissLog, ParsedShapes};
use gridguard_fleet::{Change, FleetError, Store};

use crate::registry::{Link, answer};
use crate::support::{
    channel, channel_with, location, other_signer, profile, profiles, puller, push, signer,
    trusted, warps,
};

#[tokio::test]
async fn a_pulled_profile_is_loaded_and_a_second_pull_costs_one_request() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let both = [&*profile("A", 3, 2), &*profile("B", 1, 1)];
    let release = channel(&link).push(&signer(), profiles(&both, 100)).await.expect("pushed");
    assert_eq!((release.serial, release.files.len()), (1, 2));
    assert_eq!(release.files[0].sources["k"].first().map(String::as_str), Some("0f"));
    assert_eq!(channel(&link).verify().await.expect("valid"), release);
    let puller = puller(&link, folder.path(), "node");
    assert!(puller.installed().expect("readable").is_none());
    let pulled = puller.pull().await.expect("pulled");
    assert!(pulled.is_new && pulled.installed.files.len() == 2);
    assert_eq!(warps(folder.path()), 2);
    let before = link.registry().requests;
    let again = puller.pull().await.expect("pulled");
    assert!(!again.is_new && again.installed == pulled.installed);
    assert_eq!(link.registry().requests, before + 1, "the ETag matches");
    assert_eq!(puller.installed().expect("readable"), Some(pulled.installed));
}

#[tokio::test]
async fn a_file_that_was_changed_or_deleted_is_pulled_again() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    push(&link, 2, 100).await;
    let puller = puller(&link, folder.path(), "node");
    puller.pull().await.expect("pulled");
    fs::write(folder.path().join("a.ron"), "rubbish").unwrap();
    assert!(puller.pull().await.expect("pulled").is_new);
    assert_eq!(warps(folder.path()), 2);
    fs::remove_file(folder.path().join("a.ron")).unwrap();
    assert!(puller.pull().await.expect("pulled").is_new);
    assert_eq!(warps(folder.path()), 2);
}

#[tokio::test]
async fn a_push_keeps_the_profiles_of_other_devices() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    push(&link, 2, 100).await;
    let other = channel(&link)
        .push(&signer(), profiles(&[&profile("B", 1, 1)], 100))
        .await
        .expect("pushed");
    assert_eq!((other.serial, other.files.len()), (2, 2));
    puller(&link, folder.path(), "node").pull().await.expect("pulled");
    assert_eq!(warps(folder.path()), 2);
    assert!(folder.path().join("b.ron").exists());
}

#[tokio::test]
async fn a_staged_profile_reaches_its_share_of_the_nodes_which_only_grows() {
    let link = Link::new();
    push(&link, 1, 100).await;
    let mut with_new = vec![false; 1000];
    for (percent, range) in [(10, 70..130), (50, 440..560), (100, 1000..1001)] {
        let change = if percent == 10 {
            profiles(&[&profile("A", 3, 2)], 10)
        } else {
            Change::Widen { percent }
        };
        let release = channel(&link).push(&signer(), change).await.expect("pushed");
        let new_digest = release
            .staged
            .as_ref()
            .map_or(release.files[0].digest, |staged| staged.files[0].digest);
        for (node, had) in with_new.iter_mut().enumerate() {
            let has = release.files_for(&format!("node{node}"))[0].digest == new_digest;
            assert!(has || !*had, "node {node} must not go back at {percent} %");
            *had = has;
        }
        let count = with_new.iter().filter(|has| **has).count();
        assert!(range.contains(&count), "{count} of 1000 nodes at {percent} %");
    }
}

#[tokio::test]
async fn a_roll_back_is_a_new_release_of_the_old_profiles() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let puller = puller(&link, folder.path(), "node");
    for warps in [1, 2] {
        push(&link, warps, 100).await;
        puller.pull().await.expect("pulled");
    }
    let back = Change::RollBack { tag: "stable-1".into() };
    assert_eq!(channel(&link).push(&signer(), back).await.expect("pushed").serial, 3);
    let pulled = puller.pull().await.expect("pulled");
    assert_eq!((pulled.installed.serial, warps(folder.path())), (3, 1));
    // The own tag ends a staged roll-out.
    push(&link, 4, 0).await;
    let end = channel(&link)
        .push(&signer(), Change::RollBack { tag: "stable".into() })
        .await
        .expect("pushed");
    assert_eq!((end.serial, end.staged), (5, None));
    let tags =
        Store::on(link.network(), &location()).expect("a store").tags().await.expect("listed");
    assert_eq!(tags, ["stable", "stable-1", "stable-2", "stable-3", "stable-4", "stable-5"]);
}

#[tokio::test]
async fn a_profile_that_a_release_no_longer_has_is_removed() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let puller = puller(&link, folder.path(), "node");
    push(&link, 1, 100).await;
    channel(&link).push(&signer(), profiles(&[&profile("B", 1, 1)], 100)).await.expect("pushed");
    puller.pull().await.expect("pulled");
    fs::write(folder.path().join("own.ron"), "kept").unwrap();
    let back = Change::RollBack { tag: "stable-1".into() };
    channel(&link).push(&signer(), back).await.expect("pushed");
    puller.pull().await.expect("pulled");
    assert!(!folder.path().join("b.ron").exists() && folder.path().join("own.ron").exists());
}

#[tokio::test]
async fn pushes_that_cannot_be_done_say_why_and_change_nothing() {
    let link = Link::new();
    for (change, why) in [
        (profiles(&[&profile("A", 1, 1)], 10), "the channel has no release yet"),
        (Change::Widen { percent: 50 }, "the channel has no release yet"),
        (Change::RollBack { tag: "stable-1".into() }, "the channel has no release yet"),
        (profiles(&["rubbish"], 100), "profile : "),
        (
            profiles(&[&profile("A", 2, 1).replacen("launches: 1", "launches: x", 1)], 100),
            "profile : ",
        ),
    ] {
        let refused = channel(&link).push(&signer(), change).await.expect_err(why).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(link.registry().tags.is_empty());
    push(&link, 1, 100).await;
    let refused = channel(&link)
        .push(&signer(), Change::Widen { percent: 50 })
        .await
        .expect_err("none is staged");
    assert!(refused.to_string().contains("no profiles are staged"), "{refused}");
    // A key that nobody has pinned cannot take over a channel.
    let stranger = channel_with(&link, other_signer().trusted());
    let refused = stranger.push(&other_signer(), profiles(&[&profile("A", 1, 9)], 100)).await;
    assert!(matches!(refused, Err(FleetError::Untrusted { .. })), "{refused:?}");
    // With both keys pinned, the next key can.
    let next = channel_with(&link, other_signer().trusted().and(trusted()));
    next.push(&other_signer(), profiles(&[&profile("A", 1, 9)], 100)).await.expect("pushed");
}

#[tokio::test(start_paused = true)]
async fn failures_lead_to_growing_random_pauses_up_to_the_interval() {
    let link = Link::new();
    let folder = tempfile::tempdir().unwrap();
    push(&link, 1, 100).await;
    let puller = puller(&link, folder.path(), "node");
    link.set(|_, _| Err("no route"));
    let (every, before) = (Duration::from_secs(300), link.registry().requests);
    let mut failures = 0;
    let watch = puller
        .watch(every, Duration::from_secs(10), |result| failures += usize::from(result.is_err()));
    let _ = tokio::time::timeout(Duration::from_secs(3600), watch).await;
    let requests = link.registry().requests - before;
    assert_eq!(failures, requests);
    // About 8 while the pauses grow, then one in 150 s on average.
    assert!((12..60).contains(&requests), "{requests} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn an_interval_of_any_length_neither_floods_the_server_nor_overflows() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    push(&link, 1, 100).await;
    let puller = puller(&link, folder.path(), "node");
    for (every, most) in [(Duration::ZERO, 120), (Duration::MAX, 10)] {
        for _ in 0..8 {
            let before = link.registry().requests;
            let watch = puller.watch(every, Duration::ZERO, |_| ());
            let _ = tokio::time::timeout(Duration::from_secs(100), watch).await;
            let requests = link.registry().requests - before;
            assert!((1..=most).contains(&requests), "{requests} requests in 100 s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_time_gets_it() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    push(&link, 1, 100).await;
    link.set(|_, _| {
        let mut busy = answer(http::StatusCode::TOO_MANY_REQUESTS, "busy".into());
        busy.headers_mut().insert("retry-after", "100".parse().unwrap());
        Ok(busy)
    });
    let puller = puller(&link, folder.path(), "node");
    let before = link.registry().requests;
    let watch = puller.watch(Duration::from_secs(10), Duration::ZERO, |_| ());
    let _ = tokio::time::timeout(Duration::from_secs(1000), watch).await;
    let requests = link.registry().requests - before;
    assert!((8..=10).contains(&requests), "{requests} requests in 1000 s");
}

#[tokio::test]
async fn misses_of_all_nodes_are_merged_and_a_node_replaces_its_own() {
    let (link, folder) = (Link::new(), tempfile::tempdir().unwrap());
    let store = Store::on(link.network(), &location()).expect("a store");
    let text = |rows: u64| {
        let log = MissLog::new(10);
        let key = Key { kernel: "k".into(), dtypes: "f16".into(), ..Key::default() };
        log.record(&key, &["rows"], &[rows], MatchKind::Default);
        let path = folder.path().join(rows.to_string());
        log.write(&path).expect("written");
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        text
    };
    for (node, rows) in [("one", 5), ("two", 6), ("two", 7), ("three", 5)] {
        assert_eq!(store.push_misses(node, &text(rows)).await.expect("pushed"), 1);
    }
    let (all, faults) = store.pull_misses().await.expect("pulled");
    let seen: Vec<_> = all.shapes.iter().map(|missed| (missed.shape[0].1, missed.seen)).collect();
    assert_eq!((seen, faults.len()), (vec![(5, 2), (7, 1)], 0));
    assert_eq!(ParsedShapes::parse(&all.to_ron()).expect("its own text").shapes, all.shapes);
    store.push_misses("one", "rubbish").await.expect_err("no file of shapes");
    link.registry().tags.insert("misses-evil".into(), "{}".into());
    let (all, faults) = store.pull_misses().await.expect("pulled");
    assert_eq!((all.shapes.len(), faults.len()), (2, 1));
}
