//! Ten thousand nodes with the real client, on a simulated network and clock: three hours of roll-outs, wrong
//! answers and an outage.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gridguard_fleet::{Change, Digest, FleetError, Pulled, Puller, Release};
use http::{Method, StatusCode};
use plotters::prelude::*;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::registry::{Link, answer, with_header};
use crate::support::{channel, profile, profiles, puller, signer};

/// What was seen of the fleet.
#[derive(Default)]
struct Fleet {
    /// The profiles of all releases so far, in order.
    known: Vec<Digest>,
    last: Option<Release>,
    /// The serial and the profile of each node.
    nodes: Vec<Option<(u64, Digest)>>,
    /// Profiles on a node that no release has, and serials that went back.
    bad: usize,
    refused: usize,
    offline: usize,
    /// Requests in each second.
    requests: BTreeMap<u64, usize>,
    /// The number of nodes with each profile, minute by minute.
    minutes: Vec<BTreeMap<Digest, usize>>,
}

#[test]
fn every_node_of_a_small_fleet_ends_on_the_right_profile() {
    simulate(200, None);
}

#[test]
#[ignore = "takes a minute; writes a picture to the path in FLEET_PICTURE"]
fn every_node_of_ten_thousand_ends_on_the_right_profile() {
    simulate(10_000, std::env::var_os("FLEET_PICTURE").as_deref().map(Path::new));
}

fn simulate(nodes: usize, picture: Option<&Path>) {
    let begun = std::time::Instant::now();
    fastrand::seed(7);
    // In memory: the simulation is not about disks.
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let folders = tempfile::tempdir_in(parent).unwrap();
    let fleet = Arc::new(Mutex::new(Fleet { nodes: vec![None; nodes], ..Fleet::default() }));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let registry = Link::new();
    LocalSet::new().block_on(&runtime, async {
        let start = Instant::now();
        release(&registry, &fleet, 1, 100).await;
        let old = registry.registry().tags["stable"].clone();
        for node in 0..nodes {
            let link = node_link(&registry, &fleet, start, &old);
            let folder = folders.path().join(node.to_string());
            let puller = puller(&link, &folder, &format!("node{node}"));
            let fleet = Arc::clone(&fleet);
            spawn_local(async move {
                let report = |result: &_| fleet.lock().unwrap().report(node, &puller, result);
                puller.watch(EVERY, SPLAY, report).await
            });
        }
        for minute in 0..=MINUTES {
            sleep_until(start + Duration::from_secs(60 * minute)).await;
            match minute {
                20 => release(&registry, &fleet, 2, 10).await,
                40 => change(&registry, &fleet, Change::Widen { percent: 50 }).await,
                60 => change(&registry, &fleet, Change::Widen { percent: 100 }).await,
                // Just before the outage.
                85 => release(&registry, &fleet, 3, 100).await,
                150 => change(&registry, &fleet, Change::RollBack { tag: "stable-4".into() }).await,
                _ => {}
            }
            fleet.lock().unwrap().count();
        }
    });
    let seen = std::mem::take(&mut *fleet.lock().unwrap());
    let last = seen.last.as_ref().expect("a release");
    for (node, state) in seen.nodes.iter().enumerate() {
        let right = last.files_for(&format!("node{node}"))[0].digest;
        assert_eq!(*state, Some((last.serial, right)), "node {node}");
    }
    assert_eq!(seen.bad, 0, "profiles that no release gives");
    assert!(seen.refused > 0 && seen.offline > 0, "wrong answers and the outage were met");
    let (total, busiest) =
        (seen.requests.values().sum::<usize>(), seen.requests.values().max().expect("requests"));
    // A request each interval, three for a new release, and some after failures.
    let polls = usize::try_from(MINUTES * 60 / EVERY.as_secs()).unwrap();
    assert!(total < nodes * (2 * polls + 5 * 4), "{total} requests");
    // At the start, when all nodes fetch everything within the splay.
    assert!(
        *busiest < nodes * 6 / usize::try_from(SPLAY.as_secs()).unwrap() + 100,
        "{busiest} requests in a second"
    );
    let seconds = begun.elapsed().as_secs();
    println!(
        "{nodes} nodes, {MINUTES} minutes in {seconds} s: {total} requests, at most {busiest} a second, {} refused, {} \
         offline, 0 bad",
        seen.refused, seen.offline
    );
    if let Some(path) = picture {
        draw(path, &seen, nodes).expect("drawn");
    }
}

/// The way of a node: 1 % of the answers are changed, 1 % are old, the registry takes a limited number of requests a
/// second, and is down for an hour.
fn node_link(registry: &Link, fleet: &Arc<Mutex<Fleet>>, start: Instant, old: &Bytes) -> Link {
    let link = registry.another();
    let capacity = fleet.lock().unwrap().nodes.len() / 20 + 20;
    let old = old.clone();
    let fleet = Arc::clone(fleet);
    link.delay(Duration::from_millis(5));
    link.set(move |request, honest| {
        let second = start.elapsed().as_secs();
        let in_second = fleet.lock().unwrap().count_request(second);
        if OUTAGE.contains(&(second / 60)) {
            return Err("no route to host");
        }
        if in_second > capacity {
            return Ok(with_header(StatusCode::TOO_MANY_REQUESTS, "retry-after", "5"));
        }
        let (is_tag, dice) = (request.uri().path().contains("/manifests/"), fastrand::u8(0..100));
        honest.map(|honest| match dice {
            0 if !honest.body().is_empty() => honest.map(|body| {
                let mut bytes = body.to_vec();
                let place = fastrand::usize(..bytes.len());
                bytes[place] ^= 1 << fastrand::u8(0..7);
                bytes.into()
            }),
            1 if is_tag && request.method() == Method::GET => answer(StatusCode::OK, old.clone()),
            _ => honest,
        })
    });
    link
}

impl Fleet {
    /// Counts a request, and returns the number in this second so far.
    fn count_request(&mut self, second: u64) -> usize {
        let count = self.requests.entry(second).or_default();
        *count += 1;
        *count
    }

    fn report(&mut self, node: usize, puller: &Puller, result: &Result<Pulled, FleetError>) {
        match result {
            Ok(pulled) => {
                let (name, digest) = pulled.installed.files.iter().next().expect("a profile");
                let serial = pulled.installed.serial;
                let on_disk = Digest::of(&fs::read(puller.folder.join(name)).expect("installed"));
                let is_back = self.nodes[node].is_some_and(|(before, _)| before > serial);
                self.bad +=
                    usize::from(is_back || on_disk != *digest || !self.known.contains(digest));
                self.nodes[node] = Some((serial, *digest));
            }
            Err(error) if error.is_offline() => self.offline += 1,
            Err(error) => {
                assert!(
                    error.is_refusal() || matches!(error, FleetError::Missing { .. }),
                    "{error}"
                );
                self.refused += 1;
            }
        }
    }

    fn count(&mut self) {
        let mut counts = BTreeMap::new();
        for (_, digest) in self.nodes.iter().flatten() {
            *counts.entry(*digest).or_default() += 1;
        }
        self.minutes.push(counts);
    }
}

/// Pushes a profile with this number of warps.
async fn release(registry: &Link, fleet: &Arc<Mutex<Fleet>>, warps: u64, percent: u8) {
    change(registry, fleet, profiles(&[&profile("A", 3, warps)], percent)).await;
}

async fn change(registry: &Link, fleet: &Arc<Mutex<Fleet>>, change: Change) {
    let release = channel(registry).push(&signer(), change).await.expect("pushed");
    let mut fleet = fleet.lock().unwrap();
    let staged = release.staged.iter().flat_map(|staged| &staged.files);
    for file in release.files.iter().chain(staged) {
        if !fleet.known.contains(&file.digest) {
            fleet.known.push(file.digest);
        }
    }
    fleet.last = Some(release);
}

/// Draws the shares of the profiles above the requests of each minute.
fn draw(path: &Path, seen: &Fleet, nodes: usize) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (900, 560)).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(360);
        let caption = format!("{nodes} simulated nodes: share of the nodes on each profile");
        let mut shares = ChartBuilder::on(&above)
            .caption(caption, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0..MINUTES, 0.0..100.0)?;
        shares.configure_mesh().disable_x_mesh().x_desc("minutes").y_desc("%").draw()?;
        let outage = [(OUTAGE.start, 0.0), (OUTAGE.end, 100.0)];
        shares.draw_series([Rectangle::new(outage, BLACK.mix(0.08).filled())])?;
        let most = f64::from(u32::try_from(nodes)?);
        for (number, digest) in seen.known.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let share = |counts: &BTreeMap<Digest, usize>| counts.get(digest).copied().unwrap_or(0);
            let points = (0_u64..).zip(&seen.minutes).map(|(minute, counts)| {
                (minute, 100.0 * f64::from(u32::try_from(share(counts)).unwrap_or(0)) / most)
            });
            shares
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(format!("profile {}", number + 1))
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2))
                });
        }
        shares
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleLeft)
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE)
            .draw()?;
        let mut by_minute = vec![0_usize; usize::try_from(MINUTES)? + 1];
        for (second, count) in &seen.requests {
            if let Some(sum) = by_minute.get_mut(usize::try_from(second / 60)?) {
                *sum += count;
            }
        }
        let top = by_minute.iter().max().copied().unwrap_or(1);
        let mut rate = ChartBuilder::on(&below)
            .caption("requests in a minute (grey: the registry is down)", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0..MINUTES, 0..top)?;
        rate.configure_mesh().disable_x_mesh().x_desc("minutes").draw()?;
        rate.draw_series([Rectangle::new(
            [(OUTAGE.start, 0), (OUTAGE.end, top)],
            BLACK.mix(0.08).filled(),
        )])?;
        rate.draw_series(LineSeries::new(
            (0_u64..).zip(by_minute.iter().copied()),
            BLUE.stroke_width(2),
        ))?;
        root.present()?;
    }
    fs::write(path, text + "\n")?;
    Ok(())
}

const MINUTES: u64 = 180;
const OUTAGE: Range<u64> = 90..150;
const EVERY: Duration = Duration::from_secs(600);
const SPLAY: Duration = Duration::from_secs(60);
const COLOURS: [RGBColor; 3] = [BLUE, RGBColor(0, 140, 60), RED];
