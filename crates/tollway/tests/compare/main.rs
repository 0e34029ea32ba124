//! Tests `tollway lab compare` on revisions of a repository with known figures, which these tests create, and
//! on the tested program itself.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;

/// A repository with a program in the place of `tollway`.
struct Repository {
    directory: TempDir,
}

impl Repository {
    fn new() -> Self {
        let repository = Self { directory: TempDir::new().unwrap() };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository.write(".gitignore", "/target\n");
        repository.write("build.rs", "fn main() {\n    println!(\"cargo::rustc-env=LEVEL={}\", std::env::var(\"OPT_LEVEL\").unwrap());\n}\n");
        repository.write(
            "Cargo.toml",
            "[package]\nname = \"tollway\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n",
        );
        repository.write(
            "Cargo.lock",
            "version = 4\n\n[[package]]\nname = \"tollway\"\nversion = \"0.1.0\"\n",
        );
        fs::create_dir(repository.path("src")).unwrap();
        repository.commit("ten", 10.0, true);
        repository.commit("fourteen", 14.0, true);
        repository.commit("old", 20.0, false);
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Commits a program whose packets cost this many clocks, and tags the commit.
    fn commit(&self, tag: &str, clocks: f64, has_probe: bool) {
        let source = include_str!("stand_in.rs").replace("CLOCKS", &format!("{clocks:?}"));
        self.commit_source(tag, &source.replace("HAS_PROBE", &has_probe.to_string()));
    }

    fn commit_source(&self, tag: &str, source: &str) {
        self.write("src/main.rs", source);
        self.git(&["add", "--all"]);
        let name = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org"];
        self.git(&[&name[..], &["commit", "--quiet", "--message", tag]].concat());
        self.git(&["tag", tag]);
    }

    fn git(&self, arguments: &[&str]) {
        let done = Command::new("git").current_dir(&self.directory).args(arguments).output();
        assert!(done.unwrap().status.success(), "{arguments:?}");
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.current_dir(&self.directory).env_remove("CARGO_TARGET_DIR");
        command.args(["lab", "compare"]).args(arguments.split_whitespace());
        command
    }

    fn compare(&self, arguments: &str) -> Value {
        json(&self.command(&format!("{arguments} --seconds 1 --json")).output().unwrap())
    }

    /// The programs in the cache, and when they were written.
    fn cached(&self) -> Vec<(PathBuf, SystemTime)> {
        let cached = fs::read_dir(self.path("target/compare/programs")).unwrap();
        let cached = cached.map(|entry| entry.unwrap());
        cached.map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap())).collect()
    }

    /// The exit code and the error of a refusal.
    fn refusal(&self, arguments: &str) -> (i32, String) {
        refusal(&mut self.command(arguments))
    }
}

fn json(done: &Output) -> Value {
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    serde_json::from_slice(&done.stdout).unwrap()
}

fn refusal(command: &mut Command) -> (i32, String) {
    let done = command.output().unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    assert!(done.stdout.is_empty() && error.lines().count() == 1, "{error}");
    (done.status.code().unwrap(), error)
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("{name} in {of}"))
}

/// Nanoseconds that so many clocks take on the machine of a report.
fn ns(report: &Value, clocks: f64) -> f64 {
    clocks * 1000.0 / number(&report["machine"], "tsc_mhz")
}

#[test]
fn revisions_are_built_and_compared() {
    let repository = Repository::new();
    let slower = repository.compare("ten fourteen");
    assert_eq!((&slower["verdict"], &slower["method"]), (&"slower".into(), &"probe".into()));
    let found = number(&slower, "difference_ns");
    assert!((found - ns(&slower, 4.0)).abs() < 0.01, "{found}");
    let interval = slower["interval_ns"].as_array().unwrap();
    let [low, high] = [&interval[0], &interval[1]].map(|end| end.as_f64().unwrap());
    assert!(low <= found && found <= high && high - low < 0.01, "{low} {high}");
    let least = number(&slower, "smallest_detectable_ns");
    assert!((0.01..0.1).contains(&(least / ns(&slower, 10.0))), "{least}");
    let row = &slower["rows"][0];
    assert_eq!(row["differences_ns"].as_array().unwrap().len(), 8);
    assert!((number(&row["base"], "pps") - 1e9 / ns(&slower, 10.0)).abs() < 1e6);
    assert_eq!(slower["head"]["commit"].as_str().unwrap().len(), 40);
    assert_eq!(slower["student"]["proven"], true);
    // The stand-in can be neither counted nor profiled, and the notes report that.
    assert!(
        row["instructions_per_packet"].is_null() && row["functions"] == Value::Array(Vec::new())
    );
    let notes = row["notes"].to_string();
    assert!(notes.contains("were not counted") && notes.contains("was not profiled"), "{notes}");

    assert_eq!(repository.compare("fourteen ten")["verdict"], "faster");
    assert_eq!(repository.compare("ten ten")["verdict"], "below accuracy");

    // The builds are cached.
    let cached = repository.cached();
    assert_eq!(cached.len(), 2);
    assert_eq!(repository.compare("ten fourteen")["verdict"], "slower");
    assert_eq!(repository.cached(), cached);
}

#[test]
fn settings_of_the_compiler_are_compared() {
    let repository = Repository::new();
    let faster = repository.compare("ten ten --opt-level 1..3");
    assert_eq!(faster["verdict"], "faster");
    let found = number(&faster, "difference_ns");
    assert!((found + ns(&faster, 5.0)).abs() < 0.01, "{found}");
    assert_eq!(
        (&faster["base"]["opt_level"], &faster["head"]["opt_level"]),
        (&"1".into(), &"3".into())
    );

    // For a toolchain that does not exist, the error has rustup's message.
    let (code, error) = repository.refusal("ten ten --toolchain 1.0.0-nowhere");
    assert!(code == 1 && error.contains("ten (") && error.contains("rustc reports"), "{error}");
}

#[test]
fn a_build_without_a_probe_is_measured_by_its_tolls() {
    let repository = Repository::new();
    let slower = repository.compare("ten old");
    assert_eq!((&slower["verdict"], &slower["method"]), (&"slower".into(), &"tolls".into()));
    assert!((number(&slower, "difference_ns") - ns(&slower, 10.0)).abs() < 0.01);

    let (code, error) = repository.refusal("ten old --inject-ns 2");
    assert!(code == 2 && error.contains("old (") && error.contains("no probe"), "{error}");
}

#[test]
fn failed_builds_are_reported_in_a_sentence() {
    let repository = Repository::new();
    repository.commit_source("broken", "fn main() { nonsense }\n");
    let (code, error) = repository.refusal("ten broken");
    assert!(code == 1 && error.contains("broken (") && error.contains("nonsense"), "{error}");
    repository.commit_source("ended", "fn main() {}\n");
    let (code, error) = repository.refusal("ten ended");
    assert!(code == 2 && error.contains("ended ("), "{error}");
}

#[test]
fn invalid_arguments_are_refused() {
    let repository = Repository::new();
    let program = env!("CARGO_BIN_EXE_tollway");
    for (arguments, word) in [
        ("nonsense ten", "nonsense is neither a revision here nor a program"),
        ("ten ./nonsense", "./nonsense is neither"),
        ("ten ten --opt-level 9", "--opt-level cannot be \"9\""),
        ("ten ten --toolchain stable..", "--toolchain cannot be \"stable..\""),
        ("ten ten --scenario nonsense", "`lab tolls --only nonsense` of ten ("),
        (&format!("{program} {program} --scenario nonsense"), "no row is called nonsense"),
        (&format!("{program} ten --target-cpu native"), "is built already"),
    ] {
        let (code, error) = repository.refusal(arguments);
        assert!(code == 2 && error.contains(word), "{arguments}: {error}");
    }
    for wrong in ["--seconds 0", "--inject-ns -1", "--inject-ns nan"] {
        let done = repository.command(&format!("ten ten {wrong}")).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{wrong}");
    }
}

/// Checks a row of a program compared with itself: it names functions of the path and, where valgrind can count
/// instructions, finds no difference.
fn check_row(row: &Value) {
    let functions = row["functions"].as_array().unwrap();
    let path = |of: &&Value| of["name"].as_str().unwrap().starts_with("tollway_dataplane::");
    assert!(functions.iter().any(|of| path(&of)), "{row:#}");
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(row["notes"].to_string().contains("valgrind is not installed"), "{row:#}");
        return;
    }
    let count = &row["instructions_per_packet"];
    assert!(number(count, "base") > 50.0, "{row:#}");
    assert!(number(count, "difference").abs() < 0.01, "{row:#}");
    let sum: f64 = functions.iter().map(|of| number(of, "base_instructions")).sum();
    assert!((sum / number(count, "base") - 1.0).abs() < 0.01, "{row:#}");
}

/// Compares the program with itself, without and with an injected delay. The delay is large enough to be found
/// in an unoptimised build on a busy machine.
#[test]
fn the_real_path_is_measured() {
    let program = env!("CARGO_BIN_EXE_tollway");
    let compare = |more: &[&str]| {
        let mut command = Command::new(program);
        command.args(["lab", "compare", program, program, "--seconds", "8"]).args(more);
        command.output().unwrap()
    };
    // One verdict in a hundred is wrong, and more on a machine that does something else.
    let compared = |verdict: &str, more: &[&str]| {
        let mut reports = (0..2).map(|_| json(&compare(&[more, &["--json"]].concat())));
        let first = reports.next().unwrap();
        if first["verdict"] == verdict {
            return first;
        }
        let second = reports.next().unwrap();
        assert_eq!(second["verdict"], verdict, "{first:#}\n{second:#}");
        second
    };
    let alike = compared("below accuracy", &[]);
    check_row(&alike["rows"][0]);
    let slower = compared("slower", &["--inject-ns", "50"]);
    let found = number(&slower, "difference_ns");
    // On a shared processor, the kernel preempts a slower run more often, so the difference may be larger.
    assert!((25.0..150.0).contains(&found), "50 ns injected, {found} found");

    let printed = compare(&["--inject-ns", "50"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    for part in ["x base\n+ head\n+---", "packets/s", "Welch", "bootstrap, pairs", "verdict: "] {
        assert!(printed.contains(part), "{part} is not in {printed}");
    }
}
