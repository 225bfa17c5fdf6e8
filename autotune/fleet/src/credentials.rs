//! User names and passwords of registries, from Docker's configuration and its credential helpers.

use core::time::Duration;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use docker_credential::{DockerCredential, get_credential_from_reader};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::FleetError;

/// The user name and password for a registry, if there are any. A password in the file comes before the general helper.
pub(crate) async fn credentials(host: &str) -> Result<Option<(String, String)>, FleetError> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".docker")));
    let Some(text) = folder.and_then(|folder| {
        gridguard_files::read(&folder.join("config.json"), MAX_CONFIG_BYTES).ok()?
    }) else {
        return Ok(None);
    };
    let Ok(mut config) = serde_json::from_slice::<Map<String, Value>>(&text) else {
        return Ok(None);
    };
    // Without the helpers, which `docker_credential` would run without a time limit.
    let (own, general) = (config.remove("credHelpers"), config.remove("credsStore"));
    let own: HashMap<String, String> =
        own.and_then(|own| serde_json::from_value(own).ok()).unwrap_or_default();
    if let Some(helper) = own.get(host).filter(|helper| !helper.is_empty()) {
        return ask(helper, host).await;
    }
    let text = Value::Object(config).to_string();
    match (get_credential_from_reader(text.as_bytes(), host), general) {
        (Ok(DockerCredential::UsernamePassword(user, password)), _) => Ok(Some((user, password))),
        (Err(_), Some(Value::String(helper))) => ask(&helper, host).await,
        _ => Ok(None),
    }
}

async fn ask(helper: &str, host: &str) -> Result<Option<(String, String)>, FleetError> {
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get");
    let what = "the credential helper";
    let answered = timeout(HELPER_LIMIT, answer(command, host)).await;
    answered.map_err(|_| FleetError::TooSlow { what, limit: HELPER_LIMIT })
}

/// What a helper answers for this host. Dropping the future kills the helper and its children.
async fn answer(mut helper: Command, host: &str) -> Option<(String, String)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    #[cfg(unix)]
    helper.process_group(0);
    helper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = helper.spawn().ok()?;
    #[cfg(unix)]
    let _group =
        Group(child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?)));
    let (mut stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    stdin.write_all(host.as_bytes()).await.ok()?;
    drop(stdin);
    let mut text = Vec::new();
    stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut text).await.ok()?;
    let is_done = child.wait().await.is_ok_and(|status| status.success());
    let Answer { username, secret } = serde_json::from_slice(&text).ok().filter(|_| is_done)?;
    // An identity token is no password.
    (username != "<token>").then_some((username, secret))
}

/// The process group of a helper.
#[cfg(unix)]
struct Group(Option<rustix::process::Pid>);

#[cfg(unix)]
impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It fails if the group is empty.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// A helper may ask its user to unlock a store of passwords.
const HELPER_LIMIT: Duration = Duration::from_secs(30);
const MAX_CONFIG_BYTES: u64 = 1 << 20;
const MAX_ANSWER_BYTES: u64 = 64 << 10;

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", text]);
        shell
    }

    #[tokio::test]
    async fn a_helper_that_hangs_is_killed_with_its_children() {
        let says = r#"read host; printf '{"Username":"%s","Secret":"s"}' "$host""#;
        let answered = answer(script(says), "r.example\n").await;
        assert_eq!(answered, Some(("r.example".to_owned(), "s".to_owned())));
        assert_eq!(answer(script("cat; exit 1"), "{}").await, None);

        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("child");
        let hangs = format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", file.display());
        let started = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            answer = answer(script(&hangs), "r.example") => panic!("{answer:?}"),
            () = started => {}
        }
        let child = std::fs::read_to_string(&file).expect("the child's id");
        let state = Path::new("/proc").join(child.trim()).join("stat");
        // Killed, though perhaps not reaped yet.
        while std::fs::read_to_string(&state).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
