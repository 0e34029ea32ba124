//! The settings that a revision is built with.

use serde::Serialize;

use super::Error;

/// Build settings of a revision that differ from those of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// The toolchain, by its rustup name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolchain: Option<String>,
    /// The target processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu: Option<String>,
    /// The optimisation level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_level: Option<String>,
}

impl Settings {
    /// The differing settings in words; empty if there are none.
    #[must_use]
    pub fn words(&self) -> String {
        let named = [
            ("toolchain", &self.toolchain),
            ("target-cpu", &self.target_cpu),
            ("opt-level", &self.opt_level),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        named.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// Settings of both sides from options that may name two values, `A..B`.
    ///
    /// # Errors
    /// A value is empty or invalid.
    pub fn of_both(
        toolchain: Option<&str>,
        target_cpu: Option<&str>,
        opt_level: Option<&str>,
    ) -> Result<[Self; 2], Error> {
        let [toolchain, target_cpu, opt_level] = [
            both("--toolchain", toolchain)?,
            both("--target-cpu", target_cpu)?,
            both("--opt-level", opt_level)?,
        ];
        let unknown = |level: &&String| !["0", "1", "2", "3", "s", "z"].contains(&level.as_str());
        if let Some(level) = opt_level.iter().flatten().find(unknown) {
            return Err(Error::usage(
                format!("--opt-level cannot be {level:?}"),
                "Name one of 0, 1, 2, 3, s and z, or two as 2..3",
            ));
        }
        let side = |at: usize| Self {
            toolchain: toolchain[at].clone(),
            target_cpu: target_cpu[at].clone(),
            opt_level: opt_level[at].clone(),
        };
        Ok([side(0), side(1)])
    }
}

/// An option's values for both sides.
fn both(option: &str, value: Option<&str>) -> Result<[Option<String>; 2], Error> {
    let Some(value) = value else { return Ok([None, None]) };
    let (base, head) = value.split_once("..").unwrap_or((value, value));
    let plain = |name: &str| {
        let first = name.chars().next();
        first.is_some_and(char::is_alphanumeric)
            && name.chars().all(|c| c.is_alphanumeric() || "-._+".contains(c))
    };
    if ![base, head].into_iter().all(plain) {
        return Err(Error::usage(
            format!("{option} cannot be {value:?}"),
            "Name one for both sides, or two as FIRST..SECOND",
        ));
    }
    Ok([Some(base.to_owned()), Some(head.to_owned())])
}
