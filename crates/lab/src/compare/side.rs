//! The sides of a comparison: revisions, built with some settings, or programs.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Error;
use super::build::{self, Repository};
use super::settings::Settings;

/// One side of a comparison, ready to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The revision or program as the user wrote it.
    pub spec: String,
    /// The commit that it was built from; `None` for an existing program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The build settings.
    #[serde(flatten)]
    pub settings: Settings,
    /// The path of the program.
    pub program: PathBuf,
    /// An artificial delay for every packet, ns.
    pub inject_ns: f64,
}

impl Side {
    /// The side's name in texts.
    #[must_use]
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.commit.as_ref().map(|commit| build::short(commit).to_owned()));
        parts.push(self.settings.words());
        if self.inject_ns > 0.0 {
            parts.push(format!("{} ns a packet injected", self.inject_ns));
        }
        parts.retain(|part| !part.is_empty());
        match parts.is_empty() {
            true => self.spec.clone(),
            false => format!("{} ({})", self.spec, parts.join(", ")),
        }
    }

    /// Resolves a side. A revision has no program yet.
    ///
    /// # Errors
    /// `spec` is neither a revision nor a program.
    pub(super) fn find(
        spec: &str,
        settings: Settings,
        repository: Option<&Repository>,
    ) -> Result<Self, Error> {
        let path = Path::new(spec);
        // A branch may share its name with a file here, but hardly with a file in another
        // directory.
        let elsewhere = spec.contains('/') && path.is_file();
        let commit = repository.filter(|_| !elsewhere).and_then(|found| found.commit(spec));
        let program = match commit {
            Some(_) => PathBuf::new(),
            None => program(path, &settings)?,
        };
        Ok(Self { spec: spec.to_owned(), commit, settings, program, inject_ns: 0.0 })
    }

    /// Builds the program of a revision, unless the cache has it.
    ///
    /// # Errors
    /// The build fails.
    pub(super) fn build(&mut self, repository: &Repository) -> Result<(), Error> {
        if let Some(commit) = &self.commit {
            self.program = repository.program(&self.spec, commit, &self.settings)?;
        }
        Ok(())
    }
}

/// An existing program.
fn program(path: &Path, settings: &Settings) -> Result<PathBuf, Error> {
    let name = path.display();
    if !path.is_file() {
        return Err(Error::usage(
            format!("{name} is neither a revision here nor a program"),
            "Name a commit, branch or tag of the repository that you are in, or the path of a program",
        ));
    }
    let words = settings.words();
    if !words.is_empty() {
        return Err(Error::usage(
            format!("{name} is built already, so {words} cannot apply to it"),
            "Name a revision, or leave the compiler's settings out",
        ));
    }
    path.canonicalize().map_err(|error| {
        Error::usage(format!("cannot find {name}: {error}"), "Name the path of a program")
    })
}
