//! The receive function in C, built with the available compilers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

const SOURCES: [(&str, &str); 5] = [
    ("receive.c", include_str!("../../../studies/call-split/receive.c")),
    ("receive.h", include_str!("../../../studies/call-split/receive.h")),
    ("first.h", include_str!("../../../studies/call-split/first.h")),
    ("second.h", include_str!("../../../studies/call-split/second.h")),
    ("harness.c", include_str!("../../../studies/call-split/harness.c")),
];

/// Link orders of the variants' objects. The order decides the address of the code, and with it the
/// speed.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Kernel options for x86-64 against speculation and overflows, as far as the compiler has them.
/// Debian's clang 14 guards only indirect branches; gcc guards returns as well.
const HARDENED: &[&str] = &["-fno-omit-frame-pointer", "-fstack-protector-strong"];
const GCC_THUNKS: &[&str] = &["-mindirect-branch=thunk", "-mfunction-return=thunk"];

/// One build configuration.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// The name of its rows.
    pub(super) name: String,
    /// A description in words.
    pub(super) title: String,
    compiler: &'static str,
    flags: Vec<&'static str>,
}

/// The available compilers, and notes on the missing ones.
pub(super) fn settings() -> (Vec<Setting>, Vec<String>) {
    let (mut settings, mut notes) = (Vec::new(), Vec::new());
    for compiler in ["gcc", "clang"] {
        let Some(version) = version(compiler) else {
            notes.push(format!(
                "{compiler} is not installed, so it has no rows (`apt-get install {compiler}`)"
            ));
            continue;
        };
        for level in ["-O1", "-O2", "-O3"] {
            settings.push(Setting {
                name: format!("{compiler}{level}"),
                title: format!("{version}, {level}"),
                compiler,
                flags: vec![level],
            });
        }
        if compiler == "gcc" && cfg!(target_arch = "x86_64") {
            settings.push(Setting {
                name: "gcc-hardened".to_owned(),
                title: format!("{version}, -O2, as a kernel guards returns against speculation"),
                compiler,
                flags: [&["-O2"], HARDENED, GCC_THUNKS].concat(),
            });
        }
    }
    (settings, notes)
}

/// A compiler's version line; `None` if it cannot be started.
fn version(compiler: &str) -> Option<String> {
    let output = Command::new(compiler).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let number =
        text.lines().next()?.split_whitespace().rfind(|word| {
            word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.')
        });
    Some(number.map_or_else(|| compiler.to_owned(), |number| format!("{compiler} {number}")))
}

/// A temporary directory. Dropping this deletes it.
pub(super) struct BuildDir {
    directory: PathBuf,
}

impl BuildDir {
    /// Writes the sources and the frames.
    ///
    /// # Errors
    /// A message, if that fails.
    pub(super) fn new(frames: &[u8]) -> Result<Self, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollway-call-split-{}-{number}", process::id());
        let made = Self { directory: env::temp_dir().join(name) };
        // Not `create_dir_all`: an existing directory is not ours.
        fs::create_dir(&made.directory).map_err(|error| made.failed(&error))?;
        for (name, text) in SOURCES {
            fs::write(made.path(name), text).map_err(|error| made.failed(&error))?;
        }
        fs::write(made.path("frames"), frames).map_err(|error| made.failed(&error))?;
        Ok(made)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn failed(&self, error: &std::io::Error) -> String {
        let place = self.directory.display();
        format!("cannot write to {place} ({error}): name another directory by TMPDIR")
    }

    /// Compiles harness and variants with a setting.
    ///
    /// # Errors
    /// A message with the compiler's output.
    pub(super) fn compile(&self, setting: &Setting) -> Result<(), String> {
        for split in 0..3 {
            let object = self.path(&format!("{}-{split}.o", setting.name));
            let define = format!("-DSPLIT={split}");
            self.cc(setting, &[&define, "-c", "receive.c", "-o"], &object)?;
        }
        let object = self.path(&format!("{}-harness.o", setting.name));
        self.cc(setting, &["-c", "harness.c", "-o"], &object)
    }

    /// Links the objects in one of the orders; the second call for an order returns the same program.
    ///
    /// # Errors
    /// A message with the linker's output.
    pub(super) fn link(&self, setting: &Setting, number: usize) -> Result<PathBuf, String> {
        let number = number % ORDERS.len();
        let program = self.path(&format!("{}.{number}", setting.name));
        if program.exists() {
            return Ok(program);
        }
        let mut objects = vec![format!("{}-harness.o", setting.name)];
        objects.extend(ORDERS[number].map(|split| format!("{}-{split}.o", setting.name)));
        let mut arguments: Vec<&str> = objects.iter().map(String::as_str).collect();
        arguments.push("-o");
        self.cc(setting, &arguments, &program)?;
        Ok(program)
    }

    fn cc(&self, setting: &Setting, arguments: &[&str], output: &Path) -> Result<(), String> {
        let mut command = Command::new(setting.compiler);
        command.current_dir(&self.directory).args(["-Wall", "-Werror"]);
        command.args(&setting.flags).args(arguments).arg(output);
        let done = command
            .output()
            .map_err(|error| format!("cannot start {}: {error}", setting.compiler))?;
        if done.status.success() {
            return Ok(());
        }
        let messages = String::from_utf8_lossy(&done.stderr);
        let reason =
            messages.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
        Err(format!("{} does not build: {reason}", setting.title))
    }
}

impl Drop for BuildDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_that_is_missing_has_no_version() {
        assert_eq!(version("no-such-compiler"), None);
    }

    #[test]
    fn a_build_dir_leaves_nothing_behind() {
        let build_dir = BuildDir::new(b"frames").unwrap();
        let directory = build_dir.directory.clone();
        assert!(directory.join("receive.c").exists());
        drop(build_dir);
        assert!(!directory.exists());
    }
}
