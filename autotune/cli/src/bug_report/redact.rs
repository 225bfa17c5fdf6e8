//! Removes personal details from texts.

use std::env;
use std::fs;

use serde_json::Value;

/// Texts that say whose machine it is. Empty ones are unknown.
pub(super) struct Person {
    home: String,
    user: String,
    host: String,
}

impl Person {
    pub(super) fn of_machine() -> Self {
        let variable = |name| env::var(name).unwrap_or_default();
        let home = variable("HOME").trim_end_matches('/').to_owned();
        let users = [variable("USER"), variable("LOGNAME"), name_of(&home).to_owned()];
        let user = users.into_iter().find(|user| !user.is_empty()).unwrap_or_default();
        let host = fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.unwrap_or_else(|_| variable("HOSTNAME")).trim().to_owned();
        Self { home, user, host }
    }

    /// Redacts every text of a document.
    pub(super) fn redact_all(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.redact_all(value)),
            Value::Object(fields) => {
                fields.iter_mut().for_each(|(_, value)| self.redact_all(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces home, host and user, and the folders of paths outside the system's.
    fn redact(&self, text: &str) -> String {
        let text = replace_word(text, &self.home, "~");
        let text = replace_word(&text, &self.host, "HOST");
        // The name of the administrator says nothing.
        let user = if self.user == "root" { "" } else { &self.user };
        let text = replace_word(&text, user, "USER");
        // One part may be a path with blanks; a word cannot.
        let parts = text.split_inclusive([':', '\n']);
        parts
            .map(|part| if is_path(part) { without_folders(part) } else { redact_words(part) })
            .collect()
    }
}

/// Whether the whole text is a path, unless it is a public one, which may be the first of several.
fn is_path(text: &str) -> bool {
    let is_url = text.starts_with("//");
    text.starts_with(['/', '~']) && !is_url && !PUBLIC.iter().any(|one| text.starts_with(one))
}

fn redact_words(text: &str) -> String {
    text.split_inclusive(ends_path).map(without_folders).collect()
}

/// Characters that are no part of a path, apart from unusual ones.
fn ends_path(c: char) -> bool {
    c.is_whitespace() || "\"'`,;:()[]{}<>=|".contains(c)
}

/// A path and the characters after it, without its folders unless it is public. Whatever has a slash counts as a path.
fn without_folders(word: &str) -> String {
    let path = word.trim_end_matches(ends_path);
    let is_public = !path.contains("..") && PUBLIC.iter().any(|start| path.starts_with(start));
    match path.rsplit_once('/') {
        Some((_, name)) if path.len() > 1 && !is_public => {
            format!(".../{name}{}", word.strip_prefix(path).unwrap_or_default())
        }
        _ => word.to_owned(),
    }
}

/// The last part of a path.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Replaces `secret` where it is a whole word.
fn replace_word(text: &str, secret: &str, by: &str) -> String {
    if secret.is_empty() {
        return text.to_owned();
    }
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(secret) {
        let last = before.chars().next_back().or_else(|| plain.chars().next_back());
        plain += before;
        plain += if is_part(last) || is_part(after.chars().next()) { secret } else { by };
        rest = after;
    }
    plain + rest
}

/// How the words with a slash begin that are the same on every machine.
const PUBLIC: [&str; 13] = [
    "//download.pytorch.org/",
    "/dev/dxg",
    "/dev/nvidia",
    "/lib/",
    "/lib64/",
    "/proc/driver/nvidia/",
    "/sbin/ldconfig",
    "/usr/bin/",
    "/usr/lib/",
    "/usr/lib64/",
    "/usr/local/cuda",
    "Driver/library",
    "GB/s",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn home_user_host_and_folders_are_removed() {
        let [home, user, host] = ["/home/ada", "ada", "engine-7"].map(str::to_owned);
        let person = Person { home, user, host };
        for (text, expected) in [
            ("/home/ada/secret/train.py", ".../train.py"),
            ("at /data/acme/a.so: ada@engine-7", "at .../a.so: USER@HOST"),
            ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
            ("LD=/home/ada/lib:/opt/acme/lib:", "LD=.../lib:.../lib:"),
            ("in /home/ada, adapter of canada", "in ~, adapter of canada"),
            ("/home/ada/my secret/train it", ".../train it"),
            ("/opt/my secret:/opt/acme/x y", ".../my secret:.../x y"),
            ("secret/train.py", ".../train.py"),
            ("File \"./acme/../acme/x.py\", line 3", "File \".../x.py\", line 3"),
            ("in ../acme/secret", "in .../secret"),
            ("/dev/shm/acme/a.ron", ".../a.ron"),
            ("/etc/acme/token", ".../token"),
            ("/proc/self/root/home/ada/acme/x", ".../x"),
            ("/usr/lib/../../data/acme/x", ".../x"),
            ("/usr/lib/a.so needs /data/acme/b.so", "/usr/lib/a.so needs .../b.so"),
            ("https://acme.example/secret/x", "https:.../x"),
            ("/dev/nvidia0 at 2 GB/s, x / y", "/dev/nvidia0 at 2 GB/s, x / y"),
            ("", ""),
        ] {
            assert_eq!(person.redact(text), expected, "{text}");
        }
        let mut document = json!({ "a": [{ "b": "ada" }, 1, null, true] });
        person.redact_all(&mut document);
        assert_eq!(document, json!({ "a": [{ "b": "USER" }, 1, null, true] }));
    }

    #[test]
    fn unknown_details_and_the_administrator_are_no_words() {
        let [home, user, host] = ["", "root", ""].map(str::to_owned);
        let person = Person { home, user, host };
        assert_eq!(person.redact("the root of all"), "the root of all");
    }
}
