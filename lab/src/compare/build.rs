//! Revisions built in a work tree of their own, kept by commit and settings.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::ProgressBar;

use super::Error;
use super::side::Settings;

/// Lines of cargo's that a failure quotes at most.
const QUOTED: usize = 4;

/// What cargo and rustc would take from the surroundings, and a build is not to depend on.
const SURROUNDINGS: [&str; 13] = [
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

/// What the names of others begin with: settings of profiles, and of what is built for.
const GROUPS: [&str; 2] = ["CARGO_PROFILE_", "CARGO_TARGET_"];

/// A git repository, and the place where what is built from it is kept.
#[derive(Debug)]
pub(super) struct Repository {
    root: PathBuf,
    cache: PathBuf,
}

impl Repository {
    /// The repository that the process runs in; what is built goes below its target directory.
    pub(super) fn here() -> Option<Self> {
        let root = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-toplevel"]).ok()?);
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => std::path::absolute(target).ok()?,
            None => root.join("target"),
        };
        Some(Self { cache: target.join("compare"), root })
    }

    /// The commit that a revision is.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if revision.starts_with('-') {
            return None;
        }
        let commit = format!("{revision}^{{commit}}");
        git(&self.root, &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]).ok()
    }

    /// Whether files differ from the commit that is checked out.
    pub(super) fn is_dirty(&self) -> bool {
        git(&self.root, &["status", "--porcelain", "--untracked-files=no"])
            .is_ok_and(|told| !told.is_empty())
    }

    /// The program of a commit, built if it is not yet there.
    ///
    /// # Errors
    /// A sentence with what cargo says last.
    pub(super) fn program(
        &self,
        spec: &str,
        commit: &str,
        settings: &Settings,
    ) -> Result<PathBuf, Error> {
        let failed = |what: &dyn std::fmt::Display| {
            Error::failed(
                format!("{spec} ({}) can not be built: {what}", short(commit)),
                "Mend that, or name a program that is built already",
            )
        };
        let compiler = self.compiler(settings).map_err(|error| failed(&error))?;
        let kept = self.cache.join("programs").join(key(commit, &compiler, settings));
        let _lock = self.lock().map_err(|error| failed(&error))?;
        if kept.is_file() {
            return Ok(kept);
        }
        let tree = self.tree(commit).map_err(|error| failed(&error))?;
        let built = self.build(&tree, spec, commit, settings).map_err(|error| failed(&error))?;
        // Renamed when it is whole, since who stops the copy would leave half a program.
        let part = kept.with_extension("part");
        let keep = fs::copy(&built, &part).and_then(|_| fs::rename(&part, &kept));
        keep.map_err(|error| {
            failed(&format_args!("{} can not be kept: {error}", built.display()))
        })?;
        Ok(kept)
    }

    /// What the compiler calls itself: a build that is kept is of no use to a later one.
    fn compiler(&self, settings: &Settings) -> Result<String, String> {
        let mut command = Command::new("rustc");
        select(&mut command, settings).arg("--version").current_dir(&self.root);
        output("rustc", &mut command)
    }

    /// Waits for whoever else builds here.
    fn lock(&self) -> Result<File, String> {
        let path = self.cache.join("lock");
        fs::create_dir_all(self.cache.join("programs"))
            .and_then(|()| File::create(&path))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| format!("{} can not be written: {error}", path.display()))
    }

    /// The work tree, with that commit checked out. There is one for all: where files lie is part of a
    /// build.
    fn tree(&self, commit: &str) -> Result<PathBuf, String> {
        let tree = self.cache.join("tree");
        if tree.join(".git").exists()
            && git(&tree, &["checkout", "--quiet", "--force", "--detach", commit]).is_ok()
        {
            return Ok(tree);
        }
        // What is left of one that was begun, or whose repository has moved.
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
        select(&mut command, settings).args(arguments).arg("--target-dir").arg(&target);
        command.current_dir(tree);
        surround(&mut command, settings);
        let words = settings.words();
        let message = format!("building {spec} ({}) {words}", short(commit));
        run(command, message.trim_end())?;
        Ok(target.join("release").join("tollway"))
    }
}

/// Has rustup take the toolchain that is asked for. Without rustup that is an error, unlike a variable that
/// nobody reads.
fn select<'a>(command: &'a mut Command, settings: &Settings) -> &'a mut Command {
    command.args(settings.toolchain.as_ref().map(|toolchain| format!("+{toolchain}")))
}

/// Whether a variable of that name would change a build: one by another compiler would be kept as if it were
/// by the one that its file is named after.
fn is_surrounding(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    SURROUNDINGS.contains(&&*name) || GROUPS.iter().any(|group| name.starts_with(group))
}

/// Sets what a build depends on besides its files.
fn surround(command: &mut Command, settings: &Settings) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_surrounding(name)) {
        command.env_remove(name);
    }
    if let Some(cpu) = &settings.target_cpu {
        command.env("RUSTFLAGS", format!("-C target-cpu={cpu}"));
    }
    if let Some(level) = &settings.opt_level {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level);
    }
}

/// Runs cargo and shows what it is at; where it fails, its last lines.
fn run(mut command: Command, message: &str) -> Result<(), String> {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cargo can not be started: {error}"))?;
    let mut told = Vec::new();
    let lines = child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        let line = line.trim().to_owned();
        if !line.is_empty() {
            bar.set_message(format!("{message}: {line}"));
            told.push(line);
        }
    }
    let status = child.wait();
    bar.finish_and_clear();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("cargo says {:?}", last_words(&told))),
        Err(error) => Err(format!("cargo can not be waited for: {error}")),
    }
}

/// The last errors among cargo's lines, or the last lines where none is called one.
fn last_words(told: &[String]) -> String {
    let errors: Vec<_> = told.iter().filter(|line| line.starts_with("error")).collect();
    let lines = if errors.is_empty() { told.iter().collect() } else { errors };
    let last = &lines[lines.len().saturating_sub(QUOTED)..];
    last.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("; ")
}

/// The file that a build is kept in.
fn key(commit: &str, compiler: &str, settings: &Settings) -> String {
    let named = [("cpu", &settings.target_cpu), ("opt", &settings.opt_level)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let named: String = named.map(|(name, value)| format!("-{name}={value}")).collect();
    let plain = |c: char| if c.is_alphanumeric() || "-=._+".contains(c) { c } else { '_' };
    format!("{commit}-{compiler}{named}").chars().map(plain).collect()
}

/// The first digits of a commit, as far as they serve people.
pub(super) fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// What git prints, or why it fails.
fn git(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(arguments).stdin(Stdio::null());
    // Set in hooks, and then for another repository than this.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    output("git", &mut command)
}

/// What a program prints, or why it fails.
fn output(name: &str, command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("{name} can not be started: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    let told = String::from_utf8_lossy(&done.stderr);
    let lines: Vec<_> = told.lines().map(|line| line.trim().to_owned()).collect();
    Err(format!("{name} says {:?}", last_words(&lines)))
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
            assert!(is_surrounding(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "CARGO_HOME", "CARGO_BUILD_JOBS", "RUSTUP_TOOLCHAIN"] {
            assert!(!is_surrounding(OsStr::new(name)), "{name}");
        }
    }
}
