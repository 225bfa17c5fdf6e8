//! Pushes, pulls, staged roll-outs, roll-backs and misses.

use core::time::Duration;
use std::fs;

use gridguard::profile::{Key, MatchKind, MissLog, ParsedShapes};
use gridguard_fleet::{Change, FleetError, Store};

use crate::registry::{Link, with_header};
use crate::support::{
    Node, channel, channel_with, location, other_signer, profile, profiles, publish, push, signer,
    trusted,
};

#[tokio::test]
async fn a_pulled_profile_is_loaded_and_a_second_pull_costs_one_request() {
    let node = Node::new();
    let both = [&*profile("A", 3, 2), &*profile("B", 1, 1)];
    let release = publish(&node.link, profiles(&both, 100)).await;
    assert_eq!((release.serial, release.files.len()), (1, 2));
    assert_eq!(release.files[0].sources["k"].first().map(String::as_str), Some("0f"));
    assert_eq!(channel(&node.link).verify().await.expect("valid"), release);
    assert!(node.puller.installed().expect("readable").is_none());
    let pulled = node.pull().await;
    assert!(pulled.is_new && pulled.installed.files.len() == 2);
    assert_eq!(node.warps(), 2);
    let before = node.link.registry().requests;
    let again = node.pull().await;
    assert!(!again.is_new && again.installed == pulled.installed);
    assert_eq!(node.link.registry().requests, before + 1, "the ETag matches");
    assert_eq!(node.puller.installed().expect("readable"), Some(pulled.installed));
    // A file that was changed or deleted is pulled again.
    fs::write(node.path("a.ron"), "rubbish").unwrap();
    assert!(node.pull().await.is_new);
    fs::remove_file(node.path("a.ron")).unwrap();
    assert!(node.pull().await.is_new);
    assert_eq!(node.warps(), 2);
}

#[tokio::test]
async fn a_staged_profile_reaches_its_share_of_the_nodes_which_only_grows() {
    let link = Link::new();
    push(&link, 1, 100).await;
    let mut with_new = vec![false; 1000];
    for (percent, range) in [(10, 70..130), (50, 440..560), (100, 1000..1001)] {
        let staged = percent == 10;
        let new = || profiles(&[&profile("A", 3, 2)], 10);
        let release = publish(&link, if staged { new() } else { Change::Widen { percent } }).await;
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
async fn a_push_keeps_other_profiles_and_one_that_a_release_no_longer_has_is_removed() {
    let node = Node::new();
    push(&node.link, 2, 100).await;
    let both = publish(&node.link, profiles(&[&profile("B", 1, 1)], 100)).await;
    assert_eq!((both.serial, both.files.len()), (2, 2));
    node.pull().await;
    assert!(node.warps() == 2 && node.path("b.ron").exists());
    fs::write(node.path("own.ron"), "kept").unwrap();
    let back = Change::RollBack { tag: "stable-1".into() };
    assert_eq!(publish(&node.link, back).await.serial, 3);
    node.pull().await;
    assert!(!node.path("b.ron").exists() && node.path("own.ron").exists());
    // The own tag ends a staged roll-out.
    push(&node.link, 4, 0).await;
    let end = publish(&node.link, Change::RollBack { tag: "stable".into() }).await;
    assert_eq!((end.serial, end.staged), (5, None));
    let tags = Store::on(node.link.network(), &location()).expect("a store").tags().await;
    let expected = ["stable", "stable-1", "stable-2", "stable-3", "stable-4", "stable-5"];
    assert_eq!(tags.expect("listed"), expected);
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
    for tag in ["none", "../x", "stable-9"] {
        channel(&link).push(&signer(), Change::RollBack { tag: tag.into() }).await.expect_err(tag);
    }
    assert_eq!(channel(&link).verify().await.expect("valid").serial, 1);
    // A key that nobody has pinned cannot take over a channel.
    let stranger = channel_with(&link, other_signer().trusted());
    let refused = stranger.push(&other_signer(), profiles(&[&profile("A", 1, 9)], 100)).await;
    assert!(matches!(refused, Err(FleetError::Untrusted { .. })), "{refused:?}");
    // With both keys pinned, the next key can.
    let next = channel_with(&link, other_signer().trusted().and(trusted()));
    next.push(&other_signer(), profiles(&[&profile("A", 1, 9)], 100)).await.expect("pushed");
}

/// The requests of a node that watches the channel for this time.
async fn requests(node: &Node, every: Duration, seconds: u64) -> usize {
    let (mut failures, before) = (0, node.link.registry().requests);
    let watch = node.puller.watch(every, every.min(Duration::from_secs(10)), |result| {
        failures += usize::from(result.is_err());
    });
    let _ = tokio::time::timeout(Duration::from_secs(seconds), watch).await;
    let requests = node.link.registry().requests - before;
    assert!([0, requests].contains(&failures), "{failures} of {requests}");
    requests
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_up_to_the_interval_and_no_interval_floods_the_server() {
    let node = Node::new();
    push(&node.link, 1, 100).await;
    for (every, most) in [(Duration::ZERO, 120), (Duration::MAX, 10)] {
        for _ in 0..8 {
            let requests = requests(&node, every, 100).await;
            assert!((1..=most).contains(&requests), "{requests} requests in 100 s");
        }
    }
    node.link.set(|_, _| Err("no route"));
    let failed = requests(&node, Duration::from_secs(300), 3600).await;
    // About 8 while the pauses grow, then one in 150 s on average.
    assert!((12..60).contains(&failed), "{failed} requests in an hour");
    // A server that asks for time gets it.
    node.link
        .set(|_, _| Ok(with_header(http::StatusCode::TOO_MANY_REQUESTS, "retry-after", "100")));
    let asked = requests(&node, Duration::from_secs(10), 1000).await;
    assert!((8..=10).contains(&asked), "{asked} requests in 1000 s");
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
