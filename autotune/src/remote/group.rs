//! Child processes in their own process groups, with captured output and bounded waits.

use core::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process_group, waitid,
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Status(ExitStatus),
    /// The system discarded the status, because this process inherited an ignored `SIGCHLD`.
    Unknown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Unknown => f.write_str("with an unknown exit status"),
        }
    }
}

/// A child process that leads a process group. Dropping this kills the group.
pub(crate) struct ProcessGroup {
    /// `None` once the process is in [`UNENDED`].
    leader: Option<Child>,
    id: u32,
    end: Option<End>,
    stdout: Capture,
    stderr: Capture,
}

impl ProcessGroup {
    /// Starts `command`. Keeps the last `kept_bytes` of its standard output and the end of its standard
    /// error.
    pub(crate) fn start(mut command: Command, kept_bytes: usize) -> io::Result<Self> {
        reap();
        // Ctrl-C signals the whole foreground group, but only the tuner must handle it.
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut leader = command.spawn()?;
        let (id, pipes) = (leader.id(), (leader.stdout.take(), leader.stderr.take()));
        let (stdout, stderr) = Default::default();
        // If a capture fails, dropping the group kills it.
        let mut group = Self { id, leader: Some(leader), end: None, stdout, stderr };
        group.stdout.start(pipes.0, kept_bytes)?;
        group.stderr.start(pipes.1, KEPT_BYTES)?;
        Ok(group)
    }

    pub(crate) const fn id(&self) -> u32 {
        self.id
    }

    /// How the leader ended, if it has. Kills the rest of the group.
    pub(crate) fn end(&mut self) -> Option<End> {
        if let (None, Some(leader)) = (self.end, &mut self.leader) {
            self.end = end_of(leader);
        }
        self.end
    }

    /// How the leader ended; `None` if it has not after `within`.
    pub(crate) fn wait(&mut self, within: Duration) -> Option<End> {
        let start = Instant::now();
        loop {
            if let Some(end) = self.end() {
                return Some(end);
            }
            if start.elapsed() >= within {
                return None;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Kills the group, or returns why its leader does not end.
    pub(crate) fn kill(&mut self, within: Duration) -> Result<(), String> {
        if self.end().is_some() {
            return Ok(());
        }
        kill_group(self.id);
        if self.wait(within).is_some() {
            return Ok(());
        }
        // The kernel ends it when it returns from the driver.
        unended().extend(self.leader.take());
        Err(format!(
            "process {} did not end within {within:?} of being killed and may still use the device",
            self.id
        ))
    }

    /// The end of its standard error, complete if the process closes it within the time.
    pub(crate) fn stderr(&self, within: Duration) -> String {
        self.stderr.take(within)
    }

    /// The end of its output since the last call, complete if the process closes it within the time. Dropped bytes
    /// before it are marked.
    pub(crate) fn take_printed(&self, within: Duration) -> String {
        self.stdout.take(within)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.leader.is_some() {
            // Reported by `unended_processes`.
            let _ = self.kill(Duration::ZERO);
        }
    }
}

/// The ids of measuring processes that were killed but have not ended. A process ends only when it returns
/// from the driver, and may use its device until then.
#[must_use]
pub fn unended_processes() -> Vec<u32> {
    reap();
    unended().iter().map(Child::id).collect()
}

/// Ends this process, and its children if it leads a process group.
pub(crate) fn end_this_group() -> ! {
    if getpgrp() == getpid() {
        // Kills this process too. If it fails, the process ends alone.
        let _ = kill_process_group(getpid(), Signal::KILL);
    }
    std::process::abort()
}

/// Killed processes that have not ended.
static UNENDED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

fn unended() -> MutexGuard<'static, Vec<Child>> {
    // A panic cannot leave the list inconsistent.
    UNENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps ended processes, so that no zombie remains.
fn reap() {
    unended().retain_mut(|process| end_of(process).is_none());
}

/// How a child has ended. Kills its group first: once the child is reaped, its id may belong to another
/// group.
fn end_of(child: &mut Child) -> Option<End> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let has_ended = pid(child.id()).map(|pid| waitid(WaitId::Pid(pid), options));
    if let Some(Ok(Some(_))) = has_ended {
        kill_group(child.id());
    }
    // A child that cannot be waited for has ended.
    child.try_wait().map_or(Some(End::Unknown), |status| status.map(End::Status))
}

fn kill_group(id: u32) {
    if let Some(group) = pid(id) {
        // It fails if the group is empty.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// The end of the output in a pipe, read by a separate thread.
#[derive(Default)]
struct Capture {
    kept: Arc<Mutex<Kept>>,
    /// Disconnected once the pipe is closed.
    open: Option<Receiver<()>>,
}

#[derive(Default)]
struct Kept {
    end: Vec<u8>,
    /// Dropped bytes before the end.
    cut: usize,
}

impl Capture {
    fn start(
        &mut self,
        pipe: Option<impl Read + Send + 'static>,
        kept_bytes: usize,
    ) -> io::Result<()> {
        let (closed, open) = mpsc::channel::<()>();
        let (kept, Some(mut pipe)) = (Arc::clone(&self.kept), pipe) else { return Ok(()) };
        self.open = Some(open);
        thread::Builder::new().spawn(move || {
            let mut buffer = vec![0; kept_bytes];
            while let Ok(read @ 1..) = pipe.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.end.extend_from_slice(buffer.get(..read).unwrap_or_default());
                let over = kept.end.len().saturating_sub(kept_bytes);
                kept.end.drain(..over);
                kept.cut = kept.cut.saturating_add(over);
            }
            drop(closed);
        })?;
        Ok(())
    }

    /// The kept output, once the pipe is closed or the time is over, with a mark for dropped bytes.
    fn take(&self, within: Duration) -> String {
        // Nothing is sent: this only waits.
        let _ = self.open.as_ref().map(|open| open.recv_timeout(within));
        let Kept { end, cut } =
            core::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let text = String::from_utf8_lossy(&end);
        match cut {
            0 => text.into_owned(),
            cut => format!("({cut} bytes) ...{text}"),
        }
    }
}

/// Bytes of standard error that are kept: enough for a panic message and its location.
pub(crate) const KEPT_BYTES: usize = 2048;
/// How long to wait for the end of a process that closed its connection, and for the rest of the output of an ended one.
/// It takes seconds on a busy machine, or if the memory of a device is freed. A process that left the group may keep the
/// output open.
pub(crate) const CLOSING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);
