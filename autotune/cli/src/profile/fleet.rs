//! `gridguard profile push|pull|verify|list|push-misses|pull-misses`: signed profiles of a fleet.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gridguard::count;
use gridguard_fleet::{
    Change, Channel, FleetError, Location, Pulled, Puller, Release, SigningKey, Store, TrustedKeys,
    pause,
};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::error::{CommandError, Exit};
use crate::files::{profiles, write_file};
use crate::measure::args;
use crate::output::{OutputArgs, known, note, text};

#[derive(Args)]
pub(crate) struct Push {
    /// Address of the channel: oci://REGISTRY/REPOSITORY:TAG, or a URL of s3, gs, az, file or https with :TAG
    url: Location,
    /// Profiles to add or replace, or folders of them; without any, --percent gives the staged profiles to more nodes
    #[arg(value_name = "FILE|FOLDER")]
    files: Vec<PathBuf>,
    /// Private key in PEM, from `openssl genpkey -algorithm ed25519`
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Public keys that may have signed the previous release, besides the key of --key
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Share of the nodes that get the profiles
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    percent: u8,
    /// Return to the profiles of an earlier release, for example stable-7
    #[arg(long, value_name = "TAG", conflicts_with_all = ["files", "percent"])]
    roll_back: Option<String>,
    /// Name of the channel [default: the last part of the address]
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct Pull {
    /// Address of the channel
    url: Location,
    /// Public keys in PEM that may sign releases
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Folder for the profiles
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// Name of this machine, which decides whether it gets staged profiles [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Name of the channel [default: the last part of the address]
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Pull for ever, about once in this time
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    every: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct Verify {
    /// Address of the channel
    url: Location,
    /// Public keys in PEM that may sign releases
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct List {
    /// Address of the repository
    url: Location,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct PushMisses {
    /// Address of the repository
    url: Location,
    /// Shapes without an exact entry, as servers log them
    file: PathBuf,
    /// Name of this machine, whose earlier file is replaced [default: the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Push for ever, once in this time
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    every: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct PullMisses {
    /// Address of the repository
    url: Location,
    /// File for the shapes of all machines, for `gridguard tune --shapes`
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

impl Push {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let key = SigningKey::read(&self.key)?;
        let others = self.keys.as_deref().map(TrustedKeys::read).transpose()?;
        let trusted = others.map_or_else(|| key.trusted(), |others| key.trusted().and(others));
        let files = profiles(&self.files)?;
        if files.is_empty() && !self.files.is_empty() {
            note("no profiles there: nothing is pushed");
            return Ok(Exit::Yes);
        }
        let texts = files.iter().map(|file| contents(file)).collect::<Result<Vec<_>, _>>()?;
        let change = match (&self.roll_back, texts.is_empty()) {
            (Some(tag), _) => Change::RollBack { tag: tag.clone() },
            (None, true) => Change::Widen { percent: self.percent },
            (None, false) => Change::Profiles { texts, percent: self.percent },
        };
        let channel = channel(&self.url, self.channel.as_ref(), trusted)?;
        let release = block_on(channel.push(&key, change))??;
        show(self.output, &self.url, &release)
    }
}

impl Verify {
    /// Verifies the release: its signature, and each profile.
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let channel = channel(&self.url, None, TrustedKeys::read(&self.keys)?)?;
        match block_on(channel.verify())? {
            Err(error) if error.is_refusal() => {
                note(format_args!("refused: {error}"));
                Ok(Exit::No)
            }
            release => show(self.output, &self.url, &release?),
        }
    }
}

impl Pull {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let keys = TrustedKeys::read(&self.keys)?;
        let channel = channel(&self.url, self.channel.as_ref(), keys)?;
        let (folder, node) = (self.folder.clone(), node(self.node.as_ref()));
        let puller = Puller { channel, folder, node };
        if let Some(every) = self.every {
            let splay = every.min(LONGEST_SPLAY);
            let report = |result: &Result<Pulled, FleetError>| match result {
                Ok(pulled) if pulled.is_new => note(format_args!("{}", line(pulled))),
                Ok(_) => {}
                Err(error) => note(format_args!("{error}; the last good profiles stay")),
            };
            match block_on(puller.watch(every, splay, report))? {}
        }
        let pulled = async {
            for attempt in 1..ATTEMPTS {
                match puller.pull().await {
                    Err(error) if error.is_offline() => {
                        sleep(pause(attempt, LONGEST_PAUSE, &error)).await;
                    }
                    result => return result,
                }
            }
            puller.pull().await
        };
        let (pulled, fault) = match block_on(pulled)? {
            Ok(pulled) => (Some(pulled), None),
            Err(error) if error.is_offline() || error.is_refusal() => {
                (puller.installed()?.map(Pulled::kept), Some(error))
            }
            Err(error) => return Err(error.into()),
        };
        let is_refused = fault.as_ref().is_some_and(FleetError::is_refusal);
        if let Some(error) = &fault {
            let what = if is_refused { "refused: " } else { "" };
            let kept = pulled.as_ref().map(|pulled| &pulled.installed.created);
            let kept =
                kept.map_or_else(String::new, |date| format!("; the profiles of {date} stay"));
            note(format_args!("{what}{error}{kept}"));
        }
        let document = json!({
            "folder": self.folder.display().to_string(),
            "new": pulled.as_ref().is_some_and(|pulled| pulled.is_new),
            "release": pulled.as_ref().map(|pulled| &pulled.installed),
            "fault": fault.map(|error| error.to_string()),
        });
        let shown = text(|f| pulled.iter().try_for_each(|pulled| writeln!(f, "{}", line(pulled))));
        self.output.print(&document, shown)?;
        Ok(match pulled {
            _ if is_refused => Exit::No,
            Some(_) => Exit::Yes,
            None => Exit::Unknown,
        })
    }
}

impl List {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let store = Store::open(&self.url)?;
        let tags = block_on(store.tags())??;
        let document = json!({ "tags": tags });
        self.output
            .print(&document, text(|f| tags.iter().try_for_each(|tag| writeln!(f, "{tag}"))))?;
        Ok(Exit::Yes)
    }
}

impl PushMisses {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let (store, node) = (Store::open(&self.url)?, node(self.node.as_ref()));
        let push = async || {
            let bytes = contents(&self.file)?;
            let shapes = String::from_utf8(bytes).map_err(CommandError::in_file(&self.file))?;
            store.push_misses(&node, &shapes).await.map_err(CommandError::from)
        };
        if let Some(every) = self.every {
            let watch = async {
                loop {
                    match push().await {
                        Ok(pushed) => note(format_args!("{} pushed", count(pushed, "shape"))),
                        Err(error) => note(error),
                    }
                    sleep(every).await;
                }
            };
            return block_on(watch)?;
        }
        let pushed = block_on(push())??;
        let shown = text(|f| writeln!(f, "{} pushed", count(pushed, "shape")));
        self.output.print(&json!({ "shapes": pushed }), shown)?;
        Ok(Exit::Yes)
    }
}

impl PullMisses {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let store = Store::open(&self.url)?;
        let (found, faults) = block_on(store.pull_misses())??;
        for error in &faults {
            note(format_args!("skipped: {error}"));
        }
        write_file(&self.file, found.to_ron())?;
        let (shapes, file) = (found.shapes.len(), self.file.display());
        let document =
            json!({ "shapes": shapes, "file": file.to_string(), "skipped": faults.len() });
        let shown = text(|f| writeln!(f, "{} in {file}", count(shapes, "shape")));
        self.output.print(&document, shown)?;
        Ok(if faults.is_empty() { Exit::Yes } else { Exit::InvalidInput })
    }
}

fn show(output: OutputArgs, url: &Location, release: &Release) -> Result<Exit, CommandError> {
    let shown = text(|f| {
        writeln!(
            f,
            "{url}: serial {} of {}, {}",
            release.serial, release.channel, release.created
        )?;
        let staged = release
            .staged
            .iter()
            .flat_map(|staged| staged.files.iter().map(|file| (staged.percent, file)));
        for (percent, file) in release.files.iter().map(|file| (100, file)).chain(staged) {
            let entries = count(file.entries, "entry");
            let share =
                if percent == 100 { String::new() } else { format!(", staged for {percent} %") };
            let by = known(&[("tuner", &file.tuner), ("driver", &file.driver)]);
            writeln!(f, "{} {entries}, {by}{share}", file.name)?;
            writeln!(f, "  {} choices {}", file.digest, file.choices)?;
        }
        Ok(())
    });
    output.print(release, shown)?;
    Ok(Exit::Yes)
}

/// `serial 7 of profiles:stable, 2 profiles, new`.
fn line(pulled: &Pulled) -> String {
    let Pulled { is_new, installed, .. } = pulled;
    let files = count(installed.files.len(), "profile");
    let new = if *is_new { "new" } else { "unchanged" };
    format!("serial {} of {}, {files}, {new}", installed.serial, installed.channel)
}

fn channel(
    url: &Location,
    name: Option<&String>,
    keys: TrustedKeys,
) -> Result<Channel, CommandError> {
    let store = Store::open(url)?;
    Ok(Channel::new(store, url.clone(), name.cloned(), keys))
}

fn contents(file: &Path) -> Result<Vec<u8>, CommandError> {
    let read = gridguard_files::read(file, gridguard::profile::MAX_FILE_BYTES);
    read.map_err(CommandError::in_file(file))?.ok_or_else(|| CommandError::missing_file(file))
}

fn node(name: Option<&String>) -> String {
    #[cfg(unix)]
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = || std::env::var("COMPUTERNAME").unwrap_or_default();
    name.cloned().unwrap_or_else(host)
}

fn block_on<F: Future>(future: F) -> Result<F::Output, CommandError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CommandError::io("starting the network"))?;
    let output = runtime.block_on(future);
    // A file of a folder may be a pipe without a writer, which a thread would open for ever.
    runtime.shutdown_background();
    Ok(output)
}

const ATTEMPTS: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Machines that start together pull over this time.
const LONGEST_SPLAY: Duration = Duration::from_secs(60);
