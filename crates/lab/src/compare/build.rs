//! Builds revisions in a separate work tree and caches the programs by commit and settings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::ProgressBar;

use super::Error;
use super::settings::Settings;

/// The most lines of cargo's output that an error quotes.
const QUOTED: usize = 4;

/// Environment variables that cargo and rustc read and that must not influence a build.
const BUILD_VARIABLES: [&str; 13] = [
    "CARGO_BUILD_RUSTC",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "CARGO_MANIFEST_DIR",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
];

/// Prefixes of more such variables: settings of profiles and of targets.
const BUILD_PREFIXES: [&str; 2] = ["CARGO_PROFILE_", "CARGO_TARGET_"];

/// A git repository and its cache of built programs.
#[derive(Debug)]
pub(super) struct Repository {
    root: PathBuf,
    cache: PathBuf,
}

impl Repository {
    /// The repository of the current directory. Programs go below its target directory.
    pub(super) fn here() -> Option<Self> {
        let root = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-toplevel"]).ok()?);
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => std::path::absolute(target).ok()?,
            None => root.join("target"),
        };
        Some(Self { cache: target.join("compare"), root })
    }

    /// The commit that a revision resolves to.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if revision.starts_with('-') {
            return None;
        }
        let commit = format!("{revision}^{{commit}}");
        git(&self.root, &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]).ok()
    }

    /// Whether tracked files differ from the checked-out commit.
    pub(super) fn is_dirty(&self) -> bool {
        git(&self.root, &["status", "--porcelain", "--untracked-files=no"])
            .is_ok_and(|text| !text.is_empty())
    }

    /// The program of a commit. Builds it if the cache lacks it.
    ///
    /// # Errors
    /// A message with cargo's last lines.
    pub(super) fn program(
        &self,
        spec: &str,
        commit: &str,
        settings: &Settings,
    ) -> Result<PathBuf, Error> {
        let failed = |what: &dyn std::fmt::Display| {
            Error::failed(
                format!("cannot build {spec} ({}): {what}", short(commit)),
                "Mend that, or name a program that is already built",
            )
        };
        let compiler = self.compiler(settings).map_err(|error| failed(&error))?;
        let cached = self.cache.join("programs").join(key(commit, &compiler, settings));
        let _lock = self.lock().map_err(|error| failed(&error))?;
        if cached.is_file() {
            return Ok(cached);
        }
        let tree = self.tree(commit).map_err(|error| failed(&error))?;
        let built = self.build(&tree, spec, commit, settings).map_err(|error| failed(&error))?;
        // Renamed only when complete: an interrupted copy would otherwise leave half a program.
        let part = cached.with_extension("part");
        let copied = fs::copy(&built, &part).and_then(|_| fs::rename(&part, &cached));
        copied.map_err(|error| {
            failed(&format_args!("cannot copy {} to the cache: {error}", built.display()))
        })?;
        Ok(cached)
    }

    /// The compiler's version. It is part of a cached build's name, so that another compiler builds
    /// again.
    fn compiler(&self, settings: &Settings) -> Result<String, String> {
        let mut command = Command::new("rustc");
        select_toolchain(&mut command, settings).arg("--version").current_dir(&self.root);
        output("rustc", &mut command)
    }

    /// Waits until no other process builds here.
    fn lock(&self) -> Result<File, String> {
        let path = self.cache.join("lock");
        fs::create_dir_all(self.cache.join("programs"))
            .and_then(|()| File::create(&path))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| format!("cannot lock {}: {error}", path.display()))
    }

    /// The work tree with that commit checked out. All commits share one tree, since file paths
    /// become part of a build.
    fn tree(&self, commit: &str) -> Result<PathBuf, String> {
        let tree = self.cache.join("tree");
        if tree.join(".git").exists()
            && git(&tree, &["checkout", "--quiet", "--force", "--detach", commit]).is_ok()
        {
            return Ok(tree);
        }
        // Removes the remains of an unfinished tree, or of one whose repository has moved.
        let _ = fs::remove_dir_all(&tree);
        let path = tree.to_string_lossy().into_owned();
        git(&self.root, &["worktree", "add", "--quiet", "--force", "--detach", &path, commit])?;
        Ok(tree)
    }

    fn build(
        &self,
        tree: &Path,
        spec: &str,
        commit: &str,
        settings: &Settings,
    ) -> Result<PathBuf, String> {
        let target = self.cache.join("build");
        let mut command = Command::new("cargo");
        let arguments = ["build", "--release", "--locked", "--package", "tollway"];
        select_toolchain(&mut command, settings).args(arguments).arg("--target-dir").arg(&target);
        command.current_dir(tree);
        set_environment(&mut command, settings);
        let words = settings.words();
        let message = format!("building {spec} ({}) {words}", short(commit));
        run(command, message.trim_end())?;
        Ok(target.join("release").join("tollway"))
    }
}

/// Makes rustup use the requested toolchain. Without rustup `+toolchain` is an error; an
/// environment variable would be ignored.
fn select_toolchain<'a>(command: &'a mut Command, settings: &Settings) -> &'a mut Command {
    command.args(settings.toolchain.as_ref().map(|toolchain| format!("+{toolchain}")))
}

/// Whether a variable of that name changes a build. The cache would otherwise keep the program of
/// another compiler under the name of this one.
fn changes_builds(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    BUILD_VARIABLES.contains(&&*name) || BUILD_PREFIXES.iter().any(|group| name.starts_with(group))
}

/// Sets what a build depends on besides its files.
fn set_environment(command: &mut Command, settings: &Settings) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| changes_builds(name)) {
        command.env_remove(name);
    }
    if let Some(cpu) = &settings.target_cpu {
        command.env("RUSTFLAGS", format!("-C target-cpu={cpu}"));
    }
    if let Some(level) = &settings.opt_level {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level);
    }
}

/// Runs cargo and shows its progress. If it fails, the error has its last lines.
fn run(mut command: Command, message: &str) -> Result<(), String> {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cannot start cargo: {error}"))?;
    let mut messages = Vec::new();
    let lines = child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        let line = line.trim().to_owned();
        if !line.is_empty() {
            bar.set_message(format!("{message}: {line}"));
            messages.push(line);
        }
    }
    let status = child.wait();
    bar.finish_and_clear();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("cargo reports {:?}", last_errors(&messages))),
        Err(error) => Err(format!("cannot wait for cargo: {error}")),
    }
}

/// The last errors among cargo's lines, or the last lines if none is marked as an error.
fn last_errors(messages: &[String]) -> String {
    let errors: Vec<_> = messages.iter().filter(|line| line.starts_with("error")).collect();
    let lines = if errors.is_empty() { messages.iter().collect() } else { errors };
    let last = &lines[lines.len().saturating_sub(QUOTED)..];
    last.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("; ")
}

/// The file name of a cached build.
fn key(commit: &str, compiler: &str, settings: &Settings) -> String {
    let named = [("cpu", &settings.target_cpu), ("opt", &settings.opt_level)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let named: String = named.map(|(name, value)| format!("-{name}={value}")).collect();
    let plain = |c: char| if c.is_alphanumeric() || "-=._+".contains(c) { c } else { '_' };
    format!("{commit}-{compiler}{named}").chars().map(plain).collect()
}

/// The first digits of a commit, enough for people.
pub(super) fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// What git prints, or why it fails.
fn git(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(arguments).stdin(Stdio::null());
    // Git sets these in hooks, and there they may name another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    output("git", &mut command)
}

/// What a program prints, or why it fails.
fn output(name: &str, command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let messages = String::from_utf8_lossy(&done.stderr);
    let lines: Vec<_> = messages.lines().map(|line| line.trim().to_owned()).collect();
    Err(format!("{name} reports {:?}", last_errors(&lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_do_not_depend_on_the_surroundings() {
        for name in [
            "RUSTC",
            "RUSTC_WORKSPACE_WRAPPER",
            "CARGO_BUILD_RUSTC",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
            "CARGO_PROFILE_RELEASE_LTO",
        ] {
            assert!(changes_builds(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "CARGO_HOME", "CARGO_BUILD_JOBS", "RUSTUP_TOOLCHAIN"] {
            assert!(!changes_builds(OsStr::new(name)), "{name}");
        }
    }
}
